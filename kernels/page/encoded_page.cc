#include "kernels/page/encoded_page.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

constexpr uint32_t kMagic = 0x5350564b;  // "KVPS"
constexpr size_t kDigestBytes = 8;
constexpr size_t kMaxPipelineBytes = 1024;

// Bits of the flags byte.
constexpr uint8_t kExact = 1, kFellBack = 2, kHasCalibration = 4, kHasClasses = 8;
constexpr uint8_t kHasTokenIds = 16, kHasOtherRope = 32;
constexpr uint8_t kAllFlags = 63;

// Bits of the RoPE byte: layout in 0-1, scaling in 2-4, then these.
constexpr uint8_t kAfterRope = 32, kHasFrequencies = 64, kHasScaling = 128;

void PutVarint(ByteWriter& out, uint64_t value) {
  for (; value >= 128; value >>= 7) out.Put(static_cast<uint8_t>(value | 128));
  out.Put(static_cast<uint8_t>(value));
}

// The shortest form only, so that a header has one encoding. False when the bytes are not one or
// the value exceeds `limit`.
bool GetVarint(ByteReader& in, uint64_t limit, uint64_t& value) {
  value = 0;
  for (uint32_t shift = 0; shift < 64; shift += 7) {
    const auto byte = in.Get<uint8_t>();
    if (!in.ok() || (shift == 63 && byte > 1)) return false;
    value |= uint64_t{byte & 127u} << shift;
    if (byte < 128) return (byte != 0 || shift == 0) && value <= limit;
  }
  return false;
}

template <typename T>
bool GetVarint(ByteReader& in, T& value) {
  uint64_t wide = 0;
  if (!GetVarint(in, std::numeric_limits<T>::max(), wide)) return false;
  value = static_cast<T>(wide);
  return true;
}

void PutText(ByteWriter& out, absl::string_view text) {
  PutVarint(out, text.size());
  out.PutBytes(AsBytes(text));
}

bool GetText(ByteReader& in, size_t limit, std::string& text) {
  uint64_t size = 0;
  if (!GetVarint(in, limit, size)) return false;
  text = std::string(AsString(in.GetBytes(size)));
  return in.ok();
}

// What a RoPE byte says of the rest.
uint8_t PartsOf(const RopeSpec& rope) {
  const RopeSpec usual;
  const bool frequencies = rope.rotary_dims != usual.rotary_dims || rope.theta != usual.theta;
  const bool scaling = rope.factor != usual.factor ||
                       rope.low_freq_factor != usual.low_freq_factor ||
                       rope.high_freq_factor != usual.high_freq_factor ||
                       rope.original_context != usual.original_context;
  return static_cast<uint8_t>((frequencies ? kHasFrequencies : 0) | (scaling ? kHasScaling : 0));
}

void PutRope(ByteWriter& out, const RopeSpec& rope) {
  const uint8_t parts = PartsOf(rope);
  out.Put(static_cast<uint8_t>(static_cast<int>(rope.layout) | static_cast<int>(rope.scaling) << 2 |
                               (rope.k_after_rope ? kAfterRope : 0) | parts));
  if ((parts & kHasFrequencies) != 0) {
    PutVarint(out, rope.rotary_dims);
    out.Put(rope.theta);
  }
  if ((parts & kHasScaling) != 0) {
    out.Put(rope.factor);
    out.Put(rope.low_freq_factor);
    out.Put(rope.high_freq_factor);
    PutVarint(out, rope.original_context);
  }
}

// Refuses defaults that are written out: a header has one form.
bool GetRope(ByteReader& in, RopeSpec& rope) {
  const auto bits = in.Get<uint8_t>();
  rope.layout = static_cast<RopeSpec::Layout>(bits & 3);
  rope.scaling = static_cast<RopeSpec::Scaling>(bits >> 2 & 7);
  rope.k_after_rope = (bits & kAfterRope) != 0;
  if ((bits & kHasFrequencies) != 0) {
    if (!GetVarint(in, rope.rotary_dims)) return false;
    rope.theta = in.Get<double>();
  }
  if ((bits & kHasScaling) != 0) {
    rope.factor = in.Get<double>();
    rope.low_freq_factor = in.Get<double>();
    rope.high_freq_factor = in.Get<double>();
    if (!GetVarint(in, rope.original_context)) return false;
  }
  return in.ok() && PartsOf(rope) == (bits & (kHasFrequencies | kHasScaling));
}

