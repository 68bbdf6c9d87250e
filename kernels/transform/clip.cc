#include "kernels/transform/clip.h"

#include <algorithm>

#include "base/status_macros.h"

namespace kvstow {
namespace {

class Clip final : public Transform {
 public:
  Clip(double share, uint32_t group) : share_(static_cast<float>(share)), group_(group) {}

  bool preserves_error() const override { return false; }

  bool Forward(const SlabShape& shape, float* values, uint8_t*) const override {
    for (size_t v = 0; v < shape.vectors(); ++v, values += shape.dim) {
      for (uint32_t c = 0; c < shape.dim; c += group_) {
        float* const end = values + std::min(shape.dim, c + group_);
        const auto [low, high] = std::minmax_element(values + c, end);
        const float least = *low * share_, most = *high * share_;
        for (float* x = values + c; x != end; ++x) *x = std::min(std::max(*x, least), most);
      }
    }
    return true;
  }
  bool Inverse(const SlabShape&, const uint8_t*, float*) const override { return true; }

 private:
  const float share_;
  const uint32_t group_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transform>> MakeClip(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"share", "group"}));
  KVSTOW_ASSIGN_OR_RETURN(const double share, arguments.Real("share", 0.8, 0.1, 1));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t group, arguments.Number("group", 128, 1, kMaxPageTokens));
  return std::make_unique<Clip>(share, group);
}

}  // namespace kvstow
