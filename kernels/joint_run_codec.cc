#include "kernels/joint_run_codec.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/channel_rows.h"
#include "kernels/convert.h"
#include "kernels/entropy/bit_pack.h"
#include "kernels/entropy/plane_coder.h"
#include "kernels/first_tokens.h"
#include "kernels/joint_vectors.h"
#include "kernels/quantize/dead_zone.h"
#include "kernels/squared_error.h"
#include "kernels/token_importance.h"
#include "kernels/transform/transpose.h"

namespace kvstow {
namespace {

constexpr uint32_t kChunkTokens = 192;  // vectors that are in memory at once
constexpr uint32_t kGainEvery = 4;      // 16 tokens; gains are measured on this share of them
static_assert(kChunkTokens % (kGainEvery * kRansLanes) == 0);
// A coefficient that spreads less than this share of the finest step is never coded: it is 0.
constexpr float kLeastSpread = 0.125f;
constexpr uint32_t kMaxJointLevels = 8;

struct JointOptions {
  float step = 0;
  float focus = 0;
  bool classed = false;  // step classes are always there, whatever the calibration knows
  uint32_t levels = 0, tokens_per_stream = 0;
  float StepAt(uint32_t level) const { return std::ldexp(step, levels - 1 - level); }
};

bool HasClasses(const CalibratedRun& run, const JointOptions& options) {
  return options.classed || (options.focus > 0 && !run.importance.weights.empty());
}

// How many leading coefficients of a run are coded: all, where step classes are told from them.
size_t CodedRank(const CalibratedRun& run, const JointOptions& options) {
  size_t rank = run.rank();
  if (HasClasses(run, options)) return rank;
  while (rank > 1 && run.sigma[rank - 1] < kLeastSpread * options.step) --rank;
  return rank;
}

// The plane coder of one run.
PlaneCoder MakeCoder(const Calibration& calibration, const PlaneLookups& lookups,
                     const CalibratedRun& run, const JointOptions& options) {
  const size_t rank = CodedRank(run, options);
  PlaneLayout layout{.block_ends = {static_cast<uint32_t>(rank)},
                     .levels = options.levels,
                     .tokens_per_stream = options.tokens_per_stream};
  for (const float sigma : std::span(run.sigma).first(rank)) {
    const float row = kPlaneUnitRow + 4 * std::log2(sigma / options.StepAt(0));
    layout.rows.push_back(static_cast<int16_t>(std::lround(std::clamp(row, -999.0f, 999.0f))));
  }
  return PlaneCoder(std::move(layout), calibration.plane_tables(), lookups);
}

// What the tokens of one run became: magnitudes at the finest step, and energy classes.
struct Quantized {
  uint32_t tokens = 0;
  std::vector<int32_t> q;         // [coded rank, PlaneStride(tokens)]
  std::vector<uint8_t> energies;  // and some for what is behind the tokens
  std::vector<uint8_t> classes;   // of steps; empty where all steps are the same
  // Coefficients of every kGainEvery-th vector of kRansLanes tokens; 0 behind the tokens.
  std::vector<float> sample;
};

class JointRunCodec final : public RunCodec {
 public:
  JointRunCodec(const KvSpec& spec, std::shared_ptr<const Calibration> calibration,
                JointOptions options, FirstTokens first_tokens)
      : spec_(spec),
        calibration_(std::move(calibration)),
        options_(options),
        first_tokens_(std::move(first_tokens)),
        lookups_(std::make_unique<const PlaneLookups>(calibration_->plane_tables())) {}

  bool exact() const override { return false; }
  uint32_t levels() const override { return options_.levels; }

  absl::StatusOr<std::vector<EncodedLevel>> Encode(const Run& run,
                                                   std::span<const uint8_t> raw) const override {
    const CalibratedRun* const calibrated = Find(run);
    if (calibrated == nullptr) return absl::InternalError("a run that the calibration lacks");
    const uint32_t first = first_tokens_.Count(run);
    const std::optional<std::string> head = first_tokens_.Encode(run, raw);
    Quantized quantized;
    if (!head.has_value() ||
        !Quantize(*calibrated, run, raw, {first, run.tokens - first}, quantized)) {
      return absl::OutOfRangeError(
          absl::StrCat("layers from ", run.layers.first,
                       " on have NaN, Inf or values far outside the calibration's range"));
    }
    const PlaneCoder coder = MakeCoder(*calibration_, *lookups_, *calibrated, options_);
    const std::vector<double> gains = Gains(coder, quantized, run);
    std::vector<std::string> bodies(levels());
    if (quantized.tokens > 0)
      bodies = coder.Encode(quantized.q, quantized.energies, quantized.tokens);
    bodies[0].insert(0, *head + PackClasses(quantized.classes));
    std::vector<EncodedLevel> out(levels());
    for (uint32_t level = 0; level < levels(); ++level)
      out[level] = {SharedBytes::Take(std::move(bodies[level])), gains[level]};
    return out;
  }

