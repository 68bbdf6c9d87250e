#include "kernels/importance/budget.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvstow {
namespace {

// Chooses among entries of one selection: those already kept count, the rest go by score.
class Chooser {
 public:
  Chooser(Selection& selection, const ScoreMap& scores) : selection_(selection), scores_(scores) {}

  // Keeps the best of `entries` until `count` of them are kept.
  void Fill(std::vector<size_t> entries, size_t count) {
    const auto kept = [&](size_t e) { return selection_.keep[e] != 0; };
    const auto open = std::partition(entries.begin(), entries.end(), kept);
    const auto have = static_cast<size_t>(open - entries.begin());
    if (have >= count) return;
    const size_t more = std::min<size_t>(count - have, entries.end() - open);
    const auto end = open + static_cast<ptrdiff_t>(more);
    const auto before = [&](size_t a, size_t b) { return Before(a, b); };
    if (end != entries.end()) std::nth_element(open, end, entries.end(), before);
    for (auto e = open; e != end; ++e) selection_.keep[*e] = 1;
  }

 private:
  float Score(size_t entry) const {
    const float score = scores_.values[entry];
    return std::isfinite(score) ? score : -std::numeric_limits<float>::infinity();
  }
  size_t Position(size_t entry) const { return entry / selection_.heads % selection_.tokens; }
  bool Before(size_t a, size_t b) const {
    const float sa = Score(a), sb = Score(b);
    if (sa != sb) return sa > sb;
    const size_t pa = Position(a), pb = Position(b);
    return pa != pb ? pa < pb : a < b;
  }

