#include "kernels/methods/step_energies.h"

#include <algorithm>
#include <cmath>

#include "kernels/entropy/plane_coder.h"
#include "kernels/methods/joint_vectors.h"

namespace kvstow {

std::vector<uint8_t> StepEnergies(std::span<const float> log_steps, size_t stride) {
  constexpr int kPlain = kPlaneEnergies / 2;
  std::vector<uint8_t> out(stride, kPlain);
  for (size_t t = 0; t < log_steps.size(); ++t) {
    const float half_octaves = std::isnan(log_steps[t]) ? 0 : std::round(2 * log_steps[t]);
    out[t] = static_cast<uint8_t>(kPlain - std::clamp<float>(half_octaves, 1 - kPlain, kPlain));
  }
  return out;
}

void ScaleTokens(std::span<const uint8_t> energies, size_t stride, bool back,
                 std::span<float> rows) {
  if (energies.empty()) return;
  std::vector<float> factors(stride, 1.0f);
  for (size_t t = 0; t < energies.size(); ++t)
    factors[t] =
        EnergyFactor(back ? static_cast<uint8_t>(kPlaneEnergies - energies[t]) : energies[t]);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] *= factors[i % stride];
}

}  // namespace kvstow
