#include "kernels/methods/joint_coder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/calibration/token_importance.h"
#include "kernels/calibration/vocabulary.h"
#include "kernels/entropy/bit_pack.h"
#include "kernels/methods/joint_vectors.h"
#include "kernels/page/squared_error.h"
#include "kernels/transform/transpose.h"

namespace kvstow {
namespace {

// A coefficient that spreads less than this share of the finest step is never coded: it is 0.
constexpr float kLeastSpread = 0.125f;
constexpr uint32_t kMaxJointLevels = 8;

std::string PackClasses(std::span<const uint8_t> classes) {
  std::string out(PackedBytes(classes.size(), kStepClassBits), '\0');
  PackBits(classes.data(), classes.size(), kStepClassBits, reinterpret_cast<uint8_t*>(out.data()));
  return out;
}

}  // namespace

absl::StatusOr<JointCoder> JointCoder::Make(const OpArguments& arguments, const KvSpec& spec,
                                            std::shared_ptr<const Calibration> calibration,
                                            bool classed) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only(
      {"run", "step", "levels", "stream", "blob", "focus", "first", "firstbits", "adapt"}));
  KVSTOW_ASSIGN_OR_RETURN(const CalibrationNeed need, ReadCalibrationNeed(arguments));
  JointOptions options{.classed = classed};
  KVSTOW_ASSIGN_OR_RETURN(const double step, arguments.Real("step", 2, 1e-3, 1e3));
  KVSTOW_ASSIGN_OR_RETURN(const double focus, arguments.Real("focus", kDefaultFocus, 0, 2));
  options.step = static_cast<float>(step), options.focus = static_cast<float>(focus);
  KVSTOW_ASSIGN_OR_RETURN(options.levels, arguments.Number("levels", 4, 1, kMaxJointLevels));
  KVSTOW_ASSIGN_OR_RETURN(options.tokens_per_stream,
                          arguments.Number("stream", 256, kRansLanes, kMaxPageTokens));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t adapt, arguments.Number("adapt", 0, 0, 1));
  options.adapt = adapt != 0;
  if (options.tokens_per_stream % kRansLanes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("op 'joint': stream=", options.tokens_per_stream,
                                                   " must be a multiple of ", kRansLanes));
  }
  if (calibration == nullptr || !calibration->Has(kJointSection) ||
      calibration->shape() != ShapeFor(spec, need.layers_per_run)) {
    return absl::InvalidArgumentError(
        "op 'joint': the calibration was made for another model or another run");
  }
  KVSTOW_ASSIGN_OR_RETURN(FirstTokens first_tokens, FirstTokens::Make(arguments, spec));
  return JointCoder(spec, std::move(calibration), options, std::move(first_tokens));
}

JointCoder::JointCoder(const KvSpec& spec, std::shared_ptr<const Calibration> calibration,
                       const JointOptions& options, FirstTokens first_tokens)
    : spec_(spec),
      calibration_(std::move(calibration)),
      options_(options),
      first_tokens_(std::move(first_tokens)),
      lookups_(std::make_shared<const PlaneLookups>(calibration_->plane_tables())) {
  if (!options_.adapt) return;
  fit_ = std::make_shared<const PageTablesFit>(calibration_->plane_tables(), options_.levels);
}

const CalibratedRun* JointCoder::Find(LayerRange layers) const {
  const uint32_t index = layers.first / calibration_->shape().layers_per_run;
  if (index >= calibration_->runs().size()) return nullptr;
  const CalibratedRun& found = calibration_->runs()[index];
  const bool same = found.first_layer == layers.first && found.layer_count == layers.count;
  return same ? &found : nullptr;
}

bool JointCoder::HasClasses(const CalibratedRun& run) const {
  return options_.classed || (options_.focus > 0 && !run.importance.weights.empty());
}

size_t JointCoder::CodedRank(const CalibratedRun& run) const {
  size_t rank = run.rank();
  // A token that is not in the vocabulary spreads further than sigma says.
  if (HasClasses(run) || calibration_->Has(kVocabularySection)) return rank;
  while (rank > 1 && run.sigma[rank - 1] < kLeastSpread * options_.step) --rank;
  return rank;
}

PlaneLayout JointCoder::LayoutOf(const CalibratedRun& run) const {
  const size_t rank = CodedRank(run);
  PlaneLayout layout{
      .classed = true, .levels = options_.levels, .tokens_per_stream = options_.tokens_per_stream};
  for (const float sigma : std::span(run.sigma).first(rank)) {
    const float row = kPlaneUnitRow + 4 * std::log2(sigma / options_.StepAt(0));
    layout.rows.push_back(static_cast<int16_t>(std::lround(std::clamp(row, -999.0f, 999.0f))));
  }
  return layout;
}

PlaneCoder JointCoder::CoderOf(const CalibratedRun& run, const PageTables& tables) const {
  PlaneLayout layout = LayoutOf(run);
  Adapt(tables, layout);
  return PlaneCoder(std::move(layout), calibration_->plane_tables(), *lookups_);
}

std::vector<EncodedLevel> JointCoder::Encode(const CalibratedRun& calibrated, const Run& run,
                                             absl::string_view head,
                                             const QuantizedRun& quantized) const {
  const auto energies = std::span(quantized.energies).first(quantized.tokens);
  const PlaneOrder order = OrderByClass(energies, options_.tokens_per_stream);
  const std::vector<int32_t> q = InOrder<int32_t>(order, quantized.q);
  PageTables tables;
  if (options_.adapt && quantized.tokens > 0) tables = fit_->Fit(LayoutOf(calibrated), q, order);
  const PlaneCoder coder = CoderOf(calibrated, tables);
  std::vector<std::string> planes(options_.levels);
  if (quantized.tokens > 0) planes = coder.Encode(q, energies, quantized.tokens);
  return Assemble(run, {head, quantized.classes, tables}, std::move(planes),
                  ErrorsOf(coder, quantized));
}

