#include "kernels/ops.h"

#include "kernels/planes_run_codec.h"
#include "kernels/quantize/affine.h"
#include "kernels/quantize/levels.h"
#include "kernels/quantize/minifloat.h"
#include "kernels/transform/hadamard.h"

namespace kvstow {
namespace {

constexpr absl::string_view kRunArguments[] = {"layers"};
constexpr absl::string_view kAffineArguments[] = {"bits", "group", "k", "v"};

constexpr absl::string_view kMinifloatArguments[] = {"format"};

constexpr absl::string_view kPlanesArguments[] = {"step", "levels", "k", "depth"};
constexpr absl::string_view kJointArguments[] = {"run", "step", "levels", "stream", "blob"};

constexpr OpInfo kOps[] = {
    {"run", OpKind::kRun, kRunArguments},
    {"raw", OpKind::kRaw, {}},
    {"joint", OpKind::kJoint, kJointArguments},
    {"hadamard", OpKind::kTransform, {}, MakeHadamard},
    {"affine", OpKind::kQuantize, kAffineArguments, nullptr, MakeAffine},
    {"minifloat", OpKind::kQuantize, kMinifloatArguments, nullptr, MakeMinifloat},
    {"levels", OpKind::kQuantize, {}, nullptr, MakeLevels},
    {"planes", OpKind::kRunCodec, kPlanesArguments, nullptr, nullptr, MakePlanes},
};

}  // namespace

const OpInfo* FindOp(absl::string_view name) {
  for (const OpInfo& op : kOps) {
    if (op.name == name) return &op;
  }
  return nullptr;
}

}  // namespace kvstow