  Selection& selection_;
  const ScoreMap& scores_;
};

std::vector<size_t> EntriesOfHead(const Selection& s, uint32_t layer, uint32_t head) {
  std::vector<size_t> out;
  out.reserve(s.tokens);
  for (uint32_t t = 0; t < s.tokens; ++t) {
    out.push_back((size_t{layer} * s.tokens + t) * s.heads + head);
  }
  return out;
}

std::vector<size_t> EntriesOfLayers(const Selection& s, uint32_t first, uint32_t count) {
  std::vector<size_t> out(size_t{count} * s.tokens * s.heads);
  std::iota(out.begin(), out.end(), size_t{first} * s.tokens * s.heads);
  return out;
}

// How many tokens a head of this layer keeps.
size_t TokensOf(const Budget& budget, double share, uint32_t tokens) {
  if (budget.count.has_value()) return std::min(*budget.count, tokens);
  // A product that only rounding keeps from a whole number is that number.
  return static_cast<size_t>(std::floor(share * tokens + 1e-9));
}

// Adds one pass of choosing, with `part` of the budget.
void AddFills(const Budget& budget, std::span<const double> shares, uint32_t tokens, uint32_t heads,
              double part, bool by_first, std::vector<Fill>& fills) {
  const auto counts = [&](double of, uint32_t groups) {
    std::vector<uint32_t> out;
    for (const double share : shares) {
      const auto whole = static_cast<double>(TokensOf(budget, share, tokens));
      out.push_back(static_cast<uint32_t>(std::floor(whole * of + 1e-9)) * groups);
    }
    return out;
  };
  switch (budget.scope) {
    case BudgetScope::kHead:
    case BudgetScope::kToken:
      fills.push_back({BudgetScope::kHead, by_first, counts(part, 1)});
      return;
    case BudgetScope::kLayer:
      fills.push_back({BudgetScope::kHead, by_first, counts(part * budget.floor, 1)});
      fills.push_back({BudgetScope::kLayer, by_first, counts(part, heads)});
      return;
    case BudgetScope::kPage: {
      const std::vector<uint32_t> all = counts(part, heads);
      fills.push_back(
          {BudgetScope::kPage, by_first, {std::accumulate(all.begin(), all.end(), 0U)}});
      return;
    }
  }
}

void Choose(const Fill& fill, const ScoreMap& scores, Selection& s) {
  Chooser chooser(s, scores);
  if (fill.scope == BudgetScope::kPage) {
    return chooser.Fill(EntriesOfLayers(s, 0, s.layers), fill.counts[0]);
  }
  for (uint32_t l = 0; l < s.layers; ++l) {
    if (fill.scope == BudgetScope::kLayer) {
      chooser.Fill(EntriesOfLayers(s, l, 1), fill.counts[l]);
      continue;
    }
    for (uint32_t h = 0; h < s.heads; ++h) chooser.Fill(EntriesOfHead(s, l, h), fill.counts[l]);
  }
}

Selection Choose(std::span<const Fill> fills, const Budget& budget, const Protection& protection,
                 std::span<const uint8_t> protected_tokens, const ScoreMap& scores,
                 const ScoreMap* first) {
  Selection s{scores.layers, scores.tokens, scores.heads, {}};
  s.keep.resize(scores.values.size());
  for (size_t e = 0; e < s.keep.size(); ++e) {
    const auto token = static_cast<uint32_t>(e / s.heads % s.tokens);
    s.keep[e] = IsProtected(protection, protected_tokens, s.tokens, token) ? 1 : 0;
    if (budget.threshold.has_value() && scores.values[e] >= *budget.threshold) s.keep[e] = 1;
  }
  for (const Fill& fill : fills) Choose(fill, fill.by_first ? *first : scores, s);
  return s;
}

// Shares in proportion to weights, cut off at 1; what is cut off goes to the others.
std::vector<double> SharesByWeight(std::vector<double> weights, double mean) {
  std::vector<double> shares(weights.size(), 0);
  std::vector<bool> full(weights.size(), false);
  double left = mean * static_cast<double>(weights.size());
  for (bool again = true; again;) {
    again = false;
    double sum = 0;
    for (size_t l = 0; l < weights.size(); ++l) sum += full[l] ? 0 : weights[l];
    const double before = left;
    for (size_t l = 0; l < weights.size(); ++l) {
      if (full[l]) continue;
      shares[l] = sum > 0 ? before * weights[l] / sum : 0;
      if (shares[l] <= 1) continue;
      shares[l] = 1;
      full[l] = again = true;
      left -= 1;
    }
  }
  return shares;
}

// Entropy of a layer's scores over tokens, mean over the heads (CAKE eq. 5): of scores x that sum
// up to S, log S - sum(x log x) / S.
double EntropyOf(const ScoreMap& map, uint32_t layer) {
  std::vector<double> sums(map.heads), logs(map.heads);
  const float* score = map.Layer(layer);
  for (uint32_t t = 0; t < map.tokens; ++t) {
    for (uint32_t h = 0; h < map.heads; ++h, ++score) {
      if (!(*score > 0)) continue;
      const double x = *score;
      sums[h] += x;
      logs[h] += x * std::log(x);
    }
  }
  double entropy = 0;
  for (uint32_t h = 0; h < map.heads; ++h) {
    // Rounding may leave a head that looks at one token just below 0.
    if (sums[h] > 0) entropy += std::max(0.0, std::log(sums[h]) - logs[h] / sums[h]);
  }
  return entropy / map.heads;
}

// Sum of the variance of a layer's scores, mean over the heads (CAKE eq. 6).
double SumOf(const ScoreMap& map, uint32_t layer) {
  double sum = 0;
  for (size_t i = 0; i < map.LayerSize(); ++i) sum += std::max(0.0F, map.Layer(layer)[i]);
  return sum / map.heads;
}

// The share of the layer's score that its protected tokens hold.
double ProtectedShare(const Protection& protection, const ScoreMap& map, uint32_t layer) {
  double all = 0, held = 0;
  for (uint32_t t = 0; t < map.tokens; ++t) {
    for (uint32_t h = 0; h < map.heads; ++h) {
      const double x = std::max(0.0F, map.Layer(layer)[size_t{t} * map.heads + h]);
      all += x;
      if (IsProtected(protection, {}, map.tokens, t)) held += x;
    }
  }
  return all > 0 ? held / all : 0;
}

std::vector<double> PyramidShares(const Budget& budget, const Protection& protection,
                                  const ScoreMap& scores) {
  const double window = std::min(1.0, static_cast<double>(protection.last) / scores.tokens);
  const double mean = std::max(0.0, budget.keep - window);
  const double low = mean / budget.beta, high = 2 * mean - low;
  std::vector<double> shares(scores.layers, budget.keep);
  for (uint32_t l = 0; l < scores.layers && scores.layers > 1; ++l) {
    shares[l] = std::min(1.0, high + (low - high) * l / (scores.layers - 1) + window);
  }
  return shares;
}

}  // namespace

