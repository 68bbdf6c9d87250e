// A page to measure kernels on, and a clock that a busy machine changes little: pages are of
// SmolLM2-135M (30 layers, 3 KV heads of 64), 256 tokens, Gaussian values.
#ifndef KVSTOW_TESTS_BENCH_SMALL_MODEL_PAGE_H_
#define KVSTOW_TESTS_BENCH_SMALL_MODEL_PAGE_H_

#include <cstdint>
#include <ctime>
#include <random>
#include <vector>

#include "kernels/page/convert.h"
#include "kernels/page/page.h"

namespace kvstow {

inline constexpr uint32_t kTokens = 256;

inline KvSpec SmallModelSpec(DType dtype) {
  KvSpec spec;
  spec.dtype = dtype;
  spec.layers = 30;
  spec.kv_heads = 3;
  spec.head_dim_k = spec.head_dim_v = 64;
  spec.page_tokens = kTokens;
  return spec;
}

inline std::vector<float> GaussianValues(size_t count) {
  std::vector<float> values(count);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
  return values;
}

inline std::vector<uint8_t> GaussianPage(const KvSpec& spec) {
  std::vector<uint8_t> raw(PageBytes(spec, spec.page_tokens));
  const std::vector<float> values = GaussianValues(raw.size() / DTypeBytes(spec.dtype));
  StoreFloats(spec.dtype, values.data(), values.size(), raw.data());
  return raw;
}

// Time of this thread's processor.
inline double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace kvstow

#endif  // KVSTOW_TESTS_BENCH_SMALL_MODEL_PAGE_H_