// The layers are bits, the first layer in the lowest bit of the first byte.
void PutOtherRope(ByteWriter& out, const OtherRope& other, uint32_t layers) {
  if (other.layers.empty()) return;
  PutRope(out, other.rope);
  std::vector<uint8_t> bits((layers + 7) / 8);
  for (const uint32_t layer : other.layers) bits[layer / 8] |= 1 << layer % 8;
  out.PutBytes(bits);
}

bool GetOtherRope(ByteReader& in, uint32_t layers, OtherRope& other) {
  if (layers > kMaxLayers || !GetRope(in, other.rope)) return false;
  const auto bits = in.GetBytes((layers + 7) / 8);
  if (!in.ok()) return false;
  for (uint32_t layer = 0; layer < 8 * bits.size(); ++layer) {
    if ((bits[layer / 8] >> layer % 8 & 1) != 0) other.layers.push_back(layer);
  }
  return !other.layers.empty();
}

void PutClasses(ByteWriter& out, const std::vector<uint8_t>& classes) {
  for (size_t i = 0; i < classes.size(); i += 2) {
    const int high = i + 1 < classes.size() ? classes[i + 1] : 0;
    out.Put(static_cast<uint8_t>(classes[i] | high << 4));
  }
}

bool GetClasses(ByteReader& in, uint32_t tokens, std::vector<uint8_t>& classes) {
  const auto packed = in.GetBytes((tokens + 1) / 2);
  if (!in.ok()) return false;
  classes.resize(tokens);
  for (size_t i = 0; i < tokens; ++i) classes[i] = packed[i / 2] >> (i % 2 * 4) & 15;
  return tokens % 2 == 0 || packed.back() < 16;
}

// 0 is a token that is not known.
void PutTokenIds(ByteWriter& out, const std::vector<TokenId>& ids) {
  for (const TokenId id : ids) PutVarint(out, id == kUnknownToken ? 0 : uint64_t{id} + 1);
}

bool GetTokenIds(ByteReader& in, uint32_t tokens, std::vector<TokenId>& ids) {
  for (uint32_t i = 0; i < tokens; ++i) {
    uint64_t value = 0;
    if (!GetVarint(in, kMaxVocabulary, value)) return false;
    ids.push_back(value == 0 ? kUnknownToken : static_cast<TokenId>(value - 1));
  }
  return true;
}

void PutSegment(ByteWriter& out, const SegmentInfo& segment) {
  PutVarint(out, segment.first_layer);
  PutVarint(out, segment.layer_count);
  out.Put(static_cast<uint8_t>(segment.level | segment.token_class << 4));
  PutVarint(out, segment.bytes);
  out.Put(segment.gain);
  out.Put(segment.digest);
}

bool GetSegment(ByteReader& in, SegmentInfo& segment) {
  if (!GetVarint(in, segment.first_layer) || !GetVarint(in, segment.layer_count)) return false;
  const auto place = in.Get<uint8_t>();
  segment.level = place & 15;
  segment.token_class = place >> 4;
  if (!GetVarint(in, segment.bytes)) return false;
  segment.gain = in.Get<float>();
  segment.digest = in.Get<uint64_t>();
  return in.ok();
}

bool GetGeometry(ByteReader& in, PageHeader& header) {
  header.dtype = static_cast<DType>(in.Get<uint8_t>());
  return GetVarint(in, header.layers) && GetVarint(in, header.kv_heads) &&
         GetVarint(in, header.head_dim_k) && GetVarint(in, header.head_dim_v) &&
         GetVarint(in, header.tokens) && GetVarint(in, header.first_position) &&
         GetRope(in, header.rope) && header.tokens <= kMaxPageTokens;
}

template <size_t n>
void GetArray(ByteReader& in, std::array<uint8_t, n>& out) {
  if (const auto bytes = in.GetBytes(n); bytes.size() == n) {
    std::copy(bytes.begin(), bytes.end(), out.begin());
  }
}

absl::Status BadSegments(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("page header: ", why));
}

