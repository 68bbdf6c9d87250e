// Tests of loops in vectors share these: every SIMD target that this machine runs, values of all
// sizes, and comparing bits.
#ifndef KVSTOW_TESTS_KERNELS_EVERY_TARGET_H_
#define KVSTOW_TESTS_KERNELS_EVERY_TARGET_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "hwy/highway.h"

namespace kvstow {

// Runs `test` once for each target.
template <typename F>
void OnEveryTarget(F test) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    test();
  }
  hwy::SetSupportedTargetsForTest(0);
}

// Runs `test` with each target's table of a family (kernels/page/loops.h) and the scalar reference.
template <typename Loops, typename F>
void OnEveryTarget(F test) {
  OnEveryTarget([&] { test(Loops::Best(), Loops::Reference()); });
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Values of all sizes, zeros of both signs and denormals among them.
inline std::vector<float> ValuesOfAllSizes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
    switch (random() % 16) {
      case 0:
        value = std::ldexp(value, static_cast<int>(random() % 60) - 44);
        break;
      case 1:
        value = random() % 2 == 0 ? 0.0f : -0.0f;
        break;
      default:
        break;
    }
  }
  return values;
}

}  // namespace kvstow

#endif  // KVSTOW_TESTS_KERNELS_EVERY_TARGET_H_
