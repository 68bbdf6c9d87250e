#include "kernels/ops.h"

#include "kernels/importance/policy.h"
#include "kernels/joint_run_codec.h"
#include "kernels/lossless_run_codec.h"
#include "kernels/planes_run_codec.h"
#include "kernels/quantize/affine.h"
#include "kernels/quantize/block.h"
#include "kernels/quantize/codebook.h"
#include "kernels/quantize/levels.h"
#include "kernels/quantize/minifloat.h"
#include "kernels/quantize/sketch.h"
#include "kernels/quantize/symmetric.h"
#include "kernels/transform/hadamard.h"
#include "kernels/transform/mean.h"

namespace kvstow {
namespace {

constexpr absl::string_view kRunArguments[] = {"layers"};
constexpr absl::string_view kMeanArguments[] = {"part"};
constexpr absl::string_view kGroupedArguments[] = {"bits", "group", "k", "v"};
constexpr absl::string_view kFormatArguments[] = {"format"};
constexpr absl::string_view kCodebookArguments[] = {"bits", "norm"};
constexpr absl::string_view kSketchArguments[] = {"bits"};
constexpr absl::string_view kPlanesArguments[] = {"step", "levels", "k", "depth"};
constexpr absl::string_view kJointArguments[] = {"run", "step", "levels", "stream", "blob"};

constexpr OpInfo kOps[] = {
    {"run", OpKind::kRun, kRunArguments},
    {"raw", OpKind::kRaw, {}},
    {"lossless", OpKind::kRunCodec, {}, nullptr, nullptr, MakeLossless},
    {"joint", OpKind::kCalibrated, kJointArguments, nullptr, nullptr, nullptr, MakeJointRunCodec,
     StepRange{1e-3, 1e3, 2}},
    {"hadamard", OpKind::kTransform, {}, MakeHadamard},
    {"mean", OpKind::kTransform, kMeanArguments, MakeMean},
    {"affine", OpKind::kQuantize, kGroupedArguments, nullptr, MakeAffine},
    {"symmetric", OpKind::kQuantize, kGroupedArguments, nullptr, MakeSymmetric},
    {"minifloat", OpKind::kQuantize, kFormatArguments, nullptr, MakeMinifloat},
    {"block", OpKind::kQuantize, kFormatArguments, nullptr, MakeBlock},
    {"codebook", OpKind::kQuantize, kCodebookArguments, nullptr, MakeCodebook},
    {"sketch", OpKind::kQuantize, kSketchArguments, nullptr, MakeSketch},
    {"levels", OpKind::kQuantize, {}, nullptr, MakeLevels},
    {"planes", OpKind::kRunCodec, kPlanesArguments, nullptr, nullptr, MakePlanes, nullptr,
     StepRange{0.01, 8, 0.5}},
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
         name == "budget";
}

std::span<const absl::string_view> OpArgumentNames(absl::string_view name) {
  if (const OpInfo* op = FindOp(name); op != nullptr) return op->arguments;
  if (const ScoreOpInfo* op = FindScoreOp(name); op != nullptr) return op->arguments;
  if (name == "protect") return ProtectionArguments();
  if (name == "budget") return BudgetArguments();
  return {};
}

}  // namespace kvstow
