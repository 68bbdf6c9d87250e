#include "kernels/transform/outliers.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/status_macros.h"
#include "kernels/page/convert.h"
#include "kernels/page/half.h"

namespace kvstow {
namespace {

// The vectors of a slab: value i of vector v is at v * across + i * along.
struct Vectors {
  size_t count = 0, length = 0, across = 0, along = 0;
  size_t apart = 0;        // outliers of each, an even number
  size_t place_bytes = 1;  // of each outlier
};

class Outliers final : public Transform {
 public:
  Outliers(double share, bool k_by_token, bool v_by_token)
      : share_(share), k_by_token_(k_by_token), v_by_token_(v_by_token) {}

  bool preserves_error() const override { return false; }

  size_t SideBytes(const SlabShape& shape) const override {
    const Vectors vectors = VectorsOf(shape);
    return vectors.count * vectors.apart * (2 + vectors.place_bytes);
  }

  bool Forward(const SlabShape& shape, float* values, uint8_t* side) const override {
    const Vectors at = VectorsOf(shape);
    if (at.apart == 0) return true;
    uint8_t* places = side + 2 * at.count * at.apart;
    std::vector<uint32_t> order(at.length);
    for (size_t v = 0; v < at.count; ++v) {
      float* const x = values + v * at.across;
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](uint32_t a, uint32_t b) { return x[a * at.along] < x[b * at.along]; });
      const size_t half = at.apart / 2;
      const float low = x[order[half] * at.along];
      const float high = x[order[at.length - 1 - half] * at.along];
      std::vector<uint32_t> outliers(order.begin(), order.begin() + static_cast<ptrdiff_t>(half));
      outliers.insert(outliers.end(), order.end() - static_cast<ptrdiff_t>(half), order.end());
      std::sort(outliers.begin(), outliers.end());
      for (const uint32_t place : outliers) {
        float& value = x[place * at.along];
        if (std::abs(value) > kMaxHalf) return false;
        StoreHalves(&value, 1, side);
        side += 2;
        for (size_t b = 0; b < at.place_bytes; ++b)
          *places++ = static_cast<uint8_t>(place >> 8 * b);
        value = std::clamp(value, low, high);
      }
    }
    return true;
  }

  bool Inverse(const SlabShape& shape, const uint8_t* side, float* values) const override {
    const Vectors at = VectorsOf(shape);
    const size_t all = at.count * at.apart;
    std::vector<float> outliers(all);
    if (!LoadHalves(side, all, outliers.data())) return false;
    const uint8_t* places = side + 2 * all;
    size_t next = 0;
    for (size_t i = 0; i < all; ++i) {
      size_t place = 0;
      for (size_t b = 0; b < at.place_bytes; ++b) place |= size_t{*places++} << 8 * b;
      if (i % at.apart == 0) next = 0;
      if (place < next || place >= at.length) return false;
      next = place + 1;
      values[i / at.apart * at.across + place * at.along] = outliers[i];
    }
    return true;
  }

 private:
  Vectors VectorsOf(const SlabShape& shape) const {
    const size_t row = size_t{shape.heads} * shape.dim;
    const bool by_token = shape.part == Part::kK ? k_by_token_ : v_by_token_;
    Vectors v = by_token ? Vectors{shape.tokens, row, row, 1} : Vectors{row, shape.tokens, 1, row};
    const auto wanted =
        static_cast<size_t>(std::lround(share_ / 2 * static_cast<double>(v.length)));
    v.apart = 2 * std::min(wanted, (v.length - 1) / 2);
    v.place_bytes = v.length <= 1u << 8 ? 1 : v.length <= 1u << 16 ? 2 : 3;
    return v;
  }

  const double share_;
  const bool k_by_token_, v_by_token_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transform>> MakeOutliers(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"share", "k", "v"}));
  KVSTOW_ASSIGN_OR_RETURN(const double share, arguments.Real("share", 0.02, 0.001, 0.5));
  KVSTOW_ASSIGN_OR_RETURN(const size_t k, arguments.Word("k", {"channel", "token"}));
  KVSTOW_ASSIGN_OR_RETURN(const size_t v, arguments.Word("v", {"token", "channel"}));
  return std::make_unique<Outliers>(share, k == 1, v == 0);
}

}  // namespace kvstow
