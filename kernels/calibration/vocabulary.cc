#include "kernels/calibration/vocabulary.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/calibration/calibration_fields.h"
#include "kernels/page/convert.h"
#include "kernels/page/half.h"

namespace kvstow {
namespace {

constexpr float kMostShare = 1.0f / 32;  // of the signatures' spread, at which a token is known
constexpr float kLargestHalf = 65504;
constexpr float kLargestCode = 127;

size_t ValuesOfV(const CalibrationShape& shape) {
  return size_t{shape.kv_heads} * shape.head_dim_v;
}

bool Within(std::span<const float> values, float largest) {
  return std::ranges::all_of(values, [=](float x) { return std::abs(x) <= largest; });
}

// Rounds column after column of [rows, columns] to 8 bits of its largest magnitude.
std::vector<int8_t> CodesOf(std::span<const float> values, size_t columns) {
  std::vector<float> largest(columns, std::numeric_limits<float>::min());
  for (size_t i = 0; i < values.size(); ++i) {
    largest[i % columns] = std::max(largest[i % columns], std::abs(values[i]));
  }
  std::vector<int8_t> codes(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    codes[i] = static_cast<int8_t>(std::lround(values[i] / largest[i % columns] * kLargestCode));
  }
  return codes;
}

bool SizesFit(uint32_t tokens, uint32_t signature, uint32_t features) {
  return tokens >= 1 && tokens <= kMaxVocabulary && signature >= 1 && signature <= kMaxSignature &&
         features >= 1 && features <= kMaxTokenFeatures;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Vocabulary>> Vocabulary::Make(const CalibrationShape& shape,
                                                                   const Parts& parts) {
  const size_t tokens = parts.tokens, v = ValuesOfV(shape);
  const size_t signature = v > 0 ? parts.projection.size() / v : 0;
  const size_t features = tokens > 0 ? parts.features.size() / tokens : 0;
  if (signature * v != parts.projection.size() || tokens * signature != parts.signatures.size() ||
      tokens * features != parts.features.size() || signature > kMaxSignature ||
      features > kMaxTokenFeatures ||
      !SizesFit(parts.tokens, static_cast<uint32_t>(signature), static_cast<uint32_t>(features))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the vocabulary's projection, signatures and features do not fit each other or V of the "
        "pages: a token has 1 to ",
        kMaxSignature, " values of a signature and 1 to ", kMaxTokenFeatures, " features"));
  }
  if (!Within(parts.projection, std::numeric_limits<float>::max()) ||
      !Within(parts.signatures, kLargestHalf) ||
      !Within(parts.features, std::numeric_limits<float>::max())) {
    return absl::InvalidArgumentError(
        "a value of the vocabulary is not finite, or a signature is beyond fp16");
  }
  std::shared_ptr<Vocabulary> out(new Vocabulary);
  out->tokens_ = parts.tokens;
  out->signature_ = static_cast<uint32_t>(signature);
  out->features_ = static_cast<uint32_t>(features);
  out->projection_ = parts.projection;
  for (const float x : parts.signatures) out->halves_.push_back(FloatToHalf(x));
  out->codes_ = CodesOf(parts.features, features);
  out->Index(v);
  return out;
}

void Vocabulary::Index(size_t v_width) {
  project_ = PackedMatrix(v_width, signature_);
  for (size_t i = 0; i < signature_; ++i) {
    project_.SetColumn(i, std::span(projection_).subspan(i * v_width, v_width));
  }
  signatures_.resize(halves_.size());
  std::ranges::transform(halves_, signatures_.begin(), HalfToFloat);
  double spread = 0;
  for (size_t i = 0; i < signature_; ++i) {
    double sum = 0, squares = 0;
    for (size_t t = 0; t < tokens_; ++t) {
      const double value = signatures_[t * signature_ + i];
      sum += value, squares += value * value;
    }
    spread += (squares - sum * sum / tokens_) / tokens_;
  }
  most_distance_ = static_cast<float>(spread) * kMostShare;
  for (uint32_t t = 0; t < tokens_; ++t) by_first_.emplace_back(signatures_[t * signature_], t);
  std::ranges::sort(by_first_);
}

TokenId Vocabulary::Nearest(const float* signature) const {
  float best = most_distance_;
  TokenId found = kUnknownToken;
  const auto near = [&](const auto& entry) {
    const float away = entry.first - signature[0];
    return away * away < best;
  };
  const auto look = [&](TokenId token) {
    float sum = 0;
    for (size_t i = 0; i < signature_ && sum < best; ++i) {
      const float away = signatures_[token * signature_ + i] - signature[i];
      sum += away * away;
    }
    if (sum < best) best = sum, found = token;
  };
  // Outward from where the first value stands, until that alone is too far away.
  auto right = std::ranges::lower_bound(by_first_, std::pair(signature[0], TokenId{0}));
  auto left = right;
  for (bool more = true; more;) {
    more = false;
    if (right != by_first_.end() && near(*right)) look((right++)->second), more = true;
    if (left != by_first_.begin() && near(*std::prev(left))) look((--left)->second), more = true;
  }
  return found;
}

std::vector<TokenId> Vocabulary::Find(const KvSpec& spec, std::span<const uint8_t> raw,
                                      uint32_t tokens) const {
  std::vector<TokenId> out(tokens, kUnknownToken);
  const size_t width = SlabValues(spec, Part::kV, 1);
  std::vector<float> v(tokens * width), signatures(tokens * signature_);
  const uint8_t* const from = raw.data() + SlabOffset(spec, 0, Part::kV, tokens);
  if (!LoadFloats(spec.dtype, from, v.size(), v.data())) return out;
  MultiplyRows(v.data(), tokens, project_, {0, signature_}, signatures.data(), signature_);
  for (uint32_t t = 0; t < tokens; ++t) out[t] = Nearest(signatures.data() + t * signature_);
  return out;
}

void Vocabulary::Features(std::span<const TokenId> ids, float* out) const {
  for (const TokenId id : ids) {
    const bool known = id < tokens_;
    for (size_t i = 0; i < features_; ++i) *out++ = known ? codes_[id * features_ + i] : 0;
    *out++ = known ? 1 : 0;
  }
}

void Vocabulary::Put(ByteWriter& out) const {
  out.Put(tokens_);
  out.Put(signature_);
  out.Put(features_);
  PutFloats(projection_, out);
  PutHalves(halves_, out);
  out.PutBytes({reinterpret_cast<const uint8_t*>(codes_.data()), codes_.size()});
}

absl::StatusOr<std::shared_ptr<const Vocabulary>> Vocabulary::Read(const CalibrationShape& shape,
                                                                   ByteReader& in) {
  std::shared_ptr<Vocabulary> out(new Vocabulary);
  out->tokens_ = in.Get<uint32_t>();
  out->signature_ = in.Get<uint32_t>();
  out->features_ = in.Get<uint32_t>();
  const size_t v = ValuesOfV(shape);
  if (!in.ok() || v == 0 || !SizesFit(out->tokens_, out->signature_, out->features_)) {
    return absl::DataLossError("its sizes are out of range");
  }
  if (!ReadFloats(in, out->signature_ * v, out->projection_)) {
    return absl::DataLossError("its projection is cut off or not finite");
  }
  const auto halves = in.GetBytes(size_t{2} * out->tokens_ * out->signature_);
  const auto codes = in.GetBytes(size_t{out->tokens_} * out->features_);
  if (!in.ok()) return absl::DataLossError("its tokens are cut off");
  std::vector<float> signatures(halves.size() / 2);
  if (!LoadHalves(halves.data(), signatures.size(), signatures.data())) {
    return absl::DataLossError("a signature is not finite");
  }
  out->halves_.resize(signatures.size());
  std::ranges::copy(halves, reinterpret_cast<uint8_t*>(out->halves_.data()));
  out->codes_.assign(reinterpret_cast<const int8_t*>(codes.data()),
                     reinterpret_cast<const int8_t*>(codes.data()) + codes.size());
  out->Index(v);
  return out;
}

std::vector<TokenId> HeaderIds(std::vector<TokenId> ids) {
  const auto unknown = [](TokenId id) { return id == kUnknownToken; };
  if (std::ranges::all_of(ids, unknown)) ids.clear();
  return ids;
}

const VocabularyTables* VocabularyOf(const Calibration& calibration) {
  return static_cast<const VocabularyTables*>(calibration.Tables(kVocabularySection));
}

CalibrationSection VocabularySection(const Vocabulary& vocabulary,
                                     std::span<const VocabularyRunData> runs) {
  ByteWriter body;
  vocabulary.Put(body);
  for (const VocabularyRunData& run : runs) {
    PutFloats(run.scales, body);
    PutHalves(run.halves, body);
  }
  const bool known =
      std::ranges::all_of(runs, [](const auto& run) { return !run.importance.empty(); });
  for (const VocabularyRunData& run : runs) {
    if (known) PutFloats(run.importance, body);
  }
  return {std::string(kVocabularySection), std::move(body).Take()};
}

absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParseVocabularyTables(
    const CalibrationShape& shape, std::span<const uint8_t> body) {
  ByteReader in(body);
  auto out = std::make_shared<VocabularyTables>();
  KVSTOW_ASSIGN_OR_RETURN(out->vocabulary, Vocabulary::Read(shape, in));
  const size_t rows = out->vocabulary->width();
  for (uint32_t i = 0; i < shape.runs(); ++i) {
    const size_t width = shape.WidthOfRun(i);
    std::vector<float> scales;
    if (in.remaining() < rows * (sizeof(float) + 2 * width) || !ReadFloats(in, rows, scales, 0)) {
      return absl::DataLossError(absl::StrCat("the means of run ", i, " are cut off"));
    }
    PackedMatrix& means = out->runs.emplace_back().means = PackedMatrix(rows, width);
    const bool read = ReadRows(in, scales, width, [&](size_t row, std::span<const float> values) {
      means.SetRow(row, values);
    });
    if (!read) return absl::DataLossError(absl::StrCat("a mean of run ", i, " is not finite"));
  }
  for (VocabularyRun& run : out->runs) {
    if (&run == out->runs.data() && in.remaining() == 0) break;
    if (!ReadFloats(in, out->vocabulary->features(), run.importance)) {
      return absl::DataLossError("its importance of tokens is cut off or not finite");
    }
  }
  if (in.remaining() != 0) return absl::DataLossError("bytes follow its end");
  return out;
}

}  // namespace kvstow
