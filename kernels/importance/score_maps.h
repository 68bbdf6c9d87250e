// What is done to scores once they are there: to their scale, to neighbours in a sequence, across
// heads.
//
// In place, for each layer by itself. Free functions, thread-safe.
#ifndef KVSTOW_KERNELS_IMPORTANCE_SCORE_MAPS_H_
#define KVSTOW_KERNELS_IMPORTANCE_SCORE_MAPS_H_

#include <cstdint>

#include "kernels/importance/importance.h"

namespace kvstow {

enum class Reduce : uint8_t { kMean, kMax };
enum class Normalize : uint8_t { kStandard, kSoftmax, kRank, kMax, kSum };

// The mean or the maximum over `width` tokens around each (width odd); past the ends, the end
// repeats.
void Pool(ScoreMap& scores, Reduce how, uint32_t width);

// Every token of a chunk of `size` consecutive tokens gets the chunk's mean (ChunkKV,
// arXiv:2502.00299); the last chunk may be shorter.
void Chunk(ScoreMap& scores, uint32_t size);

// All heads of a layer get the mean or the maximum of their scores.
void JoinHeads(ScoreMap& scores, Reduce how);

// Over the tokens of each head: (x - mean) / deviation, softmax, rank / tokens (ties: the earlier
// token ranks higher), x / max |x|, or x / sum |x|. Constant scores become 0, 1 / tokens, ranks, 1
// or 1 / tokens.
void NormalizeScores(ScoreMap& scores, Normalize how);

// Times 2^(-age / half_life), age in tokens before the last.
void Decay(ScoreMap& scores, double half_life);

// a = a + weight * b, and a = a * b.
void AddScores(ScoreMap& a, const ScoreMap& b, double weight);
void MultiplyScores(ScoreMap& a, const ScoreMap& b);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_SCORE_MAPS_H_
