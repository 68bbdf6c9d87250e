#include "service/pages/device_coder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/calibration/query_means.h"
#include "kernels/calibration/vocabulary.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/device/device_kernels.h"
#include "kernels/device/device_pages.h"

namespace kvstow {
namespace {

constexpr size_t kMostPlainCodecs = 64;  // they are small

// The fields that codecs read.
KvSpec WithoutNames(const KvSpec& spec) {
  KvSpec out;
  out.layers = spec.layers, out.kv_heads = spec.kv_heads;
  out.head_dim_k = spec.head_dim_k, out.head_dim_v = spec.head_dim_v;
  out.dtype = spec.dtype, out.page_tokens = spec.page_tokens;
  out.rope = spec.rope, out.other_rope = spec.other_rope;
  return out;
}

// Matrices both ways in bf16, vectors, mean queries, and a vocabulary with its projection. What
// cuBLAS has is the device's, once.
uint64_t BytesOnDevice(const Calibration& calibration) {
  uint64_t bytes = 0;
  for (const CalibratedRun& run : calibration.runs()) {
    bytes += 4 * uint64_t{run.width()} * run.rank() + 4 * (run.width() + run.rank());
  }
  if (const QueryMeans* const queries = QueryMeansOf(calibration)) {
    const uint64_t values = uint64_t{queries->heads} * calibration.shape().head_dim_k;
    bytes += 4 * values * queries->layers.size();
  }
  if (const VocabularyTables* const tables = VocabularyOf(calibration)) {
    const Vocabulary& of = *tables->vocabulary;
    bytes += uint64_t{of.tokens()} * (4 * of.signature() + of.features());
    bytes += of.projection().size_bytes();
    for (const VocabularyRun& run : tables->runs)
      bytes += 2 * uint64_t{of.width()} * run.means.columns();
  }
  return bytes;
}

// What the page's raw bytes are on the device until the call ends; nobody owns them.
SharedBytes Borrowed(std::span<const uint8_t> bytes) {
  return SharedBytes(std::shared_ptr<const void>(bytes.data(), [](const void*) {}), bytes);
}

// Bodies of one or more whole levels of all runs; UNIMPLEMENTED when the page has others.
absl::StatusOr<std::vector<SharedBytes>> WholeLevelsOf(
    const Calibration& calibration, const PageHeader& header,
    std::span<const std::optional<SharedBytes>> segments) {
  const size_t runs = calibration.runs().size();
  if (segments.empty() || segments.size() % runs != 0 || segments.size() > header.segments.size() ||
      header.segments.size() % runs != 0) {
    return absl::UnimplementedError("the page does not end with a level");
  }
  std::vector<SharedBytes> bodies;
  for (size_t i = 0; i < header.segments.size(); ++i) {
    const SegmentInfo& s = header.segments[i];
    const CalibratedRun& run = calibration.runs()[i % runs];
    if (s.first_layer != run.first_layer || s.layer_count != run.layer_count ||
        s.level != i / runs || s.token_class != 0) {
      return absl::UnimplementedError("the page has other runs than its calibration");
    }
    if (i >= segments.size()) continue;
    if (!segments[i].has_value() || segments[i]->size() != s.bytes) {
      return absl::UnimplementedError("a segment of the page is missing");
    }
    bodies.push_back(*segments[i]);
  }
  return bodies;
}

// The recipe of a page, with its calibration named in full.
absl::StatusOr<Recipe> RecipeOf(const PageHeader& header) {
  KVSTOW_ASSIGN_OR_RETURN(const Recipe recipe, ParseRecipe(header.pipeline));
  return NameCalibration(recipe, HexOf(header.calibration));
}

uint64_t RawBytesOf(const DeviceCoder::PageOfCodec& page) {
  return PageBytes(page.codec->spec(), page.page.tokens);
}

// Returns whether a device may code the page as its codec would.
bool Suits(const DeviceCoder::PageOfCodec& of, uint64_t least_bytes) {
  const auto& [codec, page, header, bodies] = of;
  const uint64_t bytes = RawBytesOf(of);
  if (page.tokens < 1 || page.tokens > codec->spec().page_tokens || bytes < least_bytes) {
    return false;
  }
  if (page.raw.empty()) {
    return header != nullptr && SameGeometry(*header, codec->spec()) &&
           header->tokens == page.tokens;
  }
  return page.raw.size() == bytes;
}

// Other errors say nothing of the device.
bool IsOfTheDevice(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsInternal(status);
}

// One of the decodes that go at once, for a scope.
class DecodePlace {
 public:
  DecodePlace(std::atomic<uint32_t>& decodes, uint32_t most)
      : decodes_(decodes), taken_(decodes.fetch_add(1, std::memory_order_relaxed) < most) {}
  ~DecodePlace() { decodes_.fetch_sub(1, std::memory_order_relaxed); }
  DecodePlace(const DecodePlace&) = delete;
  DecodePlace& operator=(const DecodePlace&) = delete;
  bool taken() const { return taken_; }

