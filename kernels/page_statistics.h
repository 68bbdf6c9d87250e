// What the codec `planes` knows of a run before it codes a token: the mean, the spread and the step
// of every channel, taken from the page itself, and their bytes.
//
// A *channel* is one coordinate of one head of K or V of one layer; channels of a run stand in the
// order of a token's values: K of the first layer, V of the first layer, K of the second. The step
// is one for each slab. Means are integers of a quarter of the step, spreads are rows of the plane
// coder's tables (quarter octaves): both are coded by the plane coder itself, as one token of
// twice the width. docs/FORMAT.md has the bytes.
//
// Pages of fewer than kMinTokensForChannels tokens have no channel statistics: all means are 0 and
// all spreads of a slab are its rms. Free functions and values; thread-safe; the same bits on every
// machine.
#ifndef KVSTOW_KERNELS_PAGE_STATISTICS_H_
#define KVSTOW_KERNELS_PAGE_STATISTICS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace kvstow {

inline constexpr uint32_t kMinTokensForChannels = 8;

// What the bytes hold of one slab.
struct SlabStatistics {
  int16_t step = 0;                  // of the finest level, 2^(step / 8)
  int8_t row = 0;                    // the mean row of its channels, at the base step
  uint8_t row_spread = 0;            // the table row that codes differences from `row`
  uint8_t mean_row = 0;              // the table row that codes the means
  std::vector<int32_t> rows, means;  // a channel each, empty without channel statistics
};

// Statistics of the slab `values` [tokens, channels], whose finest step is `relative_step` times
// its rms spread; `levels` >= 1.
SlabStatistics MeasureSlab(std::span<const float> values, size_t channels, double relative_step,
                           uint32_t levels);

// All that coding needs, a channel each.
struct ChannelStatistics {
  std::vector<int16_t> rows;  // at the base step
  std::vector<float> steps;   // of the finest level
  std::vector<float> means;
};
ChannelStatistics ExpandStatistics(std::span<const SlabStatistics> slabs,
                                   std::span<const uint32_t> channels);

std::string SerializeStatistics(std::span<const SlabStatistics> slabs);
// `channels`: of each slab. DATA_LOSS when the bytes cannot be statistics.
absl::StatusOr<std::vector<SlabStatistics>> ReadStatistics(ByteReader& reader,
                                                           std::span<const uint32_t> channels,
                                                           bool with_channels);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_PAGE_STATISTICS_H_
