// Changes the scores of a head over its tokens, as score_maps.h does.
#ifndef KVSTOW_KERNELS_CUDA_SCORE_TOKENS_STEP_CUH_
#define KVSTOW_KERNELS_CUDA_SCORE_TOKENS_STEP_CUH_

#include "kernels/cuda/score/score_memory.cuh"
#include "kernels/importance/exponential.h"
#include "kernels/importance/score_maps.h"

namespace kvstow::gpu {

// pool, chunk and norm. A block takes a head, whose scores lie in shared memory.
struct TokensStep {
  ScoreOp op;

  uint32_t Blocks(const ScoreLaunch& launch) const {
    return launch.layout.layers * launch.layout.heads;
  }
  size_t SharedBytes(const ScoreLaunch& launch) const {
    return 2 * sizeof(double) + WholeWords(launch.layout.tokens) * sizeof(float);
  }

  template <typename Run>
  KVSTOW_GPU void Code(const ScoreLaunch& launch, uint32_t page, uint32_t block, uint8_t* shared,
                       const Run& run) const {
    const ScoreLayout& layout = launch.layout;
    const uint32_t n = layout.tokens;
    auto* const of_all = reinterpret_cast<double*>(shared);
    auto* const x = reinterpret_cast<float*>(shared + 2 * sizeof(double));
    float* const map = MapOf(launch, op.to, page) + block / layout.heads * layout.layer_entries() +
                       block % layout.heads;
    const auto for_own = [n](uint32_t thread, const auto& f) {
      for (uint32_t t = thread; t < n; t += kThreads) f(t);
    };
    run([&](uint32_t thread) {
      for_own(thread, [&](uint32_t t) { x[t] = map[size_t{t} * layout.heads]; });
    });
    if (op.kind == ScoreOpKind::kNorm) {
      const auto how = static_cast<Normalize>(op.how);
      if (how == Normalize::kSoftmax) {
        run([&](uint32_t thread) {
          if (thread == 0) of_all[1] = MostOf(x, n);
        });
        run([&](uint32_t thread) {
          const auto most = static_cast<float>(of_all[1]);
          for_own(thread, [&](uint32_t t) { x[t] = FixedExp(x[t] - most); });
        });
      }
      run([&](uint32_t thread) {
        if (thread == 0) Summarize(how, x, n, of_all);
      });
    }
    run([&](uint32_t thread) {
      for_own(thread, [&](uint32_t t) {
        PutScore(launch, page, ScoreOf(x, n, t, of_all), map + size_t{t} * layout.heads);
      });
    });
  }

 private:
  KVSTOW_GPU static float MostOf(const float* x, uint32_t n) {
    float most = x[0];
    for (uint32_t t = 1; t < n; ++t) most = std::max(most, x[t]);
    return most;
  }

  // Computes what a norm needs of all scores: their sum or largest, or their mean and deviation.
  KVSTOW_GPU static void Summarize(Normalize how, const float* x, uint32_t n, double* of_all) {
    double sum = 0, squares = 0;
    float most = 0;
    for (uint32_t t = 0; t < n; ++t) {
      sum += how == Normalize::kSum ? std::abs(x[t]) : x[t];
      most = std::max(most, std::abs(x[t]));
    }
    of_all[0] = how == Normalize::kMax ? most : sum;
    if (how != Normalize::kStandard) return;
    const double mean = sum / n;
    for (uint32_t t = 0; t < n; ++t) squares += (x[t] - mean) * (x[t] - mean);
    of_all[0] = mean;
    of_all[1] = std::sqrt(squares / n);
  }

  KVSTOW_GPU float ScoreOf(const float* x, uint32_t n, uint32_t t, const double* of_all) const {
    if (op.kind == ScoreOpKind::kPool) return Pooled(x, n, t);
    if (op.kind == ScoreOpKind::kChunk) return ChunkMean(x, n, t);
    switch (static_cast<Normalize>(op.how)) {
      case Normalize::kStandard:
        return static_cast<float>(of_all[1] > 0 ? (x[t] - of_all[0]) / of_all[1] : 0);
      case Normalize::kSoftmax:
        return static_cast<float>(x[t] / of_all[0]);
      case Normalize::kRank: {
        // Among equals the later token comes first.
        uint32_t rank = 0;
        for (uint32_t u = 0; u < n; ++u) rank += x[u] < x[t] || (x[u] == x[t] && u > t) ? 1 : 0;
        return static_cast<float>(rank) / static_cast<float>(n);
      }
      case Normalize::kMax: {
        const auto most = static_cast<float>(of_all[0]);
        return most > 0 ? x[t] / most : 1;
      }
      case Normalize::kSum:
        break;
    }
    return of_all[0] > 0 ? static_cast<float>(x[t] / of_all[0]) : 1.0F / static_cast<float>(n);
  }

  // Pools the `number` scores around t. The first and the last go on beyond the ends.
  KVSTOW_GPU float Pooled(const float* x, uint32_t n, uint32_t t) const {
    double sum = 0;
    float most = 0;
    for (uint32_t i = 0; i < op.number; ++i) {
      const uint32_t at = t + i < op.number / 2 ? 0 : std::min(t + i - op.number / 2, n - 1);
      sum += x[at];
      most = i == 0 ? x[at] : std::max(most, x[at]);
    }
    return static_cast<Reduce>(op.how) == Reduce::kMax ? most : static_cast<float>(sum / op.number);
  }

  KVSTOW_GPU float ChunkMean(const float* x, uint32_t n, uint32_t t) const {
    const uint32_t first = t / op.number * op.number, end = std::min(n, first + op.number);
    double sum = 0;
    for (uint32_t u = first; u < end; ++u) sum += x[u];
    return static_cast<float>(sum / (end - first));
  }
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SCORE_TOKENS_STEP_CUH_