 private:
  std::atomic<uint32_t>& decodes_;
  const bool taken_;
};

bool IsWhole(const PageHeader& header, PageRange wanted) {
  const auto all = [](uint32_t have, uint32_t first, uint32_t count) {
    return first == 0 && (count == 0 || count == have);
  };
  return all(header.layers, wanted.layers.first, wanted.layers.count) &&
         all(header.tokens, wanted.tokens.first, wanted.tokens.count);
}

}  // namespace

DeviceCoder& DeviceCoder::None() {
  static DeviceCoder none(nullptr, NoCalibrations(), {});
  return none;
}

uint64_t DeviceCoder::codec_bytes() const {
  MutexLock lock(mu_);
  uint64_t bytes = 0;
  for (const Entry& entry : entries_) bytes += entry.bytes;
  return bytes;
}

bool DeviceCoder::Rests() const {
  MutexLock lock(mu_);
  return options_.clock->Now() < rests_until_;
}

void DeviceCoder::Failed(const char* what, const absl::Status& status) {
  Log().warn("the GPU {}; the CPU does for {} s: {}", what,
             std::chrono::duration_cast<std::chrono::seconds>(options_.rest).count(),
             std::string(status.message()));
  MutexLock lock(mu_);
  rests_until_ = options_.clock->Now() + options_.rest;
}

bool DeviceCoder::TakesTogether(const Codec& codec, const Codec& other) {
  return codec.recipe() == other.recipe() &&
         WithoutNames(codec.spec()) == WithoutNames(other.spec());
}

DeviceCoder::Entry* DeviceCoder::Find(absl::string_view pipeline, const KvSpec& spec) {
  const auto at = std::ranges::find_if(
      entries_, [&](const Entry& e) { return e.pipeline == pipeline && e.spec == spec; });
  return at == entries_.end() ? nullptr : &*at;
}

void DeviceCoder::DropForgotten() {
  std::erase_if(entries_,
                [&](const Entry& e) { return calibrations_.Find(e.calibration) == nullptr; });
}

bool DeviceCoder::TakePlace(Entry entry) {
  uint64_t bytes = entry.bytes;
  for (const Entry& other : entries_) bytes += other.bytes;
  while (bytes > options_.most_codec_bytes) {
    const auto oldest = std::ranges::min_element(entries_, {}, &Entry::used);
    if (oldest == entries_.end() || entry.used - oldest->used < options_.rest) return false;
    bytes -= oldest->bytes;
    entries_.erase(oldest);
  }
  entries_.push_back(std::move(entry));
  return true;
}

absl::StatusOr<DeviceCoder::OnDevice> DeviceCoder::Make(
    const Recipe& recipe, const KvSpec& spec, std::shared_ptr<const Calibration> calibration) {
  auto made = std::make_shared<Made>();
  made->calibration = std::move(calibration);
  KVSTOW_ASSIGN_OR_RETURN(made->codec, MakeDeviceJointCodec(*device_, recipe, spec, calibrations_));
  return OnDevice(std::move(made));
}

DeviceCoder::OnDevice DeviceCoder::CodecOf(const Recipe& recipe, const KvSpec& of) {
  if (recipe.ops().empty()) return nullptr;
  const KvSpec spec = WithoutNames(of);
  const auto needs = CalibrationNeeds(recipe);
  if (!needs.ok() || !needs->has_value() || (*needs)->section != kJointSection) return nullptr;
  const auto calibration = calibrations_.Choose(spec, **needs);
  // A codec that leaves its calibration open may have chosen another one.
  if (!calibration.ok() || HexOf((*calibration)->id()) != (*needs)->blob) return nullptr;
  {
    MutexLock lock(mu_);
    const Time now = options_.clock->Now();
    if (now < rests_until_) return nullptr;
    DropForgotten();
    if (Entry* const entry = Find(recipe.pipeline(), spec); entry != nullptr) {
      entry->used = now;
      return entry->codec;
    }
    if (!TakePlace({.pipeline = recipe.pipeline(),
                    .spec = spec,
                    .calibration = (*calibration)->id(),
                    .bytes = BytesOnDevice(**calibration),
                    .used = now,
                    .codec = nullptr})) {
      return nullptr;
    }
  }
  const absl::StatusOr<OnDevice> made = Make(recipe, spec, *calibration);
  const bool has_none = absl::IsUnimplemented(made.status());
  if (has_none) {
    Log().info("pages of '{}' are coded by the CPU: {}", recipe.pipeline(),
               std::string(made.status().message()));
  } else if (!made.ok()) {
    Failed("has no room for a calibration", made.status());
  }
  MutexLock lock(mu_);
  Entry* const entry = Find(recipe.pipeline(), spec);
  if (entry == nullptr) return made.ok() ? *made : nullptr;
  if (made.ok()) return entry->codec = *made;
  entry->bytes = 0;
  if (!has_none) entries_.erase(entries_.begin() + (entry - entries_.data()));
  return nullptr;
}

std::shared_ptr<DeviceCodec> DeviceCoder::PlainCodecOf(const PageHeader& header, const KvSpec& of) {
  if (header.exact || header.calibration != CalibrationId{}) return nullptr;
  const KvSpec spec = WithoutNames(of);
  MutexLock lock(mu_);
  for (const PlainEntry& entry : plain_) {
    if (entry.pipeline == header.pipeline && entry.spec == spec) return entry.codec;
  }
  if (plain_.size() >= kMostPlainCodecs) plain_.clear();
  PlainEntry& entry = plain_.emplace_back();
  entry.pipeline = header.pipeline, entry.spec = spec;
  const auto recipe = ParseRecipe(header.pipeline);
  if (!recipe.ok() || !recipe->policy_ops().empty()) return nullptr;
  auto codec = device_->kernels().NewCodec(*recipe, spec);
  if (codec.ok()) entry.codec = *std::move(codec);
  return entry.codec;
}

bool DeviceCoder::Recodes(const Codec& codec, const PageHeader& header) {
  return on() && SameGeometry(header, codec.spec()) &&
         PageBytes(codec.spec(), header.tokens) >= options_.least_page_bytes && Takes(codec) &&
         PlainCodecOf(header, codec.spec()) != nullptr;
}

absl::StatusOr<std::shared_ptr<const DeviceBuffer>> DeviceCoder::Stage(const PageOfCodec& page) {
  if (!page.page.raw.empty()) return device_->Store(Borrowed(page.page.raw));
  const KvSpec& spec = page.codec->spec();
  const std::shared_ptr<DeviceCodec> codec = PlainCodecOf(*page.header, spec);
  if (codec == nullptr) return absl::UnimplementedError("the device has no such codec");
  KVSTOW_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceBuffer> raw,
                          device_->Allocate(PageBytes(spec, page.page.tokens)));
  const std::vector<std::optional<SharedBytes>> bodies(page.bodies.begin(), page.bodies.end());
  KVSTOW_RETURN_IF_ERROR(DecodeOnDevice({*device_, *codec}, *page.header, bodies, {}, *raw));
  return std::shared_ptr<const DeviceBuffer>(raw);
}

