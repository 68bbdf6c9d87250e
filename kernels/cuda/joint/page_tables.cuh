// The tables of a page's own (methods/page_tables.h) and the gains of levels, from the magnitudes
// of a body. They are the CPU's but for the order of sums of floats.
#ifndef KVSTOW_KERNELS_CUDA_JOINT_PAGE_TABLES_CUH_
#define KVSTOW_KERNELS_CUDA_JOINT_PAGE_TABLES_CUH_

#include <cmath>

#include "kernels/cuda/joint/plane_piece.cuh"
#include "kernels/device/plane_layout.h"
#include "kernels/entropy/small_integers.h"
#include "kernels/methods/joint_sampling.h"

namespace kvstow::gpu {

inline constexpr uint32_t kLists = 2;  // moves of rows, and tilts
inline constexpr uint32_t kSpreads = kMaxSpread + 1;
// Where the bits of integer `value` stand in PlaneEncodeLaunch::costs.
constexpr uint32_t CostAt(uint32_t list, uint32_t spread, int value) {
  return (list * kSpreads + spread) * kListValues + static_cast<uint32_t>(value + kMaxPlaneTilt);
}

// Finds, for each coefficient, the move and the tilt that are best for its own bits. A thread takes
// a coefficient.
struct FitTables {
  uint32_t Blocks(const PlaneEncodeLaunch& launch) const {
    return launch.body_count * GainBlocks(launch.most_rank);
  }
  size_t SharedBytes(const PlaneEncodeLaunch&) const { return 0; }

  template <typename Run>
  KVSTOW_GPU void Code(const PlaneEncodeLaunch& launch, uint32_t, uint32_t block, uint8_t*,
                       const Run& run) const {
    const uint32_t blocks = GainBlocks(launch.most_rank);
    const PlaneBody& body = launch.bodies[block / blocks];
    run([&](uint32_t thread) {
      const uint32_t i = block % blocks * kThreads + thread;
      if (i >= body.rank) return;
      FindMove(launch, body, i);
      FindTilt(launch, body, i);
    });
  }

 private:
  static constexpr int kMoves = 2 * kMaxRowMove + 1;
  static constexpr float kUnits = 256;  // of a bit

  KVSTOW_GPU static void FindMove(const PlaneEncodeLaunch& launch, const PlaneBody& body,
                                  uint32_t i) {
    uint32_t bits[kMoves] = {};
    const uint32_t every = PageTablesFit::EveryOf(body.tokens);
    const int row = launch.base_rows[body.rows_at + i];
    for (uint32_t p = 0; p < body.tokens; p += every) {
      const uint32_t t = launch.order[body.energies_at + p];
      const int q = launch.q[body.q_at + size_t{t} * body.stride + i];
      const int magnitude = q < 0 ? -q : q;
      const int shift = launch.shifts[body.energies_at + p];
      const int column = magnitude < static_cast<int>(PageTablesFit::kMagnitudes)
                             ? magnitude
                             : static_cast<int>(PageTablesFit::kMagnitudes) - 1;
      for (int m = 0; m < kMoves; ++m) {
        const int at = row + shift + m - kMaxRowMove;
        const int within = at < PageTablesFit::kLeastRow ? PageTablesFit::kLeastRow
                           : at > kPlaneMaxRow           ? kPlaneMaxRow
                                                         : at;
        bits[m] += launch.bits[(within - PageTablesFit::kLeastRow) *
                                   static_cast<int>(PageTablesFit::kMagnitudes) +
                               column];
      }
    }
    // From the row to its neighbours as long as the bits fall: upwards, else downwards.
    const uint32_t still = bits[kMaxRowMove];
    uint32_t least = still;
    int best = 0;
    for (int way = 1; way >= -1; way -= 2) {
      bool falls = best == 0;
      for (int far = 1; far <= kMaxRowMove; ++far) {
        const uint32_t here = bits[kMaxRowMove + way * far];
        falls = falls && here < least;
        if (falls) least = here, best = way * far;
      }
    }
    const auto seen = static_cast<float>((body.tokens + every - 1) / every);
    launch.moves[body.lists_at + i] = static_cast<int8_t>(best);
    launch.move_saves[body.lists_at + i] =
        static_cast<float>(still - least) * (static_cast<float>(body.tokens) / seen / kUnits);
  }

