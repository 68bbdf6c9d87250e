// How much a model feels errors of single tokens, foretold from their K and V by the slopes that a
// worker measured (ModelStats::slope_k, slope_v):
//
//   sensitivity of a token in a layer = exp(slopes . (x - mean of x over the page's tokens))
//
// Attention goes to few tokens, and keys show which ones. So a linear model of a token's K and V is
// as good as one with squares and energies (docs/decisions/0086-slopes-of-tokens.md). Where no
// worker measured any, slopes are a guess from K (key_slopes.h).
//
// The codec's squared steps go down with sensitivity^0.4 (kDefaultFocus). The metrics of the
// statistics are means over tokens that are weighed by that, as the errors are.
//
// Immutable: thread-safe.
#ifndef KVSTOW_KERNELS_CALIBRATION_TOKEN_SLOPES_H_
#define KVSTOW_KERNELS_CALIBRATION_TOKEN_SLOPES_H_

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/calibration/calibration_moments.h"
#include "kernels/calibration/model_stats.h"
#include "kernels/page/page.h"

namespace kvstow {

class TokenSlopes {
 public:
  // Slopes of a run of layers. `stats` are of the spec (CheckModelStats).
  TokenSlopes(const KvSpec& spec, const ModelStats& stats, LayerRange layers);
  // The guess for a run of so many layers, from the moments of its vectors. It is empty for latents
  // (spaces without V), which are no keys.
  TokenSlopes(const KvSpec& spec, uint32_t layers, const FirstMoments& moments);

  // Whether the statistics say nothing of tokens.
  bool empty() const { return layers_.empty(); }
  // Returns the sensitivity of each token of a page, summed over the run's layers, over its mean of
  // s^0.6: an error of the token costs so many times what the metric says. `x` holds the tokens'
  // vectors (methods/joint_vectors.h). Not for empty slopes.
  std::vector<float> Sensitivity(std::span<const float> x) const;

 private:
  size_t width_ = 0;                        // of a vector
  std::vector<std::vector<float>> layers_;  // slopes of each, over the whole vector
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_TOKEN_SLOPES_H_