// Every class that a token has covers all layers once at level 0; refinements refine such runs.
absl::Status ValidateSegments(const PageHeader& header) {
  using Key = std::tuple<uint8_t, uint8_t, uint32_t, uint32_t>;  // class, level, first, count
  std::vector<Key> keys;
  uint8_t level = 0;
  for (const SegmentInfo& s : header.segments) {
    if (s.level >= kMaxLevels || s.token_class >= kMaxTokenClasses) {
      return BadSegments("a segment's level or token class is out of range");
    }
    if (s.level < level) return BadSegments("segments are not in order of level");
    level = s.level;
    keys.emplace_back(s.token_class, s.level, s.first_layer, s.layer_count);
  }
  std::sort(keys.begin(), keys.end());
  std::array<uint32_t, kMaxTokenClasses> covered{};
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto [token_class, at_level, first, count] = keys[i];
    if (i > 0 && keys[i] == keys[i - 1]) return BadSegments("a segment is listed twice");
    if (at_level > 0) {
      if (!std::binary_search(keys.begin(), keys.end(), Key(token_class, 0, first, count))) {
        return BadSegments("a refinement has no base segment of the same layers");
      }
    } else if (count == 0 || first != covered[token_class]) {
      return BadSegments("base segments do not follow each other layer by layer");
    } else {
      covered[token_class] += count;
    }
  }
  std::array<bool, kMaxTokenClasses> used{};
  used[0] = header.token_classes.empty();
  for (const uint8_t c : header.token_classes) used[c] = true;
  for (size_t c = 0; c < kMaxTokenClasses; ++c) {
    if (covered[c] != (used[c] ? header.layers : 0)) {
      return BadSegments(absl::StrCat("base segments of token class ", c, " cover ", covered[c],
                                      " of ", used[c] ? header.layers : 0, " layers"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool SameGeometry(const PageHeader& header, const KvSpec& spec) {
  return header.layers == spec.layers && header.kv_heads == spec.kv_heads &&
         header.head_dim_k == spec.head_dim_k && header.head_dim_v == spec.head_dim_v &&
         header.dtype == spec.dtype && header.rope == spec.rope &&
         header.other_rope == spec.other_rope && header.tokens >= 1 &&
         header.tokens <= spec.page_tokens;
}

KvSpec PageHeader::Geometry() const {
  KvSpec spec;
  spec.layers = layers;
  spec.kv_heads = kv_heads;
  spec.head_dim_k = head_dim_k;
  spec.head_dim_v = head_dim_v;
  spec.dtype = dtype;
  spec.page_tokens = tokens;
  spec.rope = rope;
  spec.other_rope = other_rope;
  return spec;
}

absl::Status Validate(const PageHeader& header) {
  KVSTOW_RETURN_IF_ERROR(Validate(header.Geometry()));
  if (header.key.size() > kMaxKeyBytes) return BadSegments("the key is longer than 64 bytes");
  if (header.pipeline.size() > kMaxPipelineBytes) return BadSegments("the pipeline is too long");
  if (header.segments.size() > kMaxSegments) return BadSegments("too many segments");
  if (!header.token_classes.empty()) {
    if (header.token_classes.size() != header.tokens) {
      return BadSegments("token classes are not one for each token");
    }
    const auto& classes = header.token_classes;
    if (*std::max_element(classes.begin(), classes.end()) >= kMaxTokenClasses) {
      return BadSegments("a token class is out of range");
    }
  }
  const bool some = !header.token_ids.empty();
  const auto is_id = [](TokenId id) { return id < kMaxVocabulary || id == kUnknownToken; };
  if (some &&
      (header.token_ids.size() != header.tokens || !std::ranges::all_of(header.token_ids, is_id))) {
    return BadSegments("token ids are out of range or not one for each token");
  }
  return ValidateSegments(header);
}

std::string SerializePageHeader(const PageHeader& header) {
  const bool calibrated = header.calibration != decltype(header.calibration){};
  ByteWriter out;
  out.Put(kMagic);
  out.Put(kPageFormatVersion);
  out.Put(static_cast<uint8_t>((header.exact ? kExact : 0) | (header.fell_back ? kFellBack : 0) |
                               (calibrated ? kHasCalibration : 0) |
                               (header.token_classes.empty() ? 0 : kHasClasses) |
                               (header.token_ids.empty() ? 0 : kHasTokenIds) |
                               (header.other_rope.layers.empty() ? 0 : kHasOtherRope)));
  out.Put(static_cast<uint8_t>(header.dtype));
  PutVarint(out, header.layers);
  PutVarint(out, header.kv_heads);
  PutVarint(out, header.head_dim_k);
  PutVarint(out, header.head_dim_v);
  PutVarint(out, header.tokens);
  PutVarint(out, header.first_position);
  PutRope(out, header.rope);
  PutOtherRope(out, header.other_rope, header.layers);
  PutText(out, header.key);
  PutText(out, header.pipeline);
  out.PutBytes(header.raw_digest.bytes);
  if (calibrated) out.PutBytes(header.calibration);
  PutClasses(out, header.token_classes);
  PutTokenIds(out, header.token_ids);
  PutVarint(out, header.segments.size());
  for (const SegmentInfo& segment : header.segments) PutSegment(out, segment);
  out.Put(Xxh3(AsBytes(out.bytes())));
  return std::move(out).Take();
}

absl::StatusOr<PageHeader> ParsePageHeader(std::span<const uint8_t> bytes) {
  const auto damaged = [](absl::string_view what) {
    return absl::DataLossError(absl::StrCat("page header: ", what));
  };
  if (bytes.size() < kDigestBytes || bytes.size() > kMaxPageHeaderBytes) {
    return damaged(absl::StrCat(bytes.size(), " bytes cannot be one"));
  }
  const auto body = bytes.first(bytes.size() - kDigestBytes);
  if (ByteReader(bytes.last(kDigestBytes)).Get<uint64_t>() != Xxh3(body)) {
    return damaged("its digest does not match");
  }
  ByteReader in(body);
  if (in.Get<uint32_t>() != kMagic) return damaged("it does not begin with KVPS");
  if (const auto version = in.Get<uint16_t>(); version != kPageFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat("page header: format version ", version,
                                                      "; this build reads version ",
                                                      kPageFormatVersion));
  }
  PageHeader header;
  const auto flags = in.Get<uint8_t>();
  header.exact = (flags & kExact) != 0;
  header.fell_back = (flags & kFellBack) != 0;
  if ((flags & ~kAllFlags) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("page header: flags ", flags,
                                                      "; this build reads up to ", kAllFlags,
                                                      ": a later version wrote it"));
  }
  if (!GetGeometry(in, header)) return damaged("its geometry does not parse");
  if ((flags & kHasOtherRope) != 0 && !GetOtherRope(in, header.layers, header.other_rope)) {
    return damaged("its other RoPE does not parse");
  }
  if (!GetText(in, kMaxKeyBytes, header.key)) return damaged("its key does not parse");
  if (!GetText(in, kMaxPipelineBytes, header.pipeline)) return damaged("its pipeline is cut");
  GetArray(in, header.raw_digest.bytes);
  if ((flags & kHasCalibration) != 0) {
    GetArray(in, header.calibration);
    if (header.calibration == decltype(header.calibration){})
      return damaged("its calibration is zero");
  }
  if ((flags & kHasClasses) != 0 && !GetClasses(in, header.tokens, header.token_classes)) {
    return damaged("its token classes do not parse");
  }
  if ((flags & kHasTokenIds) != 0 && !GetTokenIds(in, header.tokens, header.token_ids)) {
    return damaged("its token ids are out of range or cut off");
  }
  uint64_t count = 0;
  if (!GetVarint(in, kMaxSegments, count)) return damaged("its number of segments is out of range");
  for (uint64_t i = 0; i < count; ++i) {
    if (!GetSegment(in, header.segments.emplace_back())) return damaged("its segments are cut");
  }
  if (!in.ok() || in.remaining() != 0) return damaged("its length does not fit its fields");
  if (const absl::Status status = Validate(header); !status.ok()) return damaged(status.message());
  return header;
}

uint64_t EncodedPage::StoredBytes() const {
  uint64_t bytes = header_bytes.size();
  for (const SharedBytes& segment : segments) bytes += segment.size();
  return bytes;
}

uint32_t LevelsOf(const PageHeader& header) {
  uint32_t levels = 0;
  for (const SegmentInfo& s : header.segments) levels = std::max<uint32_t>(levels, s.level + 1u);
  return levels;
}

size_t SegmentsForLevels(const PageHeader& header, uint32_t max_levels) {
  if (max_levels == 0) return header.segments.size();
  const auto beyond = [=](const SegmentInfo& s) { return s.level >= max_levels; };
  const auto first = std::find_if(header.segments.begin(), header.segments.end(), beyond);
  return static_cast<size_t>(first - header.segments.begin());
}

absl::Status VerifySegments(const PageHeader& header, std::span<const SharedBytes> segments) {
  if (segments.size() > header.segments.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(segments.size(), " segments for a page of ", header.segments.size()));
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    const SegmentInfo& s = header.segments[i];
    if (segments[i].size() == s.bytes && Xxh3(segments[i].span()) == s.digest) continue;
    return absl::DataLossError(absl::StrCat("segment ", i, " (layers from ", s.first_layer,
                                            ", level ", s.level, ") fails its digest"));
  }
  return absl::OkStatus();
}

}  // namespace kvstow
