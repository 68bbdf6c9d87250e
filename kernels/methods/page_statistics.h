// The statistics of a run that the codec `planes` takes before it codes a token: the mean, the
// spread and the step of every channel, from the page itself, and their bytes.
//
// A *channel* is one coordinate of one head of K or V of one layer. Channels of a run stand in the
// order of a token's values: K of the first layer, V of the first layer, K of the second. Within a
// head, channels are centred and then decorrelated by a few rotations (pair_rotations.h). The codec
// codes rotated channels. The step is one for each slab, but K's steps follow the spreads: finer
// for wide channels. Means are integers of a quarter of the step. Spreads are rows of the plane
// coder's tables (quarter octaves). The plane coder itself codes both, as 16 tokens of few
// coefficients. docs/FORMAT.md has the bytes.
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

// The channels of a slab.
struct SlabChannels {
  uint32_t heads = 0, dim = 0;
  bool finer_where_wide = false;  // steps follow spreads^-1/2
  uint32_t count() const { return heads * dim; }
};

// The statistics of one slab, as the bytes hold them.
struct SlabStatistics {
  int16_t step = 0;        // step of the finest level, 2^(step / 8)
  int8_t row = 0;          // the mean row of its channels, at the base step
  uint8_t row_spread = 0;  // the table row that codes differences from `row`
  uint8_t mean_row = 0;    // the table row that codes the means
  // `rows` and `means` have one for each channel, `rotations` one for each block. All are empty
  // without channel statistics.
  std::vector<int32_t> rows, means;
  std::vector<BlockRotations> rotations;
};

// Measures the slab `values` [channels, PlaneStride(tokens)], and centres and rotates them for
// coding. The finest step is `relative_step` times the rms spread; `levels` >= 1. `energy` becomes
// the sum of squares that the values had.
SlabStatistics MeasureSlab(std::span<float> values, uint32_t tokens, const SlabChannels& channels,
                           double relative_step, uint32_t levels, double& energy);
// Undoes what MeasureSlab did to values; `means` are the slab's.
void RestoreSlab(const SlabStatistics& slab, const SlabChannels& channels,
                 std::span<const float> means, std::span<float> values);

// The statistics that coding needs, one for each channel.
struct ChannelStatistics {
  std::vector<int16_t> rows;  // at the base step
  std::vector<float> steps;   // of the finest level
  std::vector<float> means;
};
ChannelStatistics ExpandStatistics(std::span<const SlabStatistics> slabs,
                                   std::span<const SlabChannels> channels);

std::string SerializeStatistics(std::span<const SlabStatistics> slabs);
// Fails with DATA_LOSS when the bytes cannot be statistics.
absl::StatusOr<std::vector<SlabStatistics>> ReadStatistics(ByteReader& reader,
                                                           std::span<const SlabChannels> channels,
                                                           bool with_channels);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_PAGE_STATISTICS_H_