absl::Status DeviceCoder::EncodeTogether(const Made& made, std::span<const PageOfCodec> pages,
                                         std::span<const size_t> which,
                                         std::vector<std::optional<EncodedPage>>& out) {
  std::vector<std::shared_ptr<const DeviceBuffer>> buffers;
  std::vector<JointEncodeJob> jobs;
  std::vector<size_t> staged;
  for (const size_t i : which) {
    const PageToEncode& page = pages[i].page;
    auto raw = Stage(pages[i]);
    if (!raw.ok() && IsOfTheDevice(raw.status())) return raw.status();
    if (!raw.ok()) continue;  // this page alone is the CPU's
    buffers.push_back(*std::move(raw));
    jobs.push_back({page.tokens, page.first_position, buffers.back().get()});
    staged.push_back(i);
  }
  KVSTOW_ASSIGN_OR_RETURN(std::vector<JointPage> coded, made.codec->Encode(jobs));
  for (size_t k = 0; k < staged.size(); ++k) {
    if (!coded[k].coded) continue;
    const PageOfCodec& page = pages[staged[k]];
    EncodedPage& to = out[staged[k]].emplace();
    to.header = NewPageHeader(*page.codec, page.page);
    to.header.calibration = made.calibration->id();
    to.header.token_ids = std::move(coded[k].token_ids);
    to.header.segments = std::move(coded[k].segments);
    to.header_bytes = SharedBytes::Take(SerializePageHeader(to.header));
    to.segments = std::move(coded[k].bodies);
  }
  return absl::OkStatus();
}

