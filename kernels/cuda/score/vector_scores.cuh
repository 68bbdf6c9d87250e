// Scores from single keys and values, and from all keys of a head: what key_value_scores.h
// computes.
#ifndef KVSTOW_KERNELS_CUDA_SCORE_VECTOR_SCORES_CUH_
#define KVSTOW_KERNELS_CUDA_SCORE_VECTOR_SCORES_CUH_

#include "kernels/cuda/score/score_memory.cuh"

namespace kvstow::gpu {

// -|k| or |v|. A block takes kRows consecutive vectors of a layer.
struct NormStep {
  uint32_t part, to;

  uint32_t Blocks(const ScoreLaunch& launch) const {
    return launch.layout.layers * LayerBlocks(launch.layout);
  }
  size_t SharedBytes(const ScoreLaunch&) const { return kRowSumFloats * sizeof(float); }

  template <typename Run>
  KVSTOW_GPU void Code(const ScoreLaunch& launch, uint32_t page, uint32_t block, uint8_t* shared,
                       const Run& run) const {
    const ScoreLayout& layout = launch.layout;
    const uint32_t layer = block / LayerBlocks(layout);
    const uint32_t first = block % LayerBlocks(layout) * kRows;
    const auto all = static_cast<uint32_t>(layout.layer_entries());
    const uint32_t rows = RowsFrom(first, all), dim = layout.dim[part];
    const Slab slab(launch, page, layer, part);
    auto* const partials = reinterpret_cast<float*>(shared);
    float* const out = MapOf(launch, to, page) + layer * layout.layer_entries() + first;
    run([&](uint32_t thread) {
      PutPartials(thread, rows, dim, partials, [&](uint32_t row, uint32_t c) {
        const float x = slab.Checked(size_t{first + row} * dim + c);
        return x * x;
      });
    });
    run([&](uint32_t thread) {
      if (thread >= rows) return;
      const float length = std::sqrt(FoldRow(partials, thread));
      PutScore(launch, page, part == 0 ? -length : length, out + thread);
    });
  }

 private:
  KVSTOW_GPU static uint32_t LayerBlocks(const ScoreLayout& layout) {
    return BlocksOf(layout.layer_entries(), kRows);
  }
};

// -cos(k, mean of the normalized keys). A block takes a head.
struct DiversityStep {
  uint32_t to;

  uint32_t Blocks(const ScoreLaunch& launch) const {
    return launch.layout.layers * launch.layout.heads;
  }
  size_t SharedBytes(const ScoreLaunch& launch) const {
    return (kRowSumFloats + WholeWords(launch.layout.tokens) + launch.layout.dim[0] + 1) *
           sizeof(float);
  }

  template <typename Run>
  KVSTOW_GPU void Code(const ScoreLaunch& launch, uint32_t page, uint32_t block, uint8_t* shared,
                       const Run& run) const {
    const ScoreLayout& layout = launch.layout;
    const uint32_t layer = block / layout.heads, head = block % layout.heads;
    const uint32_t tokens = layout.tokens, dim = layout.dim[0];
    const Slab slab(launch, page, layer, 0);
    auto* const partials = reinterpret_cast<float*>(shared);
    float* const inverse = partials + kRowSumFloats;
    float* const sum = inverse + WholeWords(tokens);
    float* const scale = sum + dim;
    float* const out = MapOf(launch, to, page) + layer * layout.layer_entries() + head;
    const auto place = [&](uint32_t token, uint32_t c) {
      return (size_t{token} * layout.heads + head) * dim + c;
    };
    const auto inverse_length = [&](uint32_t row) {
      const float length = std::sqrt(FoldRow(partials, row));
      return 1 / std::max(length, 1e-6F);
    };
    for (uint32_t first = 0; first < tokens; first += kRows) {
      const uint32_t rows = RowsFrom(first, tokens);
      run([&](uint32_t thread) {
        PutPartials(thread, rows, dim, partials, [&](uint32_t row, uint32_t c) {
          const float x = slab.Checked(place(first + row, c));
          return x * x;
        });
      });
      run([&](uint32_t thread) {
        if (thread < rows) inverse[first + thread] = inverse_length(thread);
      });
    }
    run([&](uint32_t thread) {
      for (uint32_t c = thread; c < dim; c += kThreads) {
        float total = 0;
        for (uint32_t t = 0; t < tokens; ++t) total += slab[place(t, c)] * inverse[t];
        sum[c] = total;
      }
    });
    run([&](uint32_t thread) {
      PutPartials(thread, 1, dim, partials, [&](uint32_t, uint32_t c) { return sum[c] * sum[c]; });
    });
    run([&](uint32_t thread) {
      if (thread == 0) *scale = inverse_length(0);
    });
    for (uint32_t first = 0; first < tokens; first += kRows) {
      const uint32_t rows = RowsFrom(first, tokens);
      run([&](uint32_t thread) {
        PutPartials(thread, rows, dim, partials,
                    [&](uint32_t row, uint32_t c) { return slab[place(first + row, c)] * sum[c]; });
      });
      run([&](uint32_t thread) {
        if (thread >= rows) return;
        const uint32_t t = first + thread;
        PutScore(launch, page, -FoldRow(partials, thread) * inverse[t] * *scale,
                 out + size_t{t} * layout.heads);
      });
    }
  }
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SCORE_VECTOR_SCORES_CUH_
