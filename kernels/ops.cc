#include "kernels/ops.h"

#include "kernels/quantize/affine.h"

namespace kvstow {
namespace {

constexpr absl::string_view kRunArguments[] = {"layers"};
constexpr absl::string_view kAffineArguments[] = {"bits", "group", "k", "v"};

constexpr OpInfo kOps[] = {
    {"run", OpKind::kRun, kRunArguments},
    {"raw", OpKind::kRaw, {}},
    {"affine", OpKind::kQuantize, kAffineArguments, nullptr, MakeAffine},
};

}  // namespace

const OpInfo* FindOp(absl::string_view name) {
  for (const OpInfo& op : kOps) {
    if (op.name == name) return &op;
  }
  return nullptr;
}

}  // namespace kvstow
