// The tokens of calibrated pages on which their gains are measured.
#ifndef KVSTOW_KERNELS_METHODS_JOINT_SAMPLING_H_
#define KVSTOW_KERNELS_METHODS_JOINT_SAMPLING_H_

#include <cstdint>

#include "kernels/entropy/rans.h"

namespace kvstow {

// Samples are every kGainEvery-th vector of kRansLanes tokens.
inline constexpr uint32_t kGainEvery = 4;
// Returns how many of the leading `tokens` are sampled.
constexpr uint32_t SampledTokens(uint32_t tokens) {
  const uint32_t period = kGainEvery * kRansLanes, rest = tokens % period;
  return tokens / period * kRansLanes + (rest < kRansLanes ? rest : kRansLanes);
}

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_JOINT_SAMPLING_H_
