// Tokens with steps of their own, in the plane coder. Steps go in half octaves, as the coder's
// energy classes do, and stand in their place. A token whose step is 2^(k/2) times the usual is
// divided by that factor before it is coded.
//
// Pure functions.
#ifndef KVSTOW_KERNELS_METHODS_STEP_ENERGIES_H_
#define KVSTOW_KERNELS_METHODS_STEP_ENERGIES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvstow {

// Returns the energy class of each token, [stride], from the binary logarithms of steps. NaN, and
// tokens behind the last, give the usual step.
std::vector<uint8_t> StepEnergies(std::span<const float> log_steps, size_t stride);

// Scales rows of a value for each token, [..., stride], to the values that are coded, or `back`.
// Without energies, rows stay as they are.
void ScaleTokens(std::span<const uint8_t> energies, size_t stride, bool back,
                 std::span<float> rows);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_STEP_ENERGIES_H_
