// Which tokens of a page ask, and what their scores come to: what the CPU (foretold_attention.h)
// and a GPU (cuda/joint/foretold_attention.cuh) have in common.
//
// Constants and constexpr functions, which GPU code may call too.
#ifndef KVSTOW_KERNELS_IMPORTANCE_ASKING_TOKENS_H_
#define KVSTOW_KERNELS_IMPORTANCE_ASKING_TOKENS_H_

#include <cstdint>

namespace kvstow {

// Every kQueriesEvery-th token asks, from the last one backwards.
inline constexpr uint32_t kQueriesEvery = 8;
// The power that steps follow the scores with (LogSteps in token_steps.h).
inline constexpr double kForetoldPower = 0.25;
inline constexpr float kLeastLogit = -16;  // below the largest: e^-16 of its weight is nothing

// Returns how many tokens of a page ask. The page has at least one token.
constexpr uint32_t AskingTokens(uint32_t tokens) { return (tokens - 1) / kQueriesEvery + 1; }
// The i-th of them, ascending.
constexpr uint32_t AskingToken(uint32_t tokens, uint32_t i) {
  return (tokens - 1) % kQueriesEvery + i * kQueriesEvery;
}
// Returns how many of them see a token. The last token asks: it is at least one.
constexpr uint32_t AskingThatSee(uint32_t tokens, uint32_t token) {
  return (tokens - 1 - token) / kQueriesEvery + 1;
}

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_ASKING_TOKENS_H_
