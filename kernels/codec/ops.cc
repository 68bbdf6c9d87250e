#include "kernels/codec/ops.h"

#include "base/status_macros.h"
#include "kernels/importance/policy.h"
#include "kernels/methods/cachegen_run_codec.h"
#include "kernels/methods/joint_fit.h"
#include "kernels/methods/joint_run_codec.h"
#include "kernels/methods/lossless_run_codec.h"
#include "kernels/methods/nuq_run_codec.h"
#include "kernels/methods/pca_run_codec.h"
#include "kernels/methods/planes_run_codec.h"
#include "kernels/methods/predict_run_codec.h"
#include "kernels/methods/rotate_run_codec.h"
#include "kernels/methods/shared_basis_run_codec.h"
#include "kernels/methods/waterfill_run_codec.h"
#include "kernels/quantize/affine.h"
#include "kernels/quantize/block.h"
#include "kernels/quantize/codebook.h"
#include "kernels/quantize/fp16_values.h"
#include "kernels/quantize/levels.h"
#include "kernels/quantize/low_rank.h"
#include "kernels/quantize/minifloat.h"
#include "kernels/quantize/polar.h"
#include "kernels/quantize/signs.h"
#include "kernels/quantize/sketch.h"
#include "kernels/quantize/split.h"
#include "kernels/quantize/svd.h"
#include "kernels/quantize/symmetric.h"
#include "kernels/quantize/zero.h"
#include "kernels/transform/clip.h"
#include "kernels/transform/hadamard.h"
#include "kernels/transform/mean.h"
#include "kernels/transform/outliers.h"

