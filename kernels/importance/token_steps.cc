#include "kernels/importance/token_steps.h"

#include <algorithm>
#include <cmath>

namespace kvstow {

std::vector<float> LogSteps(const ScoreMap& scores, LayerRange layers, double power,
                            const Protection& protection,
                            std::span<const uint8_t> protected_tokens) {
  const uint32_t tokens = scores.tokens, heads = scores.heads;
  std::vector<double> importance(tokens);
  const auto usable = [](float x) { return std::isfinite(x) && x > 0 ? double{x} : 0; };
  for (uint32_t l = 0; l < layers.count; ++l) {
    const float* const layer = scores.Layer(layers.first + l);
    for (uint32_t h = 0; h < heads; ++h) {
      double sum = 0;
      for (uint32_t t = 0; t < tokens; ++t) sum += usable(layer[t * heads + h]);
      if (sum == 0) continue;
      for (uint32_t t = 0; t < tokens; ++t) importance[t] += usable(layer[t * heads + h]) / sum;
    }
  }
  double all = 0, mean = 0;
  for (const double x : importance) all += x;
  std::vector<float> out(tokens);
  if (all == 0) return out;  // nothing is known: all as usual
  std::vector<double> logs(tokens);
  for (uint32_t t = 0; t < tokens; ++t) {
    logs[t] = std::log2(std::max<double>(importance[t] / all * tokens, kLeastImportance));
    mean += logs[t] / tokens;
  }
  for (uint32_t t = 0; t < tokens; ++t) {
    const double step = -power * (logs[t] - mean);
    const bool keep = t < protection.first || tokens - t <= protection.last ||
                      (!protected_tokens.empty() && protected_tokens[t] != 0);
    out[t] = static_cast<float>(keep ? std::min(step, 0.0) : step);
  }
  return out;
}

}  // namespace kvstow
