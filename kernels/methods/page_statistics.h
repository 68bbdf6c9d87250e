// What the codec `planes` knows of a run before it codes a token: the mean, the spread and the step
// of every channel, taken from the page itself, and their bytes.
//
// A *channel* is one coordinate of one head of K or V of one layer; channels of a run stand in the
// order of a token's values: K of the first layer, V of the first layer, K of the second. Within a
// head, channels are centred and then decorrelated by a few rotations (pair_rotations.h): what is
// coded are rotated channels. The step is one for each slab, but may shrink for wide channels.
// Means are integers of a quarter of the step, spreads are rows of the plane coder's tables
// (quarter octaves): both are coded by the plane coder itself, as 16 tokens of few coefficients.
// docs/FORMAT.md has the bytes.
//
// Pages of fewer than kMinTokensForChannels tokens have no channel statistics: all means are 0, all
// spreads of a slab are its rms, and nothing is rotated. Free functions and values; thread-safe;
// the same bits on every machine.
#ifndef KVSTOW_KERNELS_METHODS_PAGE_STATISTICS_H_
#define KVSTOW_KERNELS_METHODS_PAGE_STATISTICS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "kernels/transform/pair_rotations.h"

namespace kvstow {

inline constexpr uint32_t kMinTokensForChannels = 8;

// How a slab's channels are made up.
struct SlabChannels {
  uint32_t heads = 0, dim = 0;
  bool finer_where_wide = false;  // steps follow spreads^-1/4
  uint32_t count() const { return heads * dim; }
};

// What the bytes hold of one slab.
struct SlabStatistics {
  int16_t step = 0;        // of the finest level, 2^(step / 8)
  int8_t row = 0;          // the mean row of its channels, at the base step
  uint8_t row_spread = 0;  // the table row that codes differences from `row`
  uint8_t mean_row = 0;    // the table row that codes the means
  // A channel each, and a block each; empty without channel statistics.
  std::vector<int32_t> rows, means;
  std::vector<BlockRotations> rotations;
};

// Statistics of the slab `values` [channels, PlaneStride(tokens)], which become what is to be
// coded: centred and rotated. The finest step is `relative_step` times the rms spread; `levels`
// >= 1. `energy` becomes the sum of squares that the values had.
SlabStatistics MeasureSlab(std::span<float> values, uint32_t tokens, const SlabChannels& channels,
                           double relative_step, uint32_t levels, double& energy);
// The inverse of what MeasureSlab did to values; `means` are the slab's.
void RestoreSlab(const SlabStatistics& slab, const SlabChannels& channels,
                 std::span<const float> means, std::span<float> values);

// All that coding needs, a channel each.
struct ChannelStatistics {
  std::vector<int16_t> rows;  // at the base step
  std::vector<float> steps;   // of the finest level
  std::vector<float> means;
};
ChannelStatistics ExpandStatistics(std::span<const SlabStatistics> slabs,
                                   std::span<const SlabChannels> channels);

std::string SerializeStatistics(std::span<const SlabStatistics> slabs);
// DATA_LOSS when the bytes cannot be statistics.
absl::StatusOr<std::vector<SlabStatistics>> ReadStatistics(ByteReader& reader,
                                                           std::span<const SlabChannels> channels,
                                                           bool with_channels);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_PAGE_STATISTICS_H_
