// Pages for tests: made from whole numbers, so that they have the same bytes everywhere.
#ifndef KVSTOW_TESTS_KERNELS_PAGES_H_
#define KVSTOW_TESTS_KERNELS_PAGES_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/page/convert.h"
#include "kernels/page/loops.h"
#include "kernels/page/page.h"

namespace kvstow::testing {

// Values close to a standard Gaussian: sums of 12 uniform numbers of 16 bits.
class Gaussian {
 public:
  explicit Gaussian(uint64_t seed = 1) : state_(seed) {}
  float operator()() {
    int64_t sum = 0;
    for (int i = 0; i < 12; ++i) {
      state_ = state_ * 6364136223846793005 + 1442695040888963407;
      sum += static_cast<int64_t>(state_ >> 48);
    }
    return static_cast<float>(sum - 6 * 65535) / 65536.0f;
  }

 private:
  uint64_t state_;
};

inline KvSpec SpecOf(DType dtype, uint32_t layers, uint32_t heads, uint32_t dim_k, uint32_t dim_v,
                     uint32_t page_tokens) {
  KvSpec spec;
  spec.layers = layers;
  spec.kv_heads = heads;
  spec.head_dim_k = dim_k;
  spec.head_dim_v = dim_v;
  spec.dtype = dtype;
  spec.page_tokens = page_tokens;
  return spec;
}

// A page whose values `next` gives one after another. FP8 pages get bytes.
inline std::vector<uint8_t> MakePage(const KvSpec& spec, uint32_t tokens,
                                     const std::function<float()>& next) {
  std::vector<uint8_t> raw(PageBytes(spec, tokens));
  if (IsFloat8(spec.dtype)) {
    for (uint8_t& byte : raw) byte = static_cast<uint8_t>(static_cast<int>(next() * 64) & 255);
    return raw;
  }
  std::vector<float> values(raw.size() / DTypeBytes(spec.dtype));
  for (float& value : values) value = next();
  ConvertLoops::Reference().store(spec.dtype, values.data(), values.size(), raw.data());
  return raw;
}

inline std::vector<uint8_t> GaussianPage(const KvSpec& spec, uint32_t tokens, uint64_t seed = 1) {
  return MakePage(spec, tokens, Gaussian(seed));
}

inline std::vector<float> ValuesOf(DType dtype, std::span<const uint8_t> raw) {
  std::vector<float> values(raw.size() / DTypeBytes(dtype));
  ConvertLoops::Reference().load(dtype, raw.data(), values.size(), values.data());
  return values;
}

// Squared error relative to the energy of `a`.
inline double RelativeError(DType dtype, std::span<const uint8_t> a, std::span<const uint8_t> b) {
  const std::vector<float> x = ValuesOf(dtype, a), y = ValuesOf(dtype, b);
  double error = 0, energy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
    energy += double{x[i]} * x[i];
  }
  return energy > 0 ? error / energy : error;
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_KERNELS_PAGES_H_
