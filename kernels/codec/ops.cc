#include "kernels/codec/ops.h"

#include "kernels/importance/policy.h"
#include "kernels/methods/cachegen_run_codec.h"
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
#include "kernels/quantize/keep.h"
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
#include "kernels/transform/sparse.h"

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
constexpr absl::string_view kPlanesArguments[] = {"step", "levels", "k", "depth", "firstbits"};
constexpr absl::string_view kOutliersArguments[] = {"share", "group"};
constexpr absl::string_view kLatentArguments[] = {"rope"};
constexpr absl::string_view kAnchorArguments[] = {"every"};
constexpr absl::string_view kJointArguments[] = {"run", "step", "levels", "stream", "blob"};
constexpr absl::string_view kNuqArguments[] = {"bits", "outliers", "first", "last", "blob"};
constexpr absl::string_view kPredictArguments[] = {"bits", "run", "first", "last", "blob"};
constexpr absl::string_view kRotateArguments[] = {"bits", "group", "first", "last", "blob"};
constexpr absl::string_view kWaterfillArguments[] = {"bits", "first", "last", "blob"};
constexpr absl::string_view kPcaArguments[] = {"bits", "run", "first", "last", "blob"};

constexpr OpInfo kOps[] = {
    {"run", OpKind::kRun, kRunArguments},
    {"raw", OpKind::kRaw, {}},
    {"lossless", OpKind::kRunCodec, {}, nullptr, nullptr, MakeLossless},
    {"joint", OpKind::kCalibrated, kJointArguments, nullptr, nullptr, nullptr, MakeJointRunCodec,
     StepRange{1e-3, 1e3, 2}, nullptr, nullptr, MakeClassedJointRunCodec},
    {"nuq", OpKind::kCalibrated, kNuqArguments, nullptr, nullptr, nullptr, MakeNuqRunCodec},
    {"predict", OpKind::kCalibrated, kPredictArguments, nullptr, nullptr, nullptr,
     MakePredictRunCodec},
    {"rotate", OpKind::kCalibrated, kRotateArguments, nullptr, nullptr, nullptr,
     MakeRotateRunCodec},
    {"waterfill", OpKind::kCalibrated, kWaterfillArguments, nullptr, nullptr, nullptr,
     MakeWaterfillRunCodec},
    {"pca", OpKind::kCalibrated, kPcaArguments, nullptr, nullptr, nullptr, MakePcaRunCodec},
    {"hadamard", OpKind::kTransform, {}, MakeHadamard},
    {"mean", OpKind::kTransform, kMeanArguments, MakeMean},
    {"clip", OpKind::kTransform, kClipArguments, MakeClip},
    {"sparse", OpKind::kTransform, kSparseArguments, MakeSparse},
    {"affine", OpKind::kQuantize, kGroupedArguments, nullptr, MakeAffine},
    {"symmetric", OpKind::kQuantize, kGroupedArguments, nullptr, MakeSymmetric},
    {"minifloat", OpKind::kQuantize, kFormatArguments, nullptr, MakeMinifloat},
    {"block", OpKind::kQuantize, kFormatArguments, nullptr, MakeBlock},
    {"codebook", OpKind::kQuantize, kCodebookArguments, nullptr, MakeCodebook},
    {"sketch", OpKind::kQuantize, kSketchArguments, nullptr, MakeSketch},
    {"polar", OpKind::kQuantize, {}, nullptr, MakePolar},
    {"keep", OpKind::kQuantize, {}, nullptr, MakeKeep},
    {"zero", OpKind::kQuantize, {}, nullptr, MakeZero},
    {"lowrank", OpKind::kQuantize, kLowRankArguments, nullptr, MakeLowRank},
    {"svd", OpKind::kQuantize, {}, nullptr, MakeSvd},
    {"signs", OpKind::kQuantize, kSignsArguments, nullptr, MakeSigns},
    {"levels", OpKind::kQuantize, {}, nullptr, MakeLevels},
    {"planes", OpKind::kRunCodec, kPlanesArguments, nullptr, nullptr, MakePlanes, nullptr,
     StepRange{0.01, 8, 0.5}, nullptr, nullptr, MakeClassedPlanes},
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
    {"rope", OpKind::kRope, {}},
    {"deltas", OpKind::kRunCodec, kDeltasArguments, nullptr, nullptr, MakeDeltas},
    {"bins", OpKind::kRunCodec, kBinsArguments, nullptr, nullptr, MakeBins},
    {"sharedbasis", OpKind::kRunCodec, kSharedBasisArguments, nullptr, nullptr, MakeSharedBasis},
    {"k", OpKind::kMark, {}},
    {"v", OpKind::kMark, {}},
    {"rest", OpKind::kMark, {}},
    {"residual", OpKind::kMark, {}},
};

}  // namespace

const OpInfo* FindOp(absl::string_view name) {
  for (const OpInfo& op : kOps) {
    if (op.name == name) return &op;
  }
  return nullptr;
}

bool IsOp(absl::string_view name) {
  return FindOp(name) != nullptr || FindScoreOp(name) != nullptr || name == "protect" ||
         name == "budget" || name == "class";
}

std::span<const absl::string_view> OpArgumentNames(absl::string_view name) {
  if (const OpInfo* op = FindOp(name); op != nullptr) return op->arguments;
  if (const ScoreOpInfo* op = FindScoreOp(name); op != nullptr) return op->arguments;
  if (name == "protect") return ProtectionArguments();
  if (name == "budget") return BudgetArguments();
  if (name == "class") return ClassArguments();
  return {};
}

}  // namespace kvstow
