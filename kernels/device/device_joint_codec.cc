#include "kernels/device/device_joint_codec.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/rate_codec.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/device/device_kernels.h"
#include "kernels/device/joint_memory.h"
#include "kernels/methods/joint_coder.h"
#include "kernels/methods/joint_vectors.h"
#include "kernels/methods/run_codec.h"
#include "kernels/page/half.h"

namespace kvstow {
namespace {

using gpu::JointAnswer;
using gpu::JointLaunch;
using gpu::PaddedWidth;
using gpu::Places;

// Rows of a launch: what bounds its scratch memory, 8 bytes a value of a vector.
constexpr uint32_t kMostRows = 4096;

template <typename T>
std::span<const uint8_t> BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}

class GpuJointCodec final : public DeviceJointCodec {
 public:
  GpuJointCodec(Device& device, std::unique_ptr<JointEngine> engine, Recipe recipe,
                JointCoder coder)
      : device_(device),
        engine_(std::move(engine)),
        recipe_(std::move(recipe)),
        coder_(std::move(coder)) {}

  // Sends the calibration to the device.
  absl::Status Open() {
    for (const CalibratedRun& run : coder_.calibration().runs()) {
      const size_t rank = coder_.CodedRank(run), width = run.width();
      OnDevice& there = runs_.emplace_back();
      KVSTOW_ASSIGN_OR_RETURN(there.encode, Send(gpu::Bf16Rows(run.encode, width, rank)));
      KVSTOW_ASSIGN_OR_RETURN(there.decode, Send(gpu::Bf16Rows(run.decode, rank, width)));
      KVSTOW_ASSIGN_OR_RETURN(there.mean, Send(run.mean));
      KVSTOW_ASSIGN_OR_RETURN(there.sigma, Send(run.sigma));
      if (!coder_.HasClasses(run)) continue;
      KVSTOW_ASSIGN_OR_RETURN(there.weights, Send(run.importance.weights));
    }
    return absl::OkStatus();
  }

  const Recipe& recipe() const override { return recipe_; }
  uint32_t levels() const override { return coder_.options().levels; }

  absl::StatusOr<std::vector<JointPage>> Encode(std::span<const JointEncodeJob> pages) override {
    KVSTOW_RETURN_IF_ERROR(Check(pages));
    std::vector<JointPage> out(pages.size(), {.coded = true});
    std::vector<std::vector<std::vector<EncodedLevel>>> runs(pages.size());
    for (const Batch& batch : BatchesOf(pages)) {
      KVSTOW_ASSIGN_OR_RETURN(const Angles angles, AnglesOf(pages, batch));
      for (size_t r = 0; r < runs_.size(); ++r) {
        KVSTOW_RETURN_IF_ERROR(EncodeRun(pages, batch, r, angles, runs, out));
      }
    }
    for (size_t i = 0; i < pages.size(); ++i) Finish(runs[i], out[i]);
    return out;
  }

  absl::Status Decode(std::span<const JointDecodeJob> pages) override {
    KVSTOW_RETURN_IF_ERROR(Check(pages));
    for (size_t i = 0; i < pages.size(); ++i) {
      const size_t bodies = pages[i].bodies.size();
      if (bodies > 0 && bodies % runs_.size() == 0 && bodies <= runs_.size() * levels()) continue;
      return absl::DataLossError(absl::StrCat("page ", i, " of the call: ", bodies,
                                              " bodies are no whole levels of ", runs_.size(),
                                              " runs"));
    }
    for (const Batch& batch : BatchesOf(pages)) {
      KVSTOW_ASSIGN_OR_RETURN(const Angles angles, AnglesOf(pages, batch));
      for (size_t r = 0; r < runs_.size(); ++r) {
        KVSTOW_RETURN_IF_ERROR(DecodeRun(pages, batch, r, angles));
      }
    }
    return absl::OkStatus();
  }

 private:
  using Buffer = std::shared_ptr<const DeviceBuffer>;
  using Batch = std::vector<size_t>;  // pages of one length and one number of first tokens
  struct OnDevice {
    Buffer encode, decode, mean, sigma, weights;
  };
  struct Angles {
    Buffer cosines, sines;
    uint32_t pairs = 0;
  };

  template <typename T>
  absl::StatusOr<Buffer> Send(const std::vector<T>& values) const {
    return device_.Store(SharedBytes::CopyOf(BytesOf(values)));
  }
  template <typename T>
  const T* At(const Buffer& buffer) const {
    return buffer == nullptr ? nullptr : reinterpret_cast<const T*>(engine_->AddressOf(*buffer));
  }