namespace kvstow {
namespace {

constexpr absl::string_view kRunArguments[] = {"layers"};
constexpr absl::string_view kMeanArguments[] = {"part"};
constexpr absl::string_view kGroupedArguments[] = {"bits", "group", "k", "v"};
constexpr absl::string_view kFormatArguments[] = {"format"};
constexpr absl::string_view kCodebookArguments[] = {"bits", "norm"};
constexpr absl::string_view kSketchArguments[] = {"bits"};
constexpr absl::string_view kSignsArguments[] = {"rows"};
constexpr absl::string_view kLowRankArguments[] = {"rank"};
constexpr absl::string_view kSparseArguments[] = {"share", "k", "v"};
constexpr absl::string_view kClipArguments[] = {"share", "group"};
constexpr absl::string_view kMergeArguments[] = {"heads"};
constexpr absl::string_view kDeltasArguments[] = {"every", "bins", "early", "middle", "late"};
constexpr absl::string_view kBinsArguments[] = {"k", "k_then", "k_from", "v", "v_then", "v_from"};
constexpr absl::string_view kSharedBasisArguments[] = {"k", "v"};
constexpr absl::string_view kPlanesArguments[] = {"step",  "levels",    "k",
                                                  "depth", "firstbits", "keys"};
constexpr absl::string_view kOutliersArguments[] = {"share", "group"};
constexpr absl::string_view kLatentArguments[] = {"rope"};
constexpr absl::string_view kAnchorArguments[] = {"every"};
constexpr absl::string_view kJointArguments[] = {"run", "step", "levels", "stream", "blob"};
constexpr absl::string_view kNuqArguments[] = {"bits", "outliers", "first", "last", "blob"};
constexpr absl::string_view kPredictArguments[] = {"bits", "run", "first", "last", "blob"};
constexpr absl::string_view kRotateArguments[] = {"bits", "group", "first", "last", "blob"};
constexpr absl::string_view kWaterfillArguments[] = {"bits", "first", "last", "blob"};
constexpr absl::string_view kPcaArguments[] = {"bits", "run", "first", "last", "blob"};

absl::StatusOr<std::unique_ptr<CalibrationFit>> StartJoint(const KvSpec& spec,
                                                           const OpArguments& arguments,
                                                           const ModelStats& stats) {
  JointFitOptions options;
  KVSTOW_ASSIGN_OR_RETURN(options.layers_per_run, arguments.Number("run", 1, 1, kMaxLayers));
  KVSTOW_ASSIGN_OR_RETURN(options.finest_step, arguments.Real("step", 2, 1e-3, 1e3));
  return StartJointFit(spec, options, stats);
}

constexpr OpInfo kOps[] = {
    {.name = "run", .kind = OpKind::kRun, .arguments = kRunArguments},
    {.name = "raw", .kind = OpKind::kRaw},
    {.name = "lossless", .kind = OpKind::kRunCodec, .make_run_codec = MakeLossless},
    {.name = "joint",
     .kind = OpKind::kCalibrated,
     .arguments = kJointArguments,
     .make_calibrated = MakeJointRunCodec,
     .start_fit = StartJoint,
     .steps = {1e-3, 1e3, 2},
     .make_classed = MakeClassedJointRunCodec},
    {.name = "nuq",
     .kind = OpKind::kCalibrated,
     .arguments = kNuqArguments,
     .make_calibrated = MakeNuqRunCodec,
     .parse_tables = ParseNuqTables,
     .start_fit = StartNuqFit},
    {.name = "predict",
     .kind = OpKind::kCalibrated,
     .arguments = kPredictArguments,
     .make_calibrated = MakePredictRunCodec,
     .parse_tables = ParsePredictTables,
     .start_fit = StartPredictFit},
    {.name = "rotate",
     .kind = OpKind::kCalibrated,
     .arguments = kRotateArguments,
     .make_calibrated = MakeRotateRunCodec,
     .parse_tables = ParseRotateTables,
     .start_fit = StartRotateFit},
    {.name = "waterfill",
     .kind = OpKind::kCalibrated,
     .arguments = kWaterfillArguments,
     .make_calibrated = MakeWaterfillRunCodec,
     .parse_tables = ParseWaterfillTables,
     .start_fit = StartWaterfillFit},
    {.name = "pca",
     .kind = OpKind::kCalibrated,
     .arguments = kPcaArguments,
     .make_calibrated = MakePcaRunCodec,
     .parse_tables = ParsePcaTables,
     .start_fit = StartPcaFit},
    {.name = "hadamard", .kind = OpKind::kTransform, .make_transform = MakeHadamard},
    {.name = "mean",
     .kind = OpKind::kTransform,
     .arguments = kMeanArguments,
     .make_transform = MakeMean},
    {.name = "clip",
     .kind = OpKind::kTransform,
     .arguments = kClipArguments,
     .make_transform = MakeClip},
    {.name = "sparse",
     .kind = OpKind::kTransform,
     .arguments = kSparseArguments,
     .make_transform = MakeOutliers},
    {.name = "affine",
     .kind = OpKind::kQuantize,
     .arguments = kGroupedArguments,
     .make_quantizer = MakeAffine},
    {.name = "symmetric",
     .kind = OpKind::kQuantize,
     .arguments = kGroupedArguments,
     .make_quantizer = MakeSymmetric},
    {.name = "minifloat",
     .kind = OpKind::kQuantize,
     .arguments = kFormatArguments,
     .make_quantizer = MakeMinifloat},
    {.name = "block",
     .kind = OpKind::kQuantize,
     .arguments = kFormatArguments,
     .make_quantizer = MakeBlock},
    {.name = "codebook",
     .kind = OpKind::kQuantize,
     .arguments = kCodebookArguments,
     .make_quantizer = MakeCodebook},
    {.name = "sketch",
     .kind = OpKind::kQuantize,
     .arguments = kSketchArguments,
     .make_quantizer = MakeSketch},
    {.name = "polar", .kind = OpKind::kQuantize, .make_quantizer = MakePolar},
    {.name = "keep", .kind = OpKind::kQuantize, .make_quantizer = MakeFp16Values},
    {.name = "zero", .kind = OpKind::kQuantize, .make_quantizer = MakeZero},
    {.name = "lowrank",
     .kind = OpKind::kQuantize,
     .arguments = kLowRankArguments,
     .make_quantizer = MakeLowRank},
    {.name = "svd", .kind = OpKind::kQuantize, .make_quantizer = MakeSvd},
    {.name = "signs",
     .kind = OpKind::kQuantize,
     .arguments = kSignsArguments,
     .make_quantizer = MakeSigns},
    {.name = "levels", .kind = OpKind::kQuantize, .make_quantizer = MakeLevels},
    {.name = "planes",
     .kind = OpKind::kRunCodec,
     .arguments = kPlanesArguments,
     .make_run_codec = MakePlanes,
     .steps = {0.01, 8, 0.5},
     .make_classed = MakeClassedPlanes},
    {.name = "outliers",
     .kind = OpKind::kSplit,
     .arguments = kOutliersArguments,
     .make_split = MakeOutliers},
    {.name = "latent",
     .kind = OpKind::kSplit,
     .arguments = kLatentArguments,
     .make_split = MakeLatent},
    {.name = "anchor",
     .kind = OpKind::kSplit,
     .arguments = kAnchorArguments,
     .make_split = MakeAnchor},
    {.name = "merge", .kind = OpKind::kWrap, .arguments = kMergeArguments, .make_wrap = MakeMerge},
    {.name = "rope", .kind = OpKind::kRope},
    {.name = "deltas",
     .kind = OpKind::kRunCodec,
     .arguments = kDeltasArguments,
     .make_run_codec = MakeDeltas},
    {.name = "bins",
     .kind = OpKind::kRunCodec,
     .arguments = kBinsArguments,
     .make_run_codec = MakeBins},
    {.name = "sharedbasis",
     .kind = OpKind::kRunCodec,
     .arguments = kSharedBasisArguments,
     .make_run_codec = MakeSharedBasis},
    {.name = "k", .kind = OpKind::kMark},
    {.name = "v", .kind = OpKind::kMark},
    {.name = "rest", .kind = OpKind::kMark},
    {.name = "residual", .kind = OpKind::kMark},
    {.name = "protect", .kind = OpKind::kMark, .arguments = kProtectionArguments},
    {.name = "budget", .kind = OpKind::kMark, .arguments = kBudgetArguments},
    {.name = "class", .kind = OpKind::kMark, .arguments = kClassArguments},
};

}  // namespace

const OpInfo* FindOp(absl::string_view name) {
  for (const OpInfo& op : kOps) {
    if (op.name == name) return &op;
  }
  return nullptr;
}

bool IsOp(absl::string_view name) {
  return FindOp(name) != nullptr || FindScoreOp(name) != nullptr;
}

std::span<const absl::string_view> OpArgumentNames(absl::string_view name) {
  if (const OpInfo* op = FindOp(name); op != nullptr) return op->arguments;
  if (const ScoreOpInfo* op = FindScoreOp(name); op != nullptr) return op->arguments;
  return {};
}

}  // namespace kvstow