  absl::Status Decode(const Run& run, std::span<const SharedBytes> bodies, LayerRange wanted,
                      std::span<uint8_t> raw) const override {
    return DecodeTokens(run, bodies, wanted, {0, run.tokens}, raw);
  }

  absl::Status DecodeTokens(const Run& run, std::span<const SharedBytes> bodies, LayerRange wanted,
                            TokenRange tokens, std::span<uint8_t> raw) const override {
    const CalibratedRun* const calibrated = Find(run);
    if (calibrated == nullptr) {
      return absl::DataLossError(absl::StrCat("layers from ", run.layers.first,
                                              " on are no run of the page's calibration"));
    }
    if (bodies.empty() || bodies.size() > levels()) {
      return absl::DataLossError(
          absl::StrCat(bodies.size(), " levels where the recipe has ", levels()));
    }
    const uint32_t first = first_tokens_.Count(run);
    std::vector<std::span<const uint8_t>> planes;
    for (const SharedBytes& body : bodies) planes.push_back(body.span());
    const size_t head = first_tokens_.Bytes(run);
    if (planes[0].size() < head) {
      return absl::DataLossError(absl::StrCat("level 0 has ", planes[0].size(),
                                              " bytes; its first tokens alone need ", head));
    }
    KVSTOW_RETURN_IF_ERROR(first_tokens_.Decode(run, planes[0].data(), {wanted, tokens}, raw));
    planes[0] = planes[0].subspan(head);
    std::vector<uint8_t> classes;
    if (HasClasses(*calibrated, options_)) {
      classes.resize(run.tokens - first);
      const size_t bytes = PackedBytes(classes.size(), kStepClassBits);
      if (planes[0].size() < bytes)
        return absl::DataLossError("level 0 is cut within its step classes");
      UnpackBits(planes[0].data(), classes.size(), kStepClassBits, classes.data());
      planes[0] = planes[0].subspan(bytes);
    }
    return DecodeOthers(*calibrated, run, planes, classes, first, {wanted, tokens}, raw);
  }

 private:
  static std::string PackClasses(std::span<const uint8_t> classes) {
    std::string out(PackedBytes(classes.size(), kStepClassBits), '\0');
    PackBits(classes.data(), classes.size(), kStepClassBits,
             reinterpret_cast<uint8_t*>(out.data()));
    return out;
  }

  const CalibratedRun* Find(const Run& run) const {
    const uint32_t index = run.layers.first / calibration_->shape().layers_per_run;
    if (index >= calibration_->runs().size()) return nullptr;
    const CalibratedRun& found = calibration_->runs()[index];
    const bool same =
        found.first_layer == run.layers.first && found.layer_count == run.layers.count;
    return same ? &found : nullptr;
  }

  bool Quantize(const CalibratedRun& calibrated, const Run& run, std::span<const uint8_t> raw,
                TokenRange tokens, Quantized& out) const {
    const size_t rank = CodedRank(calibrated, options_), width = calibrated.width();
    const size_t stride = PlaneStride(tokens.count);
    const JointVectors vectors(spec_, run);
    std::vector<float> minus_mean(calibrated.mean);
    for (float& mean : minus_mean) mean = -mean;
    out.tokens = tokens.count;
    out.q.resize(stride * rank);
    out.energies.assign(stride, kPlaneEnergies / 2);
    if (HasClasses(calibrated, options_)) out.classes.resize(tokens.count);
    out.sample.resize(rank * SampleStride(stride));
    const size_t most = std::min(kChunkTokens, tokens.count);
    std::vector<float> x(most * width), by_token(most * rank), c(PlaneStride(most) * rank);
    for (uint32_t done = 0; done < tokens.count; done += kChunkTokens) {
      const uint32_t n = std::min(kChunkTokens, tokens.count - done);
      if (!vectors.Gather(raw, {tokens.first + done, n}, x.data())) return false;
      for (uint32_t t = 0; t < n; ++t) AddRow(minus_mean.data(), width, x.data() + t * width);
      MultiplyRows(x.data(), n, calibrated.encode, {0, rank}, by_token.data(), rank);
      for (uint32_t t = 0; t < n; ++t) {
        const std::span<float> row(by_token.data() + t * rank, rank);
        if (!out.classes.empty()) {
          float log_step =
              ForetoldLogStep(calibrated.importance, row, calibrated.sigma, options_.focus);
          if (!run.log_steps.empty()) log_step += run.log_steps[tokens.first + done + t];
          const uint8_t step_class = StepClass(log_step);
          out.classes[done + t] = step_class;
          for (float& value : row) value /= StepFactor(step_class);
        }
        out.energies[done + t] = EnergyClass(row, calibrated.sigma);
      }
      const float largest = LargestMagnitude(by_token.data(), n * rank) / options_.step;
      if (!(largest < static_cast<float>(kPlaneMaxMagnitude - 2))) return false;
      QuantizeChunk(by_token, n, rank, done, stride, c, out);
    }
    return true;
  }