// First tokens are in the base.
std::vector<EncodedLevel> JointCoder::Assemble(const Run& run, const Beside& beside,
                                               std::vector<std::string> planes,
                                               const Errors& errors) const {
  std::string before = absl::StrCat(beside.head, PackClasses(beside.classes));
  if (options_.adapt && run.tokens > first_tokens_.Count(run)) PutPageTables(beside.tables, before);
  planes[0].insert(0, before);
  const double whole = run.tokens * run.layers.count * (spec_.head_dim_v > 0 ? 2.0 : 1.0);
  double left = 1;
  std::vector<EncodedLevel> out(options_.levels);
  for (uint32_t level = 0; level < options_.levels; ++level) {
    const double now = errors.energy > 0 ? errors.left[level] / errors.energy : 0;
    out[level] = {SharedBytes::Take(std::move(planes[level])), whole * std::max(left - now, 0.0)};
    left = std::min(left, now);
  }
  return out;
}

// Finds what each level leaves of the sampled tokens. These come by class among themselves, so a
// row of tables is nearly that of their stream.
JointCoder::Errors JointCoder::ErrorsOf(const PlaneCoder& coder,
                                        const QuantizedRun& quantized) const {
  Errors errors{.energy = SquaredSum(quantized.sample.data(), quantized.sample.size()), .left = {}};
  std::vector<float> decoded(quantized.sample.size());
  const size_t stride = PlaneStride(quantized.tokens);
  std::vector<size_t> vectors;
  for (size_t v = 0; v < stride / kRansLanes; v += kGainEvery) vectors.push_back(v);
  const auto energies = TakeVectors<uint8_t>(quantized.energies, stride, vectors);
  const auto count = static_cast<uint32_t>(energies.size());
  const PlaneOrder order = OrderByClass(energies, count);
  const auto sampled = TakeVectors<int32_t>(quantized.q, stride, vectors);
  const std::vector<int32_t> finest = InOrder<int32_t>(order, sampled);
  const std::vector<float> sample = InOrder<float>(order, quantized.sample);
  for (uint32_t level = 0; level < options_.levels; ++level) {
    std::vector<int32_t> q(finest);
    for (int32_t& x : q) x = CoarserLevel(x, options_.levels - 1 - level);
    const float step = options_.StepAt(level);
    coder.Dequantize(q, order.shifts, count, level, {&step, 1}, decoded);
    errors.left.push_back(SquaredError(sample.data(), decoded.data(), sample.size()));
  }
  return errors;
}

absl::StatusOr<JointParts> JointCoder::Read(const CalibratedRun& calibrated, const Run& run,
                                            std::span<const SharedBytes> bodies) const {
  if (bodies.empty() || bodies.size() > options_.levels) {
    return absl::DataLossError(
        absl::StrCat(bodies.size(), " levels where the recipe has ", options_.levels));
  }
  JointParts parts;
  for (const SharedBytes& body : bodies) parts.planes.push_back(body.span());
  std::span<const uint8_t>& base = parts.planes[0];
  const size_t head = first_tokens_.Bytes(run);
  if (base.size() < head) {
    return absl::DataLossError(
        absl::StrCat("level 0 has ", base.size(), " bytes; its first tokens alone need ", head));
  }
  parts.head = base.data();
  base = base.subspan(head);
  const uint32_t tokens = run.tokens - first_tokens_.Count(run);
  if (HasClasses(calibrated)) {
    parts.classes.resize(tokens);
    const size_t bytes = PackedBytes(tokens, kStepClassBits);
    if (base.size() < bytes) return absl::DataLossError("level 0 is cut within its step classes");
    UnpackBits(base.data(), tokens, kStepClassBits, parts.classes.data());
    base = base.subspan(bytes);
  }
  if (options_.adapt && tokens > 0) {
    KVSTOW_ASSIGN_OR_RETURN(parts.tables, GetPageTables(base, CodedRank(calibrated)));
  }
  return parts;
}

absl::Status JointReader::Read(TokenRange streams, TokenRange wanted,
                               std::vector<float>& by_token) {
  const size_t stride = PlaneStride(streams.count);
  const auto level = static_cast<uint32_t>(parts_.planes.size() - 1);
  const float step = options_.StepAt(level);
  q_.resize(stride * rank()), c_.resize(q_.size()), energies_.resize(streams.count);
  KVSTOW_RETURN_IF_ERROR(planes_.Decode(parts_.planes, tokens_, streams, q_, energies_));
  const PlaneOrder order = OrderByClass(energies_, options_.tokens_per_stream);
  planes_.Dequantize(q_, order.shifts, streams.count, level, {&step, 1}, c_);
  by_place_.resize(streams.count * rank());
  Transpose(c_.data(), rank(), streams.count, stride, by_place_.data(), rank());
  by_token.resize(wanted.count * rank());
  for (size_t p = 0; p < streams.count; ++p) {
    const uint32_t token = streams.first + order.tokens[p];
    if (token < wanted.first || token >= wanted.first + wanted.count) continue;
    const float factor = parts_.classes.empty() ? 1 : StepFactor(parts_.classes[token]);
    const float* const from = by_place_.data() + p * rank();
    float* const to = by_token.data() + (token - wanted.first) * rank();
    for (size_t i = 0; i < rank(); ++i) to[i] = from[i] * factor;
  }
  return absl::OkStatus();
}

}  // namespace kvstow