  KVSTOW_GPU static void FindTilt(const PlaneEncodeLaunch& launch, const PlaneBody& body,
                                  uint32_t i) {
    uint32_t counts[kPlaneDistances][2] = {};
    uint32_t all = 0;
    for (uint32_t t = 0; t < body.tokens; ++t) {
      const int q = launch.q[body.q_at + size_t{t} * body.stride + i];
      if (q == 0) continue;
      uint32_t width = 0;
      for (int m = q < 0 ? -q : q; m > 0; m >>= 1) ++width;
      const uint32_t above = (width < launch.levels ? width : launch.levels) - 1;
      const uint32_t distance = above < kPlaneDistances ? above : kPlaneDistances - 1;
      for (uint32_t d = 0; d < kPlaneDistances; ++d) {
        counts[d][0] += d == distance && q > 0 ? 1 : 0;
        counts[d][1] += d == distance && q < 0 ? 1 : 0;
      }
      ++all;
    }
    int best = 0;
    float most = 0;
    for (int tilt = -kMaxPlaneTilt; tilt <= kMaxPlaneTilt; ++tilt) {
      float saves = static_cast<float>(all);  // an even sign takes a bit
      for (uint32_t d = 0; d < kPlaneDistances; ++d) {
        if (counts[d][0] + counts[d][1] == 0) continue;
        const float share = ShareOf(launch, tilt, d) / 256;
        saves += static_cast<float>(counts[d][0]) * std::log2(share) +
                 static_cast<float>(counts[d][1]) * std::log2(1 - share);
      }
      if (saves > most) most = saves, best = tilt;
    }
    launch.tilts[body.lists_at + i] = static_cast<int8_t>(best);
    launch.tilt_saves[body.lists_at + i] = most;
  }
  // PositiveShare at a distance: distances count from the finest level.
  KVSTOW_GPU static float ShareOf(const PlaneEncodeLaunch& launch, int tilt, uint32_t distance) {
    const uint32_t level = launch.levels - 1 - distance;
    return static_cast<float>(launch.table->share[level][tilt + kMaxPlaneTilt]);
  }
};

// Chooses the lists of a body: those integers of each that save more than they cost, or none. A
// block takes a body. Without FitTables before it, all lists are empty.
struct ChooseTables {
  uint32_t Blocks(const PlaneEncodeLaunch& launch) const { return launch.body_count; }
  size_t SharedBytes(const PlaneEncodeLaunch&) const {
    return (kThreads + kLists * kSpreads) * sizeof(float) + kLists * sizeof(uint32_t);
  }

  template <typename Run>
  KVSTOW_GPU void Code(const PlaneEncodeLaunch& launch, uint32_t, uint32_t block, uint8_t* shared,
                       const Run& run) const {
    const PlaneBody& body = launch.bodies[block];
    auto* const parts = reinterpret_cast<float*>(shared);  // [lists, spreads, kParts]
    float* const saved = parts + kThreads;                 // [lists, spreads]
    auto* const spreads = reinterpret_cast<uint32_t*>(saved + kLists * kSpreads);
    run([&](uint32_t thread) {
      if (launch.adapts && thread < kLists * kSpreads * kParts)
        parts[thread] = PartOf(launch, body, thread);
    });
    run([&](uint32_t thread) {
      if (!launch.adapts || thread >= kLists * kSpreads) return;
      const uint32_t list = thread / kSpreads, spread = thread % kSpreads;
      float sum = -PageTablesFit::kListBits -
                  launch.costs[CostAt(list, spread, 0)] * static_cast<float>(body.rank);
      for (uint32_t p = 0; p < kParts; ++p) sum += parts[thread * kParts + p];
      saved[thread] = sum;
    });
    run([&](uint32_t list) {
      if (list >= kLists) return;
      float best = 0;
      spreads[list] = 0;
      for (uint32_t s = 1; s < kSpreads && launch.adapts; ++s) {
        if (saved[list * kSpreads + s] > best) best = saved[list * kSpreads + s], spreads[list] = s;
      }
      launch.spreads[block * kLists + list] = static_cast<uint8_t>(spreads[list]);
    });
    run([&](uint32_t thread) {
      for (uint32_t i = thread; i < body.rank; i += kThreads) {
        const uint32_t at = body.lists_at + i;
        for (uint32_t list = 0; list < kLists; ++list) {
          int8_t& value = ListOf(launch, list)[at];
          if (spreads[list] == 0 || GainOf(launch, list, spreads[list], at) <= 0) value = 0;
        }
        launch.rows[at] =
            static_cast<int16_t>(launch.base_rows[body.rows_at + i] + launch.moves[at]);
      }
    });
  }

