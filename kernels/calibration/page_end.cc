#include "kernels/calibration/page_end.h"

#include <cmath>
#include <numeric>

namespace kvstow {
namespace {

constexpr uint32_t kNearest = 8;     // tokens from the next one at which a cost halves
constexpr uint32_t kHorizon = 1024;  // tokens behind a token of which any may be the last
constexpr double kEndPower = 0.3;

}  // namespace

std::vector<double> EndWeights(uint32_t page_tokens) {
  std::vector<double> weights(page_tokens);
  for (uint32_t t = 0; t < page_tokens; ++t) {
    const uint32_t behind = page_tokens - 1 - t;
    for (uint32_t end = 0; end == 0 || end < kHorizon; end += page_tokens) {
      weights[t] += 1.0 / (behind + end + kNearest);
    }
  }
  const double mean = std::accumulate(weights.begin(), weights.end(), 0.0) / page_tokens;
  for (double& weight : weights) weight /= mean;
  return weights;
}

std::vector<float> EndLogSteps(uint32_t page_tokens) {
  std::vector<double> logs = EndWeights(page_tokens);
  for (double& log : logs) log = -kEndPower * std::log2(log);
  const double mean = std::accumulate(logs.begin(), logs.end(), 0.0) / page_tokens;
  std::vector<float> out;
  for (const double log : logs) out.push_back(static_cast<float>(log - mean));
  return out;
}

}  // namespace kvstow
