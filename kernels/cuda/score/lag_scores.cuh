// LagKV's score of a token, as LagScore (key_value_scores.h) computes it.
#ifndef KVSTOW_KERNELS_CUDA_SCORE_LAG_SCORES_CUH_
#define KVSTOW_KERNELS_CUDA_SCORE_LAG_SCORES_CUH_

#include "kernels/cuda/score/score_memory.cuh"
#include "kernels/importance/exponential.h"

namespace kvstow::gpu {

// K or V of a partition of one head, and the softmax over its tokens of their deviation across
// channels. Functions of a thread are phases.
class LagPartition {
 public:
  static constexpr size_t SharedFloats(const ScoreLayout& layout) {
    return 2 * kRowSumFloats + 2 * std::max(layout.dim[0], layout.dim[1]) + layout.tokens + 2;
  }

  // `count` tokens from `first` on; the next partition ends at `end`.
  KVSTOW_GPU LagPartition(const ScoreLaunch& launch, uint32_t page, uint32_t layer, uint32_t head,
                          uint32_t part, uint32_t first, uint32_t count, uint32_t end,
                          float* shared)
      : slab_(launch, page, layer, part),
        heads_(launch.layout.heads),
        head_(head),
        dim_(launch.layout.dim[part]),
        first_(first),
        count_(count),
        end_(end),
        sums_(shared),
        squares_(sums_ + kRowSumFloats),
        low_(squares_ + kRowSumFloats),
        inverse_(low_ + dim_),
        deviation_(inverse_ + dim_),
        most_(deviation_ + count_),
        total_(most_ + 1) {}

  // Leaves the softmax for Share.
  template <typename Run>
  KVSTOW_GPU void Code(const Run& run) const {
    run([&](uint32_t thread) { Bounds(thread); });
    for (uint32_t done = 0; done < count_; done += kRows) {
      const uint32_t rows = RowsFrom(done, count_);
      run([&](uint32_t thread) { Sums(done, rows, thread); });
      run([&](uint32_t thread) {
        if (thread < rows) deviation_[done + thread] = Deviation(thread);
      });
    }
    run([&](uint32_t thread) {
      if (thread != 0) return;
      *most_ = deviation_[0];
      for (uint32_t i = 1; i < count_; ++i) *most_ = std::max(*most_, deviation_[i]);
    });
    run([&](uint32_t thread) {
      for (uint32_t i = thread; i < count_; i += kThreads) {
        deviation_[i] = FixedExp(deviation_[i] - *most_);
      }
    });
    run([&](uint32_t thread) {
      if (thread != 0) return;
      float total = 0;
      for (uint32_t i = 0; i < count_; ++i) total += deviation_[i];
      *total_ = total;
    });
  }

  KVSTOW_GPU float Share(uint32_t token) const { return deviation_[token] / *total_; }

  // NaN and Inf where nothing is compared.
  KVSTOW_GPU void Check(uint32_t thread) const {
    for (uint32_t t = 0; t < count_; ++t) {
      for (uint32_t c = thread; c < dim_; c += kThreads) slab_.Checked(Place(first_ + t, c));
    }
  }

 private:
  KVSTOW_GPU size_t Place(uint32_t token, uint32_t c) const {
    return (size_t{token} * heads_ + head_) * dim_ + c;
  }

  KVSTOW_GPU void Bounds(uint32_t thread) const {
    const uint32_t next = first_ + count_;
    for (uint32_t c = thread; c < dim_; c += kThreads) {
      float low = slab_[Place(next, c)], high = low;
      for (uint32_t t = next + 1; t < end_; ++t) {
        const float x = slab_[Place(t, c)];
        low = std::min(low, x);
        high = std::max(high, x);
      }
      low_[c] = low;
      inverse_[c] = 1 / std::max(high - low, 1e-6F);
    }
  }

  // Partial sums of rows `done` and up.
  KVSTOW_GPU void Sums(uint32_t done, uint32_t rows, uint32_t thread) const {
    const auto normal = [&](uint32_t row, uint32_t c) {
      return (slab_.Checked(Place(first_ + done + row, c)) - low_[c]) * inverse_[c];
    };
    PutPartials(thread, rows, dim_, sums_, normal);
    PutPartials(thread, rows, dim_, squares_, [&](uint32_t row, uint32_t c) {
      const float u = normal(row, c);
      return u * u;
    });
  }

  KVSTOW_GPU float Deviation(uint32_t row) const {
    const auto n = static_cast<float>(dim_);
    const float mean = FoldRow(sums_, row) / n;
    return std::sqrt(std::max(0.0F, FoldRow(squares_, row) / n - mean * mean));
  }

  const Slab slab_;
  const uint32_t heads_, head_, dim_, first_, count_, end_;
  float* const sums_;
  float* const squares_;
  float* const low_;
  float* const inverse_;
  float* const deviation_;
  float* const most_;
  float* const total_;
};

// A block takes a partition of a head; the last one those tokens that have no next.
struct LagStep {
  uint32_t lag, to;

  uint32_t Blocks(const ScoreLaunch& launch) const {
    const ScoreLayout& layout = launch.layout;
    return layout.layers * layout.heads * (Partitions(layout) + 1);
  }
  size_t SharedBytes(const ScoreLaunch& launch) const {
    return LagPartition::SharedFloats(launch.layout) * sizeof(float);
  }

  template <typename Run>
  KVSTOW_GPU void Code(const ScoreLaunch& launch, uint32_t page, uint32_t block, uint8_t* shared,
                       const Run& run) const {
    const ScoreLayout& layout = launch.layout;
    const uint32_t partitions = Partitions(layout);
    const uint32_t partition = block % (partitions + 1), of_page = block / (partitions + 1);
    const uint32_t layer = of_page / layout.heads, head = of_page % layout.heads;
    const uint32_t first = partition * lag, count = std::min(lag, layout.tokens - first);
    float* const out = MapOf(launch, to, page) + layer * layout.layer_entries() + head;
    for (uint32_t part = 0; part < 2 && layout.dim[part] > 0; ++part) {
      const LagPartition x(launch, page, layer, head, part, first, count,
                           std::min(first + 2 * lag, layout.tokens),
                           reinterpret_cast<float*>(shared));
      const bool last = partition == partitions;
      if (last) {
        run([&](uint32_t thread) { x.Check(thread); });
      } else {
        x.Code(run);
      }
      run([&](uint32_t thread) {
        for (uint32_t i = thread; i < count; i += kThreads) {
          float* const at = out + size_t{first + i} * layout.heads;
          // No softmax is above 1: the last tokens come first, in order of position.
          const float score =
              last ? 3 + static_cast<float>(first + i) : (part == 0 ? 0 : *at) + x.Share(i);
          PutScore(launch, page, score, at);
        }
      });
    }
  }

 private:
  KVSTOW_GPU uint32_t Partitions(const ScoreLayout& layout) const {
    return (layout.tokens - 1) / lag;
  }
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SCORE_LAG_SCORES_CUH_
