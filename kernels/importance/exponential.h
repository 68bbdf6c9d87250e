// Exponentials with the same bits on every machine. Those of a C library differ from one version,
// processor or GPU to the next, and scores must not.
//
// The error is less than 1e-14 of the value, so the nearest F32 is nearly always the one nearest to
// the exact value. Free functions, thread-safe. They are constexpr, so that GPU code may call them
// as well (nvcc --expt-relaxed-constexpr), compiled without fused multiply-adds.
#ifndef KVSTOW_KERNELS_IMPORTANCE_EXPONENTIAL_H_
#define KVSTOW_KERNELS_IMPORTANCE_EXPONENTIAL_H_

#include <bit>
#include <cstdint>

namespace kvstow {

// Returns 2^x; 0 below x = -1022, Inf from x = 1023.5 on, NaN for NaN.
constexpr double FixedExp2(double x) {
  if (x != x) return x;
  if (x < -1022) return 0;
  if (x >= 1023.5) return std::bit_cast<double>(uint64_t{0x7ff} << 52);
  // Adding 1.5 * 2^52 rounds to a whole number.
  const double whole = (x + 0x1.8p52) - 0x1.8p52;
  const double u = (x - whole) * 0.69314718055994530942;  // at most 0.35 from 0
  // The Taylor series of e^u: coefficients 1 / i!.
  constexpr double kSeries[] = {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320,
                                1.0 / 5040,     1.0 / 720,     1.0 / 120,    1.0 / 24,
                                1.0 / 6,        1.0 / 2,       1.0,          1.0};
  double sum = 0;
  for (const double coefficient : kSeries) sum = sum * u + coefficient;
  const auto exponent = static_cast<uint64_t>(static_cast<int64_t>(whole) + 1023);
  return sum * std::bit_cast<double>(exponent << 52);
}

// Returns e^x.
constexpr float FixedExp(float x) {
  return static_cast<float>(FixedExp2(double{x} * 1.44269504088896340736));
}

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_EXPONENTIAL_H_
