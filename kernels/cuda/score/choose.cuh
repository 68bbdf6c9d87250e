// Choosing by a budget: what SelectTokens (budget.h) does.
//
// The best of a group are found by their keys, digit after digit: a key is a score as a number of
// the same order, of 32 bits, and a pass counts the groups' entries by 8 of these. Entries have
// places in the group, by position, then layer, then head: of equal keys the first places are
// kept.
#ifndef KVSTOW_KERNELS_CUDA_SCORE_CHOOSE_CUH_
#define KVSTOW_KERNELS_CUDA_SCORE_CHOOSE_CUH_

#include "kernels/cuda/score/chosen.cuh"
#include "kernels/importance/budget.h"

namespace kvstow::gpu {

// A whole number of the order of finite scores; both zeros are one.
KVSTOW_GPU uint32_t KeyOf(float score) {
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0F);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Counts in shared memory, by threads in any order.
KVSTOW_GPU void Count(uint32_t* count) {
#ifdef __CUDA_ARCH__
  atomicAdd(count, 1u);
#else
  ++*count;
#endif
}

// One Fill: a block takes a group.
class FillStep {
 public:
  FillStep(const Chosen& chosen, BudgetScope scope, uint32_t fill)
      : chosen_(chosen), scope_(scope), fill_(fill) {}

  uint32_t Blocks(const ScoreLaunch&) const {
    if (scope_ == BudgetScope::kPage) return 1;
    return scope_ == BudgetScope::kLayer ? chosen_.layers : chosen_.layers * chosen_.heads;
  }
  size_t SharedBytes(const ScoreLaunch&) const { return sizeof(Shared); }

  template <typename Run>
  KVSTOW_GPU void Code(const ScoreLaunch& launch, uint32_t page, uint32_t block, uint8_t* shared,
                       const Run& run) const {
    auto& s = *reinterpret_cast<Shared*>(shared);
    const Group group = GroupOf(launch, page, block);
    run([&](uint32_t thread) {
      s.bins[thread] = 0;
      for (size_t r = thread; r < group.size; r += kThreads) s.bins[thread] += group.Kept(r);
    });
    run([&](uint32_t thread) {
      if (thread != 0) return;
      uint32_t kept = 0;
      for (const uint32_t bin : s.bins) kept += bin;
      const auto open = static_cast<uint32_t>(group.size) - kept;
      s.more = group.count > kept ? std::min(group.count - kept, open) : 0;
      s.left = s.more;
      s.key = 0;
    });
    if (s.more == 0) return;
    for (uint32_t shift = 24; shift < 32; shift -= 8) {
      run([&](uint32_t thread) { s.bins[thread] = 0; });
      run([&](uint32_t thread) { CountDigits(group, shift, thread, s); });
      run([&](uint32_t thread) {
        if (thread == 0) TakeDigit(shift, s);
      });
    }
    // The open entries above s.key are in, and the first s.left of those that have it.
    run([&](uint32_t thread) {
      s.bins[thread] = 0;
      ForShare(group, thread, [&](size_t r) { s.bins[thread] += group.KeyAt(r) == s.key; });
    });
    run([&](uint32_t thread) {
      if (thread != 0) return;
      uint32_t before = 0;
      for (uint32_t& bin : s.bins) {
        const uint32_t own = bin;
        bin = before;
        before += own;
      }
    });
    run([&](uint32_t thread) {
      uint32_t place = s.bins[thread];
      ForShare(group, thread, [&](size_t r) {
        const uint32_t key = group.KeyAt(r);
        if (key > s.key || (key == s.key && place++ < s.left)) group.keep[group.EntryAt(r)] = 1;
      });
    });
  }

 private:
  struct Shared {
    uint32_t bins[kThreads];
    uint32_t more, left, key;
  };
  static_assert(kThreads == 256, "a thread for every value of a digit");

  // Entries in the order of their places: rows, one a position.
  struct Group {
    const float* scores;
    uint8_t* keep;
    size_t first, size;
    uint32_t count;          // that are to be kept
    uint32_t heads, layers;  // of a row
    size_t position_step, layer_step;

    KVSTOW_GPU size_t EntryAt(size_t r) const {
      const uint32_t row = heads * layers;
      const auto in_row = static_cast<uint32_t>(r % row);
      return first + r / row * position_step + in_row / heads * layer_step + in_row % heads;
    }
    KVSTOW_GPU bool Kept(size_t r) const { return keep[EntryAt(r)] != 0; }
    KVSTOW_GPU uint32_t KeyAt(size_t r) const { return KeyOf(scores[EntryAt(r)]); }
  };

  KVSTOW_GPU Group GroupOf(const ScoreLaunch& launch, uint32_t page, uint32_t block) const {
    const size_t layer_entries = size_t{chosen_.tokens} * chosen_.heads;
    const bool head = scope_ == BudgetScope::kHead, all = scope_ == BudgetScope::kPage;
    const uint32_t layer = head ? block / chosen_.heads : block;
    Group group;
    group.scores = chosen_.ScoresOf(launch, page);
    group.keep = chosen_.KeepOf(launch, page);
    group.first = layer * layer_entries + (head ? block % chosen_.heads : 0);
    group.heads = head ? 1 : chosen_.heads;
    group.layers = all ? chosen_.layers : 1;
    group.size = size_t{chosen_.tokens} * group.heads * group.layers;
    group.position_step = chosen_.heads;
    group.layer_step = layer_entries;
    group.count =
        launch.counts[(size_t{fill_} * launch.pages + page) * launch.layout.layers + layer];
    return group;
  }

  KVSTOW_GPU static void CountDigits(const Group& group, uint32_t shift, uint32_t thread,
                                     Shared& s) {
    for (size_t r = thread; r < group.size; r += kThreads) {
      const uint32_t key = group.KeyAt(r);
      // The digits before this one are those of s.key.
      const bool same = shift == 24 || key >> (shift + 8) == s.key >> (shift + 8);
      if (same && !group.Kept(r)) Count(&s.bins[key >> shift & 0xff]);
    }
  }

  // The digit of the last key that is in; s.left of the entries that have it are.
  KVSTOW_GPU static void TakeDigit(uint32_t shift, Shared& s) {
    uint32_t digit = 0xff;
    while (s.bins[digit] < s.left) s.left -= s.bins[digit--];
    s.key |= digit << shift;
  }

  // Calls f(r) for the open entries of the thread's share, which are consecutive places.
  template <typename F>
  KVSTOW_GPU static void ForShare(const Group& group, uint32_t thread, const F& f) {
    const size_t share = (group.size + kThreads - 1) / kThreads;
    const size_t end = std::min(group.size, (thread + 1) * share);
    for (size_t r = thread * share; r < end; ++r) {
      if (!group.Kept(r)) f(r);
    }
  }

  Chosen chosen_;
  BudgetScope scope_;
  uint32_t fill_;
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SCORE_CHOOSE_CUH_
