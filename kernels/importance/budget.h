// Budgets: choose the tokens that stay by their scores.
//
//   auto s = SelectTokens({.keep = 0.25}, {.first = 4, .last = 32}, {}, shares, scores, nullptr);
//
// Protected tokens always stay, even when they are more than the budget, and count against it. The
// rest of the budget goes to the highest scores; of equal ones to the earliest position, then the
// lowest layer and head. A score that is not finite is lower than any that is. A budget of 0 keeps
// only the protected tokens. A budget beyond all tokens keeps everything. Free functions,
// thread-safe.
#ifndef KVSTOW_KERNELS_IMPORTANCE_BUDGET_H_
#define KVSTOW_KERNELS_IMPORTANCE_BUDGET_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/importance/importance.h"

namespace kvstow {

enum class BudgetScope : uint8_t {
  kHead,   // each head of each layer keeps its own tokens, all of a layer as many
  kLayer,  // the heads of a layer compete (AdaKV, arXiv:2407.11550)
  kPage,   // all heads of all layers compete
  kToken,  // a token stays in all heads and layers or in none; its score is the mean of theirs
};

enum class LayerProfile : uint8_t {
  kFlat,      // every layer the same share
  kPyramid,   // falling in a line with depth (PyramidKV, arXiv:2406.02069)
  kDecay,     // falling by a factor with depth (PyramidInfer, arXiv:2405.12532)
  kVariance,  // by entropy and variance of the window's attention (CAKE, arXiv:2503.12491)
  kLazy,      // all of a layer, or only the protected where they hold most of the score
              // (SimLayerKV, arXiv:2410.13846)
};

struct Budget {
  double keep = 1;                  // share of the tokens, 0..1
  std::optional<uint32_t> count;    // or a number of tokens for each head
  std::optional<double> threshold;  // or every token whose score is at least this
  BudgetScope scope = BudgetScope::kHead;
  LayerProfile profile = LayerProfile::kFlat;
  double beta = 20;     // pyramid: the last layer's part of the mean is 1 / beta
  double decay = 0.95;  // decay: a layer's share over the one before
  double lazy = 0.9;    // lazy: share of the score that the protected must hold
  double floor = 0;     // layer scope: the part of its fair share that a head has for certain
  bool merge = false;   // the values of dropped tokens go into those kept (merge.h)
  double split = 0;     // the part of the budget that goes by the first of two scores
};

struct Protection {
  uint32_t first = 0, last = 0;  // tokens of the page
};
// Returns whether a token stays whatever its score. `named` is empty or [tokens].
bool IsProtected(const Protection& protection, std::span<const uint8_t> named, uint32_t tokens,
                 uint32_t token);

struct Selection {
  uint32_t layers = 0, tokens = 0, heads = 0;
  std::vector<uint8_t> keep;  // [layers, tokens, heads], 0 or 1
  bool merge = false;         // see Budget

  bool Kept(uint32_t layer, uint32_t token, uint32_t head) const {
    return keep[(size_t{layer} * tokens + token) * heads + head] != 0;
  }
  double Share() const;  // share of all entries that stay
};

// Returns the share of each layer, 0..1. Their mean is budget.keep as far as no layer is cut off at
// 1; kLazy gives 0 or 1 alone. `window` and `variance` are the columns that kVariance weighs layers
// by. Other profiles use only the scores.
std::vector<double> LayerShares(const Budget& budget, const Protection& protection,
                                const ScoreMap& scores, const ScoreMap* window,
                                const ScoreMap* variance);

// One step of choosing. Each group of entries keeps its best until the group has kept its count.
struct Fill {
  BudgetScope scope = BudgetScope::kHead;  // the group: a head, a layer or the page
  bool by_first = false;                   // chooses by the score of the budget's first part
  std::vector<uint32_t> counts;  // for the groups of each layer; [1] when the page is the group
};
// Returns the steps in order; none with a threshold. In the scope kToken they are the steps of one
// layer and one head, which stand for all.
std::vector<Fill> FillsOf(const Budget& budget, std::span<const double> shares, uint32_t tokens,
                          uint32_t heads);

// For scope kToken. TokenMeans makes one layer and one head that stand for all, with the mean score
// of each token. ForAllHeads gives their selection to all again.
ScoreMap TokenMeans(const ScoreMap& scores);
Selection ForAllHeads(const Selection& tokens, uint32_t layers, uint32_t heads);

// `protected_tokens` is empty or [tokens]. `shares` has one for each layer, as LayerShares gives.
// `first` is the score of the budget's first part when split > 0, else null.
Selection SelectTokens(const Budget& budget, const Protection& protection,
                       std::span<const uint8_t> protected_tokens, std::span<const double> shares,
                       const ScoreMap& scores, const ScoreMap* first);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_BUDGET_H_
