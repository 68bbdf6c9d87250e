// Operations on scores: on their scale, along a sequence, across heads.
//
// In place, for each layer by itself. Free functions, thread-safe.
#ifndef KVSTOW_KERNELS_IMPORTANCE_SCORE_MAPS_H_
#define KVSTOW_KERNELS_IMPORTANCE_SCORE_MAPS_H_

#include <cstdint>

#include "kernels/importance/importance.h"

namespace kvstow {

enum class Reduce : uint8_t { kMean, kMax };
enum class Normalize : uint8_t { kStandard, kSoftmax, kRank, kMax, kSum };

// Each score becomes the mean or the maximum over `width` tokens around it (width odd). Past the
// ends, the end repeats.
void Pool(ScoreMap& scores, Reduce how, uint32_t width);

// Every token of a chunk of `size` consecutive tokens gets the chunk's mean (ChunkKV,
// arXiv:2502.00299); the last chunk may be shorter.
void Chunk(ScoreMap& scores, uint32_t size);

// All heads of a layer get the mean or the maximum of their scores.
void JoinHeads(ScoreMap& scores, Reduce how);

// Over the tokens of each head: (x - mean) / deviation, softmax, rank / tokens (ties: the earlier
// token ranks higher), x / max |x|, or x / sum |x|. Constant scores become 0, 1 / tokens, ranks, 1
// or 1 / tokens; the last two keep a minus sign.
void NormalizeScores(ScoreMap& scores, Normalize how);

// Multiplies by 2^(-age / half_life). The age counts tokens before the last.
void Decay(ScoreMap& scores, double half_life);

// a = a + weight * b, and a = a * b.
void AddScores(ScoreMap& a, const ScoreMap& b, double weight);
void MultiplyScores(ScoreMap& a, const ScoreMap& b);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_SCORE_MAPS_H_