std::vector<std::optional<EncodedPage>> DeviceCoder::Encode(std::span<const PageOfCodec> pages) {
  std::vector<std::optional<EncodedPage>> out(pages.size());
  if (!on()) return out;
  std::vector<std::pair<OnDevice, std::vector<size_t>>> calls;
  for (size_t i = 0; i < pages.size(); ++i) {
    if (!Suits(pages[i], options_.least_page_bytes)) continue;
    const OnDevice made = CodecOf(*pages[i].codec);
    if (made == nullptr) continue;
    const auto same = std::ranges::find_if(calls, [&](auto& call) { return call.first == made; });
    std::vector<size_t>& which =
        same == calls.end() ? calls.emplace_back(made, std::vector<size_t>()).second : same->second;
    which.push_back(i);
  }
  for (const auto& [made, which] : calls) {
    for (size_t first = 0; first < which.size() && !Rests();) {
      size_t end = first;
      uint64_t bytes = 0;
      while (end < which.size() && end - first < kMostPages) {
        bytes += RawBytesOf(pages[which[end]]);
        if (end > first && bytes > options_.most_batch_bytes) break;
        ++end;
      }
      const absl::Status coded =
          EncodeTogether(*made, pages, std::span(which).subspan(first, end - first), out);
      if (!coded.ok()) Failed("did not code pages", coded);
      first = end;
    }
  }
  return out;
}

absl::Status DeviceCoder::TryDecode(const KvSpec& spec, const PageHeader& header,
                                    std::span<const std::optional<SharedBytes>> segments,
                                    PageRange wanted, DeviceBuffer& raw) {
  const auto is_other = [](uint8_t c) { return c != 0; };
  if (header.exact || !IsWhole(header, wanted) || !SameGeometry(header, spec) ||
      std::ranges::any_of(header.token_classes, is_other)) {
    return absl::UnimplementedError("devices decode whole pages without token classes");
  }
  KVSTOW_ASSIGN_OR_RETURN(const Recipe recipe, RecipeOf(header));
  const OnDevice made = CodecOf(recipe, spec);
  if (made == nullptr || made->calibration->id() != header.calibration) {
    return absl::UnimplementedError("the device has no such codec");
  }
  KVSTOW_ASSIGN_OR_RETURN(const std::vector<SharedBytes> bodies,
                          WholeLevelsOf(*made->calibration, header, segments));
  const JointDecodeJob job{.tokens = header.tokens,
                           .first_position = header.first_position,
                           .bodies = bodies,
                           .raw = &raw,
                           .token_ids = header.token_ids};
  return made->codec->Decode({&job, 1});
}

bool DeviceCoder::MayDecode(const PageHeader& header, PageRange wanted) const {
  return on() && header.calibration != CalibrationId{} && IsWhole(header, wanted) &&
         PageBytes(header.Geometry(), header.tokens) >= options_.least_page_bytes && !Rests();
}

bool DeviceCoder::DecodeThere(const KvSpec& spec, const PageHeader& header,
                              std::span<const std::optional<SharedBytes>> segments,
                              PageRange wanted, DeviceBuffer& raw) {
  if (!MayDecode(header, wanted)) return false;
  const DecodePlace place(decodes_, options_.most_decodes);
  return place.taken() && DecodeInto(spec, header, segments, wanted, raw);
}

bool DeviceCoder::DecodeInto(const KvSpec& spec, const PageHeader& header,
                             std::span<const std::optional<SharedBytes>> segments, PageRange wanted,
                             DeviceBuffer& raw) {
  const absl::Status status = TryDecode(spec, header, segments, wanted, raw);
  if (IsOfTheDevice(status)) Failed("did not decode a page", status);
  return status.ok();
}

bool DeviceCoder::Decode(const KvSpec& spec, const PageHeader& header,
                         std::span<const std::optional<SharedBytes>> segments, PageRange wanted,
                         std::span<uint8_t> out) {
  if (!MayDecode(header, wanted) || out.size() != PageBytes(header.Geometry(), header.tokens)) {
    return false;
  }
  const DecodePlace place(decodes_, options_.most_decodes);
  if (!place.taken()) return false;
  const auto raw = device_->Allocate(out.size());
  if (!raw.ok()) {
    Failed("has no room for a page", raw.status());
    return false;
  }
  if (!DecodeInto(spec, header, segments, wanted, **raw)) return false;
  const absl::StatusOr<SharedBytes> bytes = device_->Load(*raw);
  if (!bytes.ok() || bytes->size() != out.size()) {
    Failed("did not return a page", bytes.status());
    return false;
  }
  std::ranges::copy(bytes->span(), out.begin());
  return true;
}

}  // namespace kvstow
