#include "kernels/device/device_joint_codec.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/rate_codec.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/device/device_kernels.h"
#include "kernels/device/joint_memory.h"
#include "kernels/device/plane_batch.h"
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
using gpu::PlaneBatch;
using gpu::PlaneDecodeLaunch;

// Rows of a launch: what bounds its scratch memory, 6 bytes a value of a vector.
constexpr uint32_t kMostRows = 4096;
// Rows whose streams are decoded at once, which take 2 bytes a coefficient.
constexpr uint32_t kMostPlaneRows = 16384;

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
    const KvSpec& spec = coder_.spec();
    if (spec.rope.layout != RopeSpec::Layout::kNone && spec.rope.k_after_rope) {
      KVSTOW_ASSIGN_OR_RETURN(frequencies_, Send(RopeFrequencies(spec.rope, spec.head_dim_k)));
    }
    const auto table = gpu::MakePlaneTable(coder_.calibration().plane_tables(), levels());
    KVSTOW_ASSIGN_OR_RETURN(plane_table_, Send(std::vector{table}));
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
    for (const Batch& batch : BatchesOf(pages, kMostRows)) {
      for (size_t r = 0; r < runs_.size(); ++r)
        KVSTOW_RETURN_IF_ERROR(EncodeRun(pages, batch, r, runs, out));
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
    for (const Batch& batch : BatchesOf(pages, kMostPlaneRows))
      KVSTOW_RETURN_IF_ERROR(DecodeBatch(pages, batch));
    return absl::OkStatus();
  }

 private:
  using Buffer = std::shared_ptr<const DeviceBuffer>;
  // Pages of one length, one number of first tokens and of levels.
  using Batch = std::vector<size_t>;
  struct OnDevice {
    Buffer encode, decode, mean, sigma, weights;
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
  std::vector<Batch> BatchesOf(std::span<const Job> pages, uint32_t most_rows) const {
    std::map<std::array<uint32_t, 3>, std::vector<Batch>> batches;
    for (size_t i = 0; i < pages.size(); ++i) {
      std::vector<Batch>& alike = batches[{pages[i].tokens, FirstOf(pages[i]), LevelsOf(pages[i])}];
      const size_t most =
          std::clamp<size_t>(most_rows / pages[i].tokens, 1, size_t{gpu::kPagesALaunch});
      if (alike.empty() || alike.back().size() == most) alike.emplace_back();
      alike.back().push_back(i);
    }
    std::vector<Batch> out;
    for (auto& [key, alike] : batches) std::ranges::move(alike, std::back_inserter(out));
    return out;
  }

  // All but the memory of the launch.
  template <typename Job>
  JointLaunch LaunchOf(std::span<const Job> pages, std::span<const size_t> batch, size_t r,
                       bool encoding) const {
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
    launch.pairs =
        frequencies_ == nullptr ? 0 : static_cast<uint32_t>(frequencies_->size() / sizeof(double));
    launch.frequencies = At<double>(frequencies_);
    launch.magnitude = static_cast<float>(RopeMagnitude(spec.rope));
    launch.interleaved = spec.rope.layout == RopeSpec::Layout::kInterleaved;
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
    for (size_t i = 0; i < batch.size(); ++i) {
      launch.page[i] = engine_->AddressOf(*pages[batch[i]].raw);
      launch.first_position[i] = pages[batch[i]].first_position;
    }
    return launch;
  }

  // Room for the angles and both sides of the product.
  absl::StatusOr<std::shared_ptr<DeviceBuffer>> Scratch(JointLaunch& launch) const {
    const size_t widest = PaddedWidth(std::max(launch.width, launch.rank));
    const size_t angles = size_t{launch.rows()} * launch.pairs * sizeof(float);
    Places places;
    const size_t wide = places.Take(launch.rows() * widest * sizeof(float));
    const size_t narrow = places.Take(launch.rows() * widest * sizeof(uint16_t));
    const size_t cosines = places.Take(angles), sines = places.Take(angles);
    KVSTOW_ASSIGN_OR_RETURN(auto scratch, device_.Allocate(places.size() + 16));
    uint8_t* const at = engine_->AddressOf(*scratch);
    launch.wide = reinterpret_cast<float*>(at + wide);
    launch.narrow = reinterpret_cast<uint16_t*>(at + narrow);
    launch.cosines = reinterpret_cast<float*>(at + cosines);
    launch.sines = reinterpret_cast<float*>(at + sines);
    return scratch;
  }

  // First tokens of the run, as a page of them alone.
  size_t HeadBytes(const JointLaunch& launch) const {
    return launch.first > 0 ? launch.layers * LayerBytes(coder_.spec(), launch.first) : 0;
  }

  absl::Status EncodeRun(std::span<const JointEncodeJob> pages, const Batch& batch, size_t r,
                         std::vector<std::vector<std::vector<EncodedLevel>>>& runs,
                         std::vector<JointPage>& out) const {
    JointLaunch launch = LaunchOf(pages, std::span(batch), r, true);
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

  // What all runs of a batch decode from and through.
  struct Decoding {
    PlaneBatch planes;
    std::vector<size_t> coefficients;  // where those of each run begin
    std::vector<size_t> heads;         // the first tokens of each run, in what is sent beside
    size_t coefficient_count = 0, head_bytes = 0;
  };

  absl::Status DecodeBatch(std::span<const JointDecodeJob> pages, const Batch& batch) const {
    Decoding decoding;
    PlaneDecodeLaunch planes;
    planes.levels = levels(), planes.decoded = LevelsOf(pages[batch[0]]);
    planes.most_tokens = static_cast<uint32_t>(PlaneStride(StreamTokens()));
    planes.step = coder_.options().StepAt(planes.decoded - 1);
    for (size_t r = 0; r < runs_.size(); ++r)
      KVSTOW_RETURN_IF_ERROR(GatherRun(pages, batch, r, decoding));
    KVSTOW_ASSIGN_OR_RETURN(const PlaneBatch::Sent sent, decoding.planes.Send(device_));
    sent.Place(engine_->AddressOf(*sent.buffer), planes);
    KVSTOW_ASSIGN_OR_RETURN(const auto coefficients,
                            device_.Allocate(decoding.coefficient_count * sizeof(uint16_t) + 16));
    KVSTOW_ASSIGN_OR_RETURN(const Buffer refused, Send(std::vector<uint32_t>(batch.size())));
    planes.streams = decoding.planes.streams(), planes.table = At<gpu::PlaneTable>(plane_table_);
    planes.coefficients = reinterpret_cast<uint16_t*>(engine_->AddressOf(*coefficients));
    planes.refused = reinterpret_cast<uint32_t*>(engine_->AddressOf(*refused));

    std::shared_ptr<DeviceBuffer> scratch;
    KVSTOW_ASSIGN_OR_RETURN(const std::vector<JointLaunch> launches,
                            LaunchesOf(pages, batch, decoding, planes,
                                       engine_->AddressOf(*sent.buffer) + sent.beside, scratch));
    KVSTOW_RETURN_IF_ERROR(engine_->Decode(planes, launches));
    return CheckAll(batch, refused);
  }

  static absl::Status DamagedPage(size_t page, const absl::Status& why) {
    return absl::Status(why.code(), absl::StrCat("page ", page, " of the call: ", why.message()));
  }

  absl::Status CheckAll(const Batch& batch, const Buffer& refused) const {
    KVSTOW_ASSIGN_OR_RETURN(const SharedBytes answers, device_.Load(refused));
    for (size_t p = 0; p < batch.size(); ++p) {
      uint32_t damaged = 0;
      std::memcpy(&damaged, answers.data() + p * sizeof(damaged), sizeof(damaged));
      if (damaged == 0) continue;
      return DamagedPage(batch[p], absl::DataLossError("plane body: a stream does not end well"));
    }
    return absl::OkStatus();
  }

  // The launches of the product, run by run, of as many pages as the scratch memory has room for.
  // They share it.
  absl::StatusOr<std::vector<JointLaunch>> LaunchesOf(
      std::span<const JointDecodeJob> pages, const Batch& batch, const Decoding& decoding,
      const PlaneDecodeLaunch& planes, uint8_t* heads,
      std::shared_ptr<DeviceBuffer>& scratch) const {
    const size_t most = std::max<size_t>(kMostRows / pages[batch[0]].tokens, 1);
    std::vector<JointLaunch> out;
    for (size_t r = 0; r < runs_.size(); ++r) {
      for (size_t from = 0; from < batch.size(); from += most) {
        const auto part = std::span(batch).subspan(from, std::min(most, batch.size() - from));
        JointLaunch& launch = out.emplace_back(LaunchOf(pages, part, r, false));
        const size_t row = from * launch.coded();
        launch.narrow =
            planes.coefficients + decoding.coefficients[r] + row * PaddedWidth(launch.rank);
        launch.head = heads + decoding.heads[r] + from * HeadBytes(launch);
      }
    }
    JointLaunch largest = *std::ranges::max_element(out, {}, [](const JointLaunch& launch) {
      return size_t{launch.rows()} * PaddedWidth(std::max(launch.width, launch.rank));
    });
    KVSTOW_ASSIGN_OR_RETURN(scratch, Scratch(largest));
    for (JointLaunch& launch : out) {
      launch.wide = largest.wide;
      launch.cosines = largest.cosines, launch.sines = largest.sines;
    }
    return out;
  }

  // Adds the streams and the first tokens of a run of all pages.
  absl::Status GatherRun(std::span<const JointDecodeJob> pages, const Batch& batch, size_t r,
                         Decoding& decoding) const {
    const JointLaunch shape = LaunchOf(pages, std::span(batch).first(1), r, false);
    const size_t head = HeadBytes(shape);
    decoding.heads.push_back(decoding.head_bytes);
    decoding.coefficients.push_back(decoding.coefficient_count);
    gpu::PlaneJob job{.rank = shape.rank, .stride = PaddedWidth(shape.rank)};
    for (size_t p = 0; p < batch.size(); ++p) {
      job.page = static_cast<uint32_t>(p);
      job.coefficients = decoding.coefficient_count;
      const auto first = decoding.planes.AddBeside(head);
      if (const absl::Status read =
              GatherPage(pages[batch[p]], shape, r, job, first, decoding.planes);
          !read.ok()) {
        return DamagedPage(batch[p], read);
      }
      decoding.coefficient_count += size_t{shape.coded()} * job.stride;
      decoding.head_bytes += head;
    }
    return absl::OkStatus();
  }

  // Adds those of one page. `shape` is a launch of such pages.
  absl::Status GatherPage(const JointDecodeJob& page, const JointLaunch& shape, size_t r,
                          const gpu::PlaneJob& job, std::span<uint8_t> head,
                          PlaneBatch& planes) const {
    const CalibratedRun& calibrated = coder_.calibration().runs()[r];
    const Run run{{shape.first_layer, shape.layers}, page.tokens, page.first_position};
    std::vector<SharedBytes> bodies;
    for (size_t i = r; i < page.bodies.size(); i += runs_.size()) bodies.push_back(page.bodies[i]);
    KVSTOW_ASSIGN_OR_RETURN(const JointParts parts, coder_.Read(calibrated, run, bodies));
    if (shape.first > 0) {
      const Run first{run.layers, shape.first, page.first_position};
      KVSTOW_RETURN_IF_ERROR(
          coder_.first_tokens().Decode(first, parts.head, {run.layers, {0, shape.first}}, head));
    }
    if (shape.coded() == 0) return absl::OkStatus();
    PlaneLayout layout = coder_.LayoutOf(calibrated);
    Adapt(parts.tables, layout);
    std::vector<float> factors;
    for (const uint8_t step_class : parts.classes) factors.push_back(StepFactor(step_class));
    return planes.Add(job, shape.coded(), coder_.options().tokens_per_stream,
                      {layout.rows, layout.tilts, factors}, parts.planes);
  }

  uint32_t LevelsOf(const JointDecodeJob& page) const {
    return static_cast<uint32_t>(page.bodies.size() / runs_.size());
  }
  static uint32_t LevelsOf(const JointEncodeJob&) { return 0; }
  // Tokens of the longest stream.
  uint32_t StreamTokens() const {
    return std::min(coder_.options().tokens_per_stream, coder_.spec().page_tokens);
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
  Buffer frequencies_;  // of RoPE; null: K is not turned
  Buffer plane_table_;
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
  const uint32_t most = gpu::MostStreamTokens(coder.options().levels);
  if (std::min(coder.options().tokens_per_stream, spec.page_tokens) > most) {
    return absl::UnimplementedError(absl::StrCat("recipe '", recipe.text(),
                                                 "': devices take streams of at most ", most,
                                                 " tokens at ", coder.options().levels, " levels"));
  }
  auto codec = std::make_unique<GpuJointCodec>(device, std::move(engine), std::move(named),
                                               std::move(coder));
  KVSTOW_RETURN_IF_ERROR(codec->Open());
  return codec;
}

}  // namespace kvstow