  template <typename Job>
  absl::Status Check(std::span<const Job> pages) const {
    const KvSpec& spec = coder_.spec();
    for (size_t i = 0; i < pages.size(); ++i) {
      const Job& page = pages[i];
      const bool fits = page.tokens >= 1 && page.tokens <= spec.page_tokens &&
                        page.first_position <= UINT64_MAX - page.tokens && page.raw != nullptr &&
                        page.raw->size() >= PageBytes(spec, page.tokens) &&
                        engine_->AddressOf(*page.raw) != nullptr;
      if (fits) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "page ", i, " of the call: ", page.tokens, " tokens at position ", page.first_position,
          ", or a buffer that is too small or not of ", device_.name()));
    }
    return absl::OkStatus();
  }

  // The run as a page of its first tokens alone has it.
  template <typename Job>
  uint32_t FirstOf(const Job& page) const {
    return coder_.first_tokens().Count({{0, 1}, page.tokens, page.first_position});
  }

  template <typename Job>
  std::vector<Batch> BatchesOf(std::span<const Job> pages) const {
    std::map<std::pair<uint32_t, uint32_t>, std::vector<Batch>> batches;
    for (size_t i = 0; i < pages.size(); ++i) {
      std::vector<Batch>& alike = batches[{pages[i].tokens, FirstOf(pages[i])}];
      const size_t most =
          std::clamp<size_t>(kMostRows / pages[i].tokens, 1, size_t{gpu::kPagesALaunch});
      if (alike.empty() || alike.back().size() == most) alike.emplace_back();
      alike.back().push_back(i);
    }
    std::vector<Batch> out;
    for (auto& [key, alike] : batches) std::ranges::move(alike, std::back_inserter(out));
    return out;
  }

  // Returns the angles of all rows of the batch.
  template <typename Job>
  absl::StatusOr<Angles> AnglesOf(std::span<const Job> pages, const Batch& batch) const {
    const KvSpec& spec = coder_.spec();
    Angles angles;
    std::vector<float> cosines, sines;
    for (const size_t i : batch) {
      const RopeRotation rotation(spec.rope, spec.head_dim_k, pages[i].first_position,
                                  pages[i].tokens);
      const size_t first = FirstOf(pages[i]) * rotation.pairs();
      const auto append = [first](std::span<const float> all, std::vector<float>& to) {
        to.insert(to.end(), all.begin() + static_cast<ptrdiff_t>(first), all.end());
      };
      append(rotation.cosines(), cosines);
      append(rotation.sines(), sines);
      angles.pairs = static_cast<uint32_t>(rotation.pairs());
    }
    KVSTOW_ASSIGN_OR_RETURN(angles.cosines, Send(cosines));
    KVSTOW_ASSIGN_OR_RETURN(angles.sines, Send(sines));
    return angles;
  }

  // All but the memory of the launch.
  template <typename Job>
  JointLaunch LaunchOf(std::span<const Job> pages, const Batch& batch, size_t r,
                       const Angles& angles, bool encoding) const {
    const KvSpec& spec = coder_.spec();
    const CalibratedRun& run = coder_.calibration().runs()[r];
    const OnDevice& there = runs_[r];
    const Job& any = pages[batch[0]];
    JointLaunch launch;
    launch.pages = static_cast<uint32_t>(batch.size());
    launch.tokens = any.tokens, launch.first = FirstOf(any);
    launch.first_layer = run.first_layer, launch.layers = run.layer_count;
    launch.heads = spec.kv_heads, launch.dim[0] = spec.head_dim_k, launch.dim[1] = spec.head_dim_v;
    launch.layer_bytes = LayerBytes(spec, any.tokens), launch.dtype = spec.dtype;
    launch.width = static_cast<uint32_t>(run.width());
    launch.rank = static_cast<uint32_t>(coder_.CodedRank(run));
    launch.pairs = angles.pairs, launch.magnitude = static_cast<float>(RopeMagnitude(spec.rope));
    launch.interleaved = spec.rope.layout == RopeSpec::Layout::kInterleaved;
    launch.cosines = At<float>(angles.cosines), launch.sines = At<float>(angles.sines);
    launch.matrix = At<uint16_t>(encoding ? there.encode : there.decode);
    launch.mean = At<float>(there.mean), launch.sigma = At<float>(there.sigma);
    launch.weights = At<float>(there.weights);
    launch.features = static_cast<uint32_t>(std::min<size_t>(run.rank(), kImportanceFeatures));
    launch.quarter =
        static_cast<uint32_t>(std::clamp<size_t>(run.rank() / 4, 1, coder_.CodedRank(run)));
    launch.telling = static_cast<uint32_t>(
        std::min(EnergyCoefficients(run.sigma, coder_.options().step), coder_.CodedRank(run)));
    launch.focus = coder_.options().focus;
    launch.inverse_step = 1 / coder_.options().step;
    launch.sampled = static_cast<uint32_t>(QuantizedRun::SampleStride(launch.coded()));
    for (size_t i = 0; i < batch.size(); ++i)
      launch.page[i] = engine_->AddressOf(*pages[batch[i]].raw);
    return launch;
  }

  // Room for both sides of the product.
  absl::StatusOr<std::shared_ptr<DeviceBuffer>> Scratch(JointLaunch& launch) const {
    const size_t widest = PaddedWidth(std::max(launch.width, launch.rank));
    Places places;
    const size_t wide = places.Take(launch.rows() * widest * sizeof(float));
    const size_t narrow = places.Take(launch.rows() * widest * sizeof(uint16_t));
    KVSTOW_ASSIGN_OR_RETURN(auto scratch, device_.Allocate(places.size() + 16));
    uint8_t* const at = engine_->AddressOf(*scratch);
    launch.wide = reinterpret_cast<float*>(at + wide);
    launch.narrow = reinterpret_cast<uint16_t*>(at + narrow);
    return scratch;
  }

  // First tokens of the run, as a page of them alone.
  size_t HeadBytes(const JointLaunch& launch) const {
    return launch.first > 0 ? launch.layers * LayerBytes(coder_.spec(), launch.first) : 0;
  }

  absl::Status EncodeRun(std::span<const JointEncodeJob> pages, const Batch& batch, size_t r,
                         const Angles& angles,
                         std::vector<std::vector<std::vector<EncodedLevel>>>& runs,
                         std::vector<JointPage>& out) const {
    JointLaunch launch = LaunchOf(pages, batch, r, angles, true);
    KVSTOW_ASSIGN_OR_RETURN(const auto scratch, Scratch(launch));
    const JointAnswer answer(launch, HeadBytes(launch));
    KVSTOW_ASSIGN_OR_RETURN(const auto room, device_.Allocate(answer.bytes));
    answer.Place(engine_->AddressOf(*room), launch);
    KVSTOW_RETURN_IF_ERROR(engine_->Encode(launch));
    KVSTOW_ASSIGN_OR_RETURN(const SharedBytes bytes, device_.Load(room));
    const CalibratedRun& calibrated = coder_.calibration().runs()[r];
    for (uint32_t p = 0; p < launch.pages; ++p) {
      uint32_t refused = 0;
      std::memcpy(&refused, bytes.data() + answer.refused + p * sizeof(refused), sizeof(refused));
      const JointEncodeJob& page = pages[batch[p]];
      const Run run{{launch.first_layer, launch.layers}, page.tokens, page.first_position};
      const size_t head = HeadBytes(launch);
      const std::optional<std::string> first =
          coder_.first_tokens().Encode({run.layers, launch.first, page.first_position},
                                       bytes.span().subspan(answer.head + p * head, head));
      JointPage& coded = out[batch[p]];
      coded.coded = coded.coded && refused == 0 && first.has_value();
      if (!coded.coded) continue;
      const QuantizedRun quantized = gpu::QuantizedOf(launch, answer, bytes.data(), p);
      runs[batch[p]].push_back(coder_.Encode(calibrated, run, *first, quantized));
    }
    return absl::OkStatus();
  }

  absl::Status DecodeRun(std::span<const JointDecodeJob> pages, const Batch& batch, size_t r,
                         const Angles& angles) const {
    JointLaunch launch = LaunchOf(pages, batch, r, angles, false);
    KVSTOW_ASSIGN_OR_RETURN(const auto scratch, Scratch(launch));
    const size_t row_values = PaddedWidth(launch.rank), head = HeadBytes(launch);
    std::vector<uint16_t> narrow(launch.rows() * row_values);
    std::vector<uint8_t> heads(launch.pages * head);
    for (uint32_t p = 0; p < launch.pages; ++p) {
      const absl::Status read =
          ReadPage(pages[batch[p]], launch, r,
                   std::span(narrow).subspan(size_t{p} * launch.coded() * row_values,
                                             launch.coded() * row_values),
                   std::span(heads).subspan(p * head, head));
      if (read.ok()) continue;
      return absl::Status(read.code(),
                          absl::StrCat("page ", batch[p], " of the call: ", read.message()));
    }
    KVSTOW_ASSIGN_OR_RETURN(const Buffer coefficients, Send(narrow));
    KVSTOW_ASSIGN_OR_RETURN(const Buffer first, Send(heads));
    // The engine reads them only.
    launch.narrow = reinterpret_cast<uint16_t*>(engine_->AddressOf(*coefficients));
    launch.head = engine_->AddressOf(*first);
    return engine_->Decode(launch);
  }

  // Coefficients of one page as bf16, and its first tokens.
  absl::Status ReadPage(const JointDecodeJob& page, const JointLaunch& launch, size_t r,
                        std::span<uint16_t> narrow, std::span<uint8_t> head) const {
    const CalibratedRun& calibrated = coder_.calibration().runs()[r];
    const Run run{{launch.first_layer, launch.layers}, page.tokens, page.first_position};
    std::vector<SharedBytes> bodies;
    for (size_t i = r; i < page.bodies.size(); i += runs_.size()) bodies.push_back(page.bodies[i]);
    KVSTOW_ASSIGN_OR_RETURN(const JointParts parts, coder_.Read(calibrated, run, bodies));
    if (launch.first > 0) {
      const Run first{run.layers, launch.first, page.first_position};
      KVSTOW_RETURN_IF_ERROR(
          coder_.first_tokens().Decode(first, parts.head, {run.layers, {0, launch.first}}, head));
    }
    if (launch.coded() == 0) return absl::OkStatus();
    std::vector<float> by_token;
    JointReader reader(coder_, calibrated, parts, launch.coded());
    const TokenRange all{0, launch.coded()};
    KVSTOW_RETURN_IF_ERROR(reader.Read(all, all, by_token));
    const size_t stride = PaddedWidth(launch.rank);
    for (size_t t = 0; t < launch.coded(); ++t) {
      for (size_t i = 0; i < launch.rank; ++i)
        narrow[t * stride + i] = FloatToBf16(by_token[t * launch.rank + i]);
    }
    return absl::OkStatus();
  }

  // Runs to segments: level after level.
  void Finish(std::vector<std::vector<EncodedLevel>>& runs, JointPage& out) const {
    if (!out.coded) return;
    for (uint32_t level = 0; level < levels(); ++level) {
      for (size_t r = 0; r < runs.size(); ++r) {
        EncodedLevel& coded = runs[r][level];
        const CalibratedRun& run = coder_.calibration().runs()[r];
        out.segments.push_back({.first_layer = static_cast<uint16_t>(run.first_layer),
                                .layer_count = static_cast<uint16_t>(run.layer_count),
                                .level = static_cast<uint8_t>(level),
                                .bytes = static_cast<uint32_t>(coded.body.size()),
                                .gain = static_cast<float>(coded.gain),
                                .digest = Xxh3(coded.body.span())});
        out.bodies.push_back(std::move(coded.body));
      }
    }
  }

  Device& device_;
  const std::unique_ptr<JointEngine> engine_;
  const Recipe recipe_;
  const JointCoder coder_;
  std::vector<OnDevice> runs_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceJointCodec>> MakeDeviceJointCodec(
    Device& device, const Recipe& recipe, const KvSpec& spec,
    const CalibrationStore& calibrations) {
  KVSTOW_RETURN_IF_ERROR(Validate(spec));
  KVSTOW_ASSIGN_OR_RETURN(const auto needs, CalibrationNeeds(recipe));
  if (recipe.ops().size() != 1 || !needs.has_value() || needs->section != kJointSection) {
    return absl::UnimplementedError(
        absl::StrCat("recipe '", recipe.text(), "': this codec of devices has `joint` alone"));
  }
  KVSTOW_ASSIGN_OR_RETURN(const auto target, RateTargetOf(recipe));
  if (target.has_value() || IsFloat8(spec.dtype)) {
    return absl::UnimplementedError(absl::StrCat(
        "recipe '", recipe.text(), "': devices take a step, and pages of F16, BF16 and F32"));
  }
  KVSTOW_ASSIGN_OR_RETURN(auto engine, device.kernels().NewJointEngine());
  KVSTOW_ASSIGN_OR_RETURN(auto calibration, calibrations.Choose(spec, *needs));
  KVSTOW_ASSIGN_OR_RETURN(Recipe named, NameCalibration(recipe, HexOf(calibration->id())));
  KVSTOW_ASSIGN_OR_RETURN(JointCoder coder, JointCoder::Make(OpArguments(named.ops()[0]), spec,
                                                             std::move(calibration), false));
  auto codec = std::make_unique<GpuJointCodec>(device, std::move(engine), std::move(named),
                                               std::move(coder));
  KVSTOW_RETURN_IF_ERROR(codec->Open());
  return codec;
}

}  // namespace kvstow
