// How a slab is cut into groups of values that share a scale: arguments group, k and v of
// quantizers.
//
// group: 1..4096 values; a last, shorter group is its own. k and v: the axis along which the groups
// of K and of V run:
//   token    channels of one head vector; in order of [token, head, group of channels]
//   channel  consecutive tokens of one channel; in order of [group of tokens, head, channel]
//   tensor   the slab is one group, whatever `group` says
//
// Values; thread-safe.
#ifndef KVSTOW_KERNELS_QUANTIZE_GROUP_AXIS_H_
#define KVSTOW_KERNELS_QUANTIZE_GROUP_AXIS_H_

#include "kernels/quantize/quantizer.h"

namespace kvstow {

enum class GroupAxis : uint8_t { kToken = 0, kChannel = 1, kTensor = 2 };

// Rows of `width` values. Each row is cut along itself into groups, or `group` rows at a time are
// cut into one group a column.
struct GroupLayout {
  bool along_rows = true;
  size_t rows = 0, width = 0, group = 0;

  size_t groups() const {
    const size_t along = along_rows ? width : rows, across = along_rows ? rows : width;
    return across * ((along + group - 1) / group);
  }
};

struct GroupAxes {
  uint32_t group = 64;
  GroupAxis k = GroupAxis::kToken, v = GroupAxis::kToken;

  GroupLayout LayoutOf(const SlabShape& shape) const;
  // `bits` bits for each group of a slab.
  BodyPart PartOf(const SlabShape& shape, uint64_t bits) const;
  // Quantizer::TileTokens.
  uint32_t TileTokens(const SlabShape& shape) const;
  // How many groups stand before those of the tile.
  size_t GroupsBefore(const SlabTile& tile) const;
};

absl::StatusOr<GroupAxes> ReadGroupAxes(const OpArguments& arguments);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_GROUP_AXIS_H_