double Selection::Share() const {
  const auto kept = std::accumulate(keep.begin(), keep.end(), size_t{0});
  return keep.empty() ? 0 : static_cast<double>(kept) / static_cast<double>(keep.size());
}

std::vector<double> LayerShares(const Budget& budget, const Protection& protection,
                                const ScoreMap& scores, const ScoreMap* window,
                                const ScoreMap* variance) {
  std::vector<double> weights(scores.layers, 1);
  switch (budget.profile) {
    case LayerProfile::kFlat:
      break;
    case LayerProfile::kPyramid:
      return PyramidShares(budget, protection, scores);
    case LayerProfile::kDecay:
      for (uint32_t l = 0; l < scores.layers; ++l) weights[l] = std::pow(budget.decay, l);
      break;
    case LayerProfile::kVariance:
      for (uint32_t l = 0; l < scores.layers; ++l) {
        // Exponents 1 / 1.6 and 1 / 0.4: the paper's temperatures.
        const double weight =
            std::pow(EntropyOf(*window, l), 1 / 1.6) * std::pow(SumOf(*variance, l), 1 / 0.4);
        weights[l] = std::isfinite(weight) ? weight : 0;
      }
      break;
    case LayerProfile::kLazy:
      for (uint32_t l = 0; l < scores.layers; ++l) {
        weights[l] = ProtectedShare(protection, scores, l) > budget.lazy ? 0 : 1;
      }
      return weights;
  }
  return SharesByWeight(std::move(weights), budget.keep);
}

bool IsProtected(const Protection& protection, std::span<const uint8_t> named, uint32_t tokens,
                 uint32_t token) {
  return token < protection.first || token + uint64_t{protection.last} >= tokens ||
         (!named.empty() && named[token] != 0);
}

std::vector<Fill> FillsOf(const Budget& budget, std::span<const double> shares, uint32_t tokens,
                          uint32_t heads) {
  std::vector<Fill> fills;
  if (budget.threshold.has_value()) return fills;
  const double mean =
      std::accumulate(shares.begin(), shares.end(), 0.0) / static_cast<double>(shares.size());
  if (budget.scope == BudgetScope::kToken) shares = {&mean, 1};
  if (budget.split > 0) AddFills(budget, shares, tokens, heads, budget.split, true, fills);
  AddFills(budget, shares, tokens, heads, 1, false, fills);
  return fills;
}

ScoreMap TokenMeans(const ScoreMap& scores) {
  ScoreMap out(1, scores.tokens, 1);
  for (uint32_t t = 0; t < scores.tokens; ++t) {
    double sum = 0;
    for (uint32_t l = 0; l < scores.layers; ++l) {
      for (uint32_t h = 0; h < scores.heads; ++h) {
        sum += scores.Layer(l)[size_t{t} * scores.heads + h];
      }
    }
    out.values[t] = static_cast<float>(sum / (static_cast<double>(scores.layers) * scores.heads));
  }
  return out;
}

Selection ForAllHeads(const Selection& tokens, uint32_t layers, uint32_t heads) {
  Selection s{layers, tokens.tokens, heads, {}};
  s.keep.resize(size_t{layers} * tokens.tokens * heads);
  for (size_t e = 0; e < s.keep.size(); ++e) s.keep[e] = tokens.keep[e / heads % tokens.tokens];
  return s;
}

Selection SelectTokens(const Budget& budget, const Protection& protection,
                       std::span<const uint8_t> protected_tokens, std::span<const double> shares,
                       const ScoreMap& scores, const ScoreMap* first) {
  const std::vector<Fill> fills = FillsOf(budget, shares, scores.tokens, scores.heads);
  if (budget.scope != BudgetScope::kToken) {
    return Choose(fills, budget, protection, protected_tokens, scores, first);
  }
  const ScoreMap means = TokenMeans(scores);
  const ScoreMap first_means = first == nullptr ? ScoreMap() : TokenMeans(*first);
  return ForAllHeads(Choose(fills, budget, protection, protected_tokens, means, &first_means),
                     scores.layers, scores.heads);
}

}  // namespace kvstow
