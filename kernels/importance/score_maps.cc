#include "kernels/importance/score_maps.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "kernels/importance/exponential.h"

namespace kvstow {
namespace {

// Calls `change(x)` with the scores of every head in order of position, and puts back what it left.
void ForEachHead(ScoreMap& scores, const std::function<void(std::vector<float>&)>& change) {
  std::vector<float> x(scores.tokens);
  for (uint32_t l = 0; l < scores.layers; ++l) {
    for (uint32_t h = 0; h < scores.heads; ++h) {
      float* base = scores.Layer(l) + h;
      for (uint32_t t = 0; t < scores.tokens; ++t) x[t] = base[size_t{t} * scores.heads];
      change(x);
      for (uint32_t t = 0; t < scores.tokens; ++t) base[size_t{t} * scores.heads] = x[t];
    }
  }
}

void Standardize(std::vector<float>& x) {
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
  double squares = 0;
  for (const float v : x) squares += (v - mean) * (v - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(x.size()));
  for (float& v : x) v = static_cast<float>(deviation > 0 ? (v - mean) / deviation : 0);
}

void Softmax(std::vector<float>& x) {
  const float most = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (float& v : x) {
    v = FixedExp(v - most);
    sum += v;
  }
  for (float& v : x) v = static_cast<float>(v / sum);
}

// Scores that are not finite rank least, as they are chosen last (Chooser in budget.cc).
void Rank(std::vector<float>& x) {
  for (float& v : x) v = std::isfinite(v) ? v : -std::numeric_limits<float>::infinity();
  std::vector<uint32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  // Least first; of equals the later token first, so that the earlier ranks higher.
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return x[a] != x[b] ? x[a] < x[b] : a > b; });
  for (size_t rank = 0; rank < order.size(); ++rank) {
    x[order[rank]] = static_cast<float>(rank) / static_cast<float>(x.size());
  }
}

void DivideByMax(std::vector<float>& x) {
  float most = 0;
  for (const float v : x) most = std::max(most, std::abs(v));
  for (float& v : x) v = most > 0 ? v / most : 1;
}

void DivideBySum(std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += std::abs(v);
  const auto even = 1.0F / static_cast<float>(x.size());
  for (float& v : x) v = sum > 0 ? static_cast<float>(v / sum) : even;
}

// x[t] = the mean of from[t .. t + width).
void SlideMean(const std::vector<float>& from, uint32_t width, std::vector<float>& x) {
  std::vector<double> sum(x.size());
  for (uint32_t i = 0; i < width; ++i) {
    for (size_t t = 0; t < x.size(); ++t) sum[t] += from[t + i];
  }
  for (size_t t = 0; t < x.size(); ++t) x[t] = static_cast<float>(sum[t] / width);
}

// x[t] = the most of from[t .. t + width), which it uses up: maxima of 2, 4, 8 ... in turn.
void SlideMax(std::vector<float>& from, uint32_t width, std::vector<float>& x) {
  uint32_t span = 1;
  for (; 2 * span <= width; span *= 2) {
    for (size_t t = 0; t + span < from.size(); ++t) from[t] = std::max(from[t], from[t + span]);
  }
  for (size_t t = 0; t < x.size(); ++t) x[t] = std::max(from[t], from[t + width - span]);
}

}  // namespace

void Pool(ScoreMap& scores, Reduce how, uint32_t width) {
  ForEachHead(scores, [&](std::vector<float>& x) {
    // The first and the last score go on beyond the ends.
    std::vector<float> from(x.size() + width - 1, x.back());
    std::fill_n(from.begin(), width / 2, x.front());
    std::copy(x.begin(), x.end(), from.begin() + width / 2);
    how == Reduce::kMax ? SlideMax(from, width, x) : SlideMean(from, width, x);
  });
}

void Chunk(ScoreMap& scores, uint32_t size) {
  ForEachHead(scores, [&](std::vector<float>& x) {
    for (size_t first = 0; first < x.size(); first += size) {
      const size_t end = std::min(x.size(), first + size);
      const auto begin = x.begin() + static_cast<ptrdiff_t>(first);
      const auto stop = x.begin() + static_cast<ptrdiff_t>(end);
      const double mean = std::accumulate(begin, stop, 0.0) / static_cast<double>(end - first);
      std::fill(begin, stop, static_cast<float>(mean));
    }
  });
}

void JoinHeads(ScoreMap& scores, Reduce how) {
  for (size_t token = 0; token < size_t{scores.layers} * scores.tokens; ++token) {
    float* x = scores.values.data() + token * scores.heads;
    double sum = 0;
    float most = x[0];
    for (uint32_t h = 0; h < scores.heads; ++h) {
      sum += x[h];
      most = std::max(most, x[h]);
    }
    std::fill_n(x, scores.heads,
                how == Reduce::kMax ? most : static_cast<float>(sum / scores.heads));
  }
}

void NormalizeScores(ScoreMap& scores, Normalize how) {
  switch (how) {
    case Normalize::kStandard:
      return ForEachHead(scores, Standardize);
    case Normalize::kSoftmax:
      return ForEachHead(scores, Softmax);
    case Normalize::kRank:
      return ForEachHead(scores, Rank);
    case Normalize::kMax:
      return ForEachHead(scores, DivideByMax);
    case Normalize::kSum:
      return ForEachHead(scores, DivideBySum);
  }
}

void Decay(ScoreMap& scores, double half_life) {
  ForEachHead(scores, [&](std::vector<float>& x) {
    for (size_t t = 0; t < x.size(); ++t) {
      x[t] *= static_cast<float>(FixedExp2(-static_cast<double>(x.size() - 1 - t) / half_life));
    }
  });
}

void AddScores(ScoreMap& a, const ScoreMap& b, double weight) {
  for (size_t i = 0; i < a.values.size(); ++i) {
    a.values[i] = static_cast<float>(a.values[i] + weight * b.values[i]);
  }
}

void MultiplyScores(ScoreMap& a, const ScoreMap& b) {
  for (size_t i = 0; i < a.values.size(); ++i) a.values[i] *= b.values[i];
}

}  // namespace kvstow
