// The scores that a budget chooses among, and the tokens that are kept before it does.
#ifndef KVSTOW_KERNELS_CUDA_SCORE_CHOSEN_CUH_
#define KVSTOW_KERNELS_CUDA_SCORE_CHOSEN_CUH_

#include "kernels/cuda/score/score_memory.cuh"

namespace kvstow::gpu {

// The scores to choose among: those of all heads, or the means that stand for them.
struct Chosen {
  uint32_t layers = 0, tokens = 0, heads = 0;
  bool means = false;
  uint32_t slot = 0;  // of the scores or, with means, 0 = of the first, 1 = of the last score

  KVSTOW_GPU size_t entries() const { return size_t{layers} * tokens * heads; }
  KVSTOW_GPU const float* ScoresOf(const ScoreLaunch& launch, uint32_t page) const {
    if (!means) return MapOf(launch, slot, page);
    return launch.means + (size_t{slot} * launch.pages + page) * tokens;
  }
  KVSTOW_GPU uint8_t* KeepOf(const ScoreLaunch& launch, uint32_t page) const {
    return launch.keep + page * entries();
  }
};

// The mean of each token over layers and heads.
struct MakeMean {
  uint32_t from, to;  // a slot of scores, one of means

  KVSTOW_GPU size_t Items(const ScoreLaunch& launch) const { return launch.layout.tokens; }
  KVSTOW_GPU void One(const ScoreLaunch& launch, uint32_t page, size_t t) const {
    const ScoreLayout& layout = launch.layout;
    const float* const scores = MapOf(launch, from, page);
    double sum = 0;
    for (uint32_t l = 0; l < layout.layers; ++l) {
      for (uint32_t h = 0; h < layout.heads; ++h) {
        sum += scores[l * layout.layer_entries() + t * layout.heads + h];
      }
    }
    const double count = static_cast<double>(layout.layers) * layout.heads;
    PutScore(launch, page, static_cast<float>(sum / count),
             launch.means + (size_t{to} * launch.pages + page) * layout.tokens + t);
  }
};

// Protected tokens stay and, with a threshold, those that reach it.
struct BeginKeeping {
  Chosen chosen;
  bool has_threshold;
  double threshold;

  KVSTOW_GPU size_t Items(const ScoreLaunch&) const { return chosen.entries(); }
  KVSTOW_GPU void One(const ScoreLaunch& launch, uint32_t page, size_t e) const {
    const auto token = static_cast<uint32_t>(e / chosen.heads % chosen.tokens);
    uint8_t keep = launch.protected_tokens[size_t{page} * chosen.tokens + token];
    if (has_threshold && chosen.ScoresOf(launch, page)[e] >= threshold) keep = 1;
    chosen.KeepOf(launch, page)[e] = keep;
  }
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SCORE_CHOSEN_CUH_