  // Of coefficients [n, rank] of the tokens from `done` on; `c` is scratch.
  void QuantizeChunk(std::span<const float> by_token, uint32_t n, size_t rank, uint32_t done,
                     size_t stride, std::vector<float>& c, Quantized& out) const {
    const size_t padded = PlaneStride(n);
    std::fill(c.begin(), c.end(), 0);
    Transpose(by_token.data(), n, rank, rank, c.data(), padded);
    for (size_t i = 0; i < rank; ++i) {
      const float* const row = c.data() + i * padded;
      DeadZoneQuantize(row, padded, 1 / options_.step, kPlaneDeadZone, kPlaneMaxMagnitude - 1,
                       out.q.data() + i * stride + done);
      float* const sample = out.sample.data() + i * SampleStride(stride) + done / kGainEvery;
      for (size_t t = 0; t < padded; t += kGainEvery * kRansLanes)
        std::copy_n(row + t, kRansLanes, sample + t / kGainEvery);
    }
  }
  static size_t SampleStride(size_t stride) {
    return PlaneStride((stride + kGainEvery - 1) / kGainEvery);
  }

  // What each level takes off the error, on the sampled tokens: see SegmentInfo. First tokens are
  // in the base.
  std::vector<double> Gains(const PlaneCoder& coder, const Quantized& quantized,
                            const Run& run) const {
    const double whole = run.tokens * run.layers.count * (spec_.head_dim_v > 0 ? 2.0 : 1.0);
    std::vector<double> gains(levels());
    const double energy = SquaredSum(quantized.sample.data(), quantized.sample.size());
    std::vector<float> decoded(quantized.sample.size());
    double left = 1;
    const size_t stride = PlaneStride(quantized.tokens);
    const auto finest = SamplePlanes<int32_t>(quantized.q, stride, kGainEvery);
    const auto energies = SamplePlanes<uint8_t>(quantized.energies, stride, kGainEvery);
    for (uint32_t level = 0; level < levels(); ++level) {
      std::vector<int32_t> q(finest);
      for (int32_t& x : q) x = CoarserLevel(x, levels() - 1 - level);
      const float step = options_.StepAt(level);
      coder.Dequantize(q, energies, static_cast<uint32_t>(energies.size()), level, {&step, 1},
                       decoded);
      const double error =
          SquaredError(quantized.sample.data(), decoded.data(), quantized.sample.size());
      const double now = energy > 0 ? error / energy : 0;
      gains[level] = whole * std::max(left - now, 0.0);
      left = std::min(left, now);
    }
    return gains;
  }

