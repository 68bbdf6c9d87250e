// What the keys of a page say of a model of which nothing is known: how much it feels errors in
// each layer (calibration/cost_prior.h), and in each token (calibration/key_slopes.h).
//
// A token that one layer looks at is one that others look at, too. Where layers have few heads, a
// guess by the layers of one run is a poor one. Here it is a mean over the whole page, for which a
// third of the layers is enough (docs/decisions/0102-a-rope-for-each-layer.md).
//
// A free function; thread-safe.
#ifndef KVSTOW_KERNELS_METHODS_PAGE_GUESS_H_
#define KVSTOW_KERNELS_METHODS_PAGE_GUESS_H_

#include <vector>

#include "kernels/page/page.h"
#include "kernels/page/page_to_encode.h"

namespace kvstow {

struct PageGuess {
  std::vector<float> felt;       // of each layer, over their mean; empty: not known
  std::vector<float> log_steps;  // log2 of each token's step over the usual one; empty: not known
};

// Reads K of the page's tokens behind the first `plain`. The page fits the spec, which has K and V.
// Guesses tokens if `tokens`. Knows nothing of a page whose values are NaN or Inf, and of fewer
// than kFewestTokensToGuess tokens.
PageGuess GuessOf(const KvSpec& spec, const PageToEncode& page, uint32_t plain, bool tokens);

inline constexpr uint32_t kFewestTokensToGuess = 8;

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_PAGE_GUESS_H_