 private:
  static constexpr uint32_t kParts = kThreads / (kLists * kSpreads);  // of a sum

  KVSTOW_GPU static int8_t* ListOf(const PlaneEncodeLaunch& launch, uint32_t list) {
    return list == 0 ? launch.moves : launch.tilts;
  }
  // What the integer `at` saves in a list of that spread.
  KVSTOW_GPU static float GainOf(const PlaneEncodeLaunch& launch, uint32_t list, uint32_t spread,
                                 uint32_t at) {
    const float saves = list == 0 ? launch.move_saves[at] : launch.tilt_saves[at];
    return saves - launch.costs[CostAt(list, spread, ListOf(launch, list)[at])] +
           launch.costs[CostAt(list, spread, 0)];
  }
  KVSTOW_GPU static float PartOf(const PlaneEncodeLaunch& launch, const PlaneBody& body,
                                 uint32_t thread) {
    const uint32_t part = thread % kParts, of = thread / kParts;
    float sum = 0;
    for (uint32_t i = part; i < body.rank; i += kParts) {
      const float gain = GainOf(launch, of / kSpreads, of % kSpreads, body.lists_at + i);
      sum += gain > 0 ? gain : 0;
    }
    return sum;
  }
};

// Adds up the energy of the sampled coefficients and their errors at each level. A block takes
// kThreads coefficients of a body.
struct SumGains {
  uint32_t Blocks(const PlaneEncodeLaunch& launch) const {
    return launch.body_count * GainBlocks(launch.most_rank);
  }
  size_t SharedBytes(const PlaneEncodeLaunch&) const { return kThreads * sizeof(double); }

  template <typename Run>
  KVSTOW_GPU void Code(const PlaneEncodeLaunch& launch, uint32_t, uint32_t block, uint8_t* shared,
                       const Run& run) const {
    const uint32_t blocks = GainBlocks(launch.most_rank);
    const PlaneBody& body = launch.bodies[block / blocks];
    auto* const sums = reinterpret_cast<double*>(shared);
    for (uint32_t which = 0; which <= launch.levels; ++which) {
      run([&](uint32_t thread) {
        const uint32_t i = block % blocks * kThreads + thread;
        sums[thread] = i < body.rank ? SumOf(launch, body, i, which) : 0;
      });
      for (uint32_t half = kThreads / 2; half > 0; half /= 2) {
        run([&](uint32_t thread) {
          if (thread < half) sums[thread] += sums[thread + half];
        });
      }
      run([&](uint32_t thread) {
        if (thread == 0) launch.sums[block * (launch.levels + 1) + which] = sums[0];
      });
    }
  }

 private:
  // Energy (which = 0), or the error at level which - 1, of a coefficient.
  KVSTOW_GPU static double SumOf(const PlaneEncodeLaunch& launch, const PlaneBody& body, uint32_t i,
                                 uint32_t which) {
    double sum = 0;
    constexpr uint32_t kPeriod = kGainEvery * kRansLanes;
    for (uint32_t from = 0; from < body.tokens; from += kPeriod) {
      for (uint32_t t = from; t < from + kRansLanes && t < body.tokens; ++t) {
        const uint32_t place = from / kGainEvery + t - from;
        const float value = launch.sample[body.sample_at + size_t{place} * body.rank + i];
        const float error = which == 0 ? value : value - Decoded(launch, body, i, t, which - 1);
        sum += static_cast<double>(error) * error;
      }
    }
    return sum;
  }
  KVSTOW_GPU static float Decoded(const PlaneEncodeLaunch& launch, const PlaneBody& body,
                                  uint32_t i, uint32_t t, uint32_t level) {
    const int q = launch.q[body.q_at + size_t{t} * body.stride + i];
    const uint32_t dropped = launch.levels - 1 - level;
    const uint32_t magnitude = static_cast<uint32_t>(q < 0 ? -q : q) >> dropped;
    if (magnitude == 0) return 0;
    // Nearly the shift of the token's place.
    const int shift = ClassShift(launch.energies[body.energies_at + t], 1);
    const int at = PlaneRow(launch.rows[body.lists_at + i], shift, level);
    const float value = CentreOf(*launch.table, level, at, magnitude) *
                        (launch.step * static_cast<float>(1u << dropped));
    return q < 0 ? -value : value;
  }
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_JOINT_PAGE_TABLES_CUH_