  absl::Status DecodeOthers(const CalibratedRun& calibrated, const Run& run,
                            std::span<const std::span<const uint8_t>> planes,
                            std::span<const uint8_t> classes, uint32_t first,
                            const PageRange& wanted, std::span<uint8_t> raw) const {
    // Tokens are counted from the first that is coded here.
    const uint32_t end = wanted.tokens.first + wanted.tokens.count;
    if (end <= first) return absl::OkStatus();
    const uint32_t begin = std::max(wanted.tokens.first, first) - first;
    const uint32_t tokens = run.tokens - first, stream = options_.tokens_per_stream;
    const TokenRange streams = WholeStreams({begin, end - first - begin}, tokens, stream);
    const uint32_t chunk = std::max(kChunkTokens / stream, 1u) * stream;
    const PlaneCoder coder = MakeCoder(*calibration_, *lookups_, calibrated, options_);
    const JointVectors vectors(
        spec_, {wanted.layers, wanted.tokens.count, run.first_position + wanted.tokens.first});
    const size_t rank = coder.width();
    const auto level = static_cast<uint32_t>(planes.size() - 1);
    const float step = options_.StepAt(level);
    std::vector<int32_t> q;
    std::vector<uint8_t> energies;
    std::vector<float> c, by_token, x;
    for (uint32_t done = 0; done < streams.count; done += chunk) {
      const TokenRange here{streams.first + done, std::min(chunk, streams.count - done)};
      const size_t stride = PlaneStride(here.count);
      q.resize(stride * rank), c.resize(q.size()), energies.resize(here.count);
      KVSTOW_RETURN_IF_ERROR(coder.Decode(planes, tokens, here, q, energies));
      coder.Dequantize(q, energies, here.count, level, {&step, 1}, c);
      const uint32_t from = std::max(here.first, begin);
      const uint32_t n = std::min(here.first + here.count, end - first) - from;
      by_token.resize(n * rank), x.resize(n * vectors.width());
      Transpose(c.data() + (from - here.first), rank, n, stride, by_token.data(), rank);
      for (size_t t = 0; !classes.empty() && t < n; ++t) {
        const float factor = StepFactor(classes[from + t]);
        for (float& value : std::span(by_token).subspan(t * rank, rank)) value *= factor;
      }
      Inverse(calibrated, by_token, rank, run, wanted.layers, x);
      vectors.Scatter(x.data(), {first + from - wanted.tokens.first, n}, raw);
    }
    return absl::OkStatus();
  }

  // x = c D + mean, for the columns of the wanted layers.
  void Inverse(const CalibratedRun& calibrated, std::span<const float> c, size_t rank,
               const Run& run, LayerRange wanted, std::span<float> x) const {
    const size_t n = c.size() / rank, stride = x.size() / n;
    const SparseRows rows = ListNonZeros(c.data(), n, rank);
    const size_t before = wanted.first - run.layers.first;
    const size_t k = SlabValues(spec_, Part::kK, 1), v = SlabValues(spec_, Part::kV, 1);
    const Columns parts[] = {{before * k, wanted.count * k},
                             {run.layers.count * k + before * v, wanted.count * v}};
    size_t at = 0;
    for (const Columns& columns : parts) {
      MultiplySparseRows(rows, calibrated.decode, columns, x.data() + at, stride);
      for (size_t t = 0; t < n; ++t) {
        float* const row = x.data() + t * stride + at;
        AddRow(calibrated.mean.data() + columns.first, columns.count, row);
      }
      at += columns.count;
    }
  }

  const KvSpec spec_;
  const std::shared_ptr<const Calibration> calibration_;
  const JointOptions options_;
  const FirstTokens first_tokens_;
  const std::unique_ptr<const PlaneLookups> lookups_;
};

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeJoint(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration, bool classed) {
  KVSTOW_RETURN_IF_ERROR(
      arguments.Only({"run", "step", "levels", "stream", "blob", "focus", "first"}));
  KVSTOW_ASSIGN_OR_RETURN(const CalibrationNeed need, ReadCalibrationNeed(arguments));
  JointOptions options{.classed = classed};
  KVSTOW_ASSIGN_OR_RETURN(const double step, arguments.Real("step", 2, 1e-3, 1e3));
  KVSTOW_ASSIGN_OR_RETURN(const double focus, arguments.Real("focus", kDefaultFocus, 0, 2));
  options.step = static_cast<float>(step), options.focus = static_cast<float>(focus);
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t first, arguments.Number("first", kFirstTokens, 0, 64));
  KVSTOW_ASSIGN_OR_RETURN(options.levels, arguments.Number("levels", 4, 1, kMaxJointLevels));
  KVSTOW_ASSIGN_OR_RETURN(options.tokens_per_stream,
                          arguments.Number("stream", 256, kRansLanes, kMaxPageTokens));
  if (options.tokens_per_stream % kRansLanes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("op 'joint': stream=", options.tokens_per_stream,
                                                   " must be a multiple of ", kRansLanes));
  }
  if (calibration == nullptr || !calibration->Has(kJointSection) ||
      calibration->shape() != ShapeFor(spec, need.layers_per_run)) {
    return absl::InvalidArgumentError(
        "op 'joint': the calibration was made for another model or another run");
  }
  KVSTOW_ASSIGN_OR_RETURN(FirstTokens first_tokens, FirstTokens::Make(spec, first));
  return std::make_unique<JointRunCodec>(spec, std::move(calibration), options,
                                         std::move(first_tokens));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeJointRunCodec(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration) {
  return MakeJoint(arguments, spec, std::move(calibration), false);
}

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeClassedJointRunCodec(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration) {
  return MakeJoint(arguments, spec, std::move(calibration), true);
}

}  // namespace kvstow
