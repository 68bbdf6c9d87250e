// Scores of an entry by itself and over the heads of a token: what score_ops.cc and score_maps.h
// compute.
#ifndef KVSTOW_KERNELS_CUDA_SCORE_MAP_STEPS_CUH_
#define KVSTOW_KERNELS_CUDA_SCORE_MAP_STEPS_CUH_

#include "kernels/cuda/score/score_memory.cuh"
#include "kernels/importance/exponential.h"
#include "kernels/importance/score_maps.h"
#include "kernels/page/split_mix.h"

namespace kvstow::gpu {

// Ops whose scores depend on the same entry of other scores alone.
struct ScoreEntry {
  ScoreOp op;

  KVSTOW_GPU size_t Items(const ScoreLaunch& launch) const { return launch.layout.entries(); }
  KVSTOW_GPU void One(const ScoreLaunch& launch, uint32_t page, size_t e) const {
    float* const to = MapOf(launch, op.to, page) + e;
    PutScore(launch, page, ScoreOf(launch, page, e, to), to);
  }

 private:
  // `old` is the score so far, which not every op has.
  KVSTOW_GPU float ScoreOf(const ScoreLaunch& launch, uint32_t page, size_t e,
                           const float* old) const {
    const ScoreLayout& layout = launch.layout;
    const auto token = static_cast<uint32_t>(e / layout.heads % layout.tokens);
    switch (op.kind) {
      case ScoreOpKind::kPosition:
        return static_cast<float>(token);
      case ScoreOpKind::kRandom: {
        const uint64_t layer = e / layout.layer_entries(), head = e % layout.heads;
        const uint64_t where = SplitMix64(uint64_t{op.number} << 32 | layer << 10 | head);
        const uint64_t hash = SplitMix64(where ^ (launch.first_position[page] + token));
        return static_cast<float>(hash >> 40) * 0x1p-24F;
      }
      case ScoreOpKind::kDecay: {
        const auto age = static_cast<double>(layout.tokens - 1 - token);
        return *old * static_cast<float>(FixedExp2(-age / op.real));
      }
      case ScoreOpKind::kShift:
        return static_cast<float>(*old + op.real);
      case ScoreOpKind::kPlus:
        return static_cast<float>(*old + op.real * MapOf(launch, op.from, page)[e]);
      case ScoreOpKind::kTimes:
        return *old * MapOf(launch, op.from, page)[e];
      default:
        return 0;  // of other steps
    }
  }
};

// All heads of a layer get the mean or the most of their scores.
struct JoinHeads {
  Reduce how;
  uint32_t to;

  KVSTOW_GPU size_t Items(const ScoreLaunch& launch) const {
    return size_t{launch.layout.layers} * launch.layout.tokens;
  }
  KVSTOW_GPU void One(const ScoreLaunch& launch, uint32_t page, size_t token) const {
    const ScoreLayout& layout = launch.layout;
    float* const x = MapOf(launch, to, page) + token * layout.heads;
    double sum = 0;
    float most = x[0];
    for (uint32_t h = 0; h < layout.heads; ++h) {
      sum += x[h];
      most = std::max(most, x[h]);
    }
    const float joined = how == Reduce::kMax ? most : static_cast<float>(sum / layout.heads);
    for (uint32_t h = 0; h < layout.heads; ++h) PutScore(launch, page, joined, x + h);
  }
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SCORE_MAP_STEPS_CUH_
