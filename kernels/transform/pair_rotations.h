// Decorrelation of channels by a few plane rotations: the largest steps of Jacobi's eigenvalue
// algorithm on the covariance of a block of channels, with angles in 16 steps. It is a
// Karhunen–Loève transform of 15 bits a rotation, so a page of some hundred tokens can carry its
// own. A rotation is taken only where it saves more bits than it costs.
//
// A *block* is kRotationBlock consecutive channels of one head, the last of a head may be
// shorter. Rotations are orthonormal, and their order matters. Free functions, thread-safe; the
// same bits on every machine.
#ifndef KVSTOW_KERNELS_TRANSFORM_PAIR_ROTATIONS_H_
#define KVSTOW_KERNELS_TRANSFORM_PAIR_ROTATIONS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace kvstow {

inline constexpr uint32_t kRotationBlock = 64;
inline constexpr uint32_t kMaxRotations = 255;  // of a block
inline constexpr uint32_t kRotationBits = 15;   // what one costs: 11 for the pair, 4 for the angle

struct PairRotation {
  uint8_t first = 0, second = 0;  // channels within the block, first < second
  uint8_t angle = 0;              // (angle - 7.5) pi / 32
  bool operator==(const PairRotation&) const = default;
};
using BlockRotations = std::vector<PairRotation>;

// Widths of the blocks of `heads` heads of `dim` channels.
std::vector<uint32_t> RotationBlocks(uint32_t heads, uint32_t dim);

// Returns the rotations that are worth their bits for the block `values` [width, stride] of centred
// values, `tokens` in each row; `stride` is a multiple of 16, here and below. Spreads far below
// `step` cost nothing, so no rotation saves on them.
BlockRotations FindRotations(const float* values, size_t tokens, size_t stride, uint32_t width,
                             double step);

// Turns the rows of a block [width, stride], in place, and back.
void Rotate(std::span<const PairRotation> rotations, size_t stride, float* values);
void RotateBack(std::span<const PairRotation> rotations, size_t stride, float* values);

// Writes a byte for each block, the number of its rotations, then 15 bits for each rotation.
std::string SerializeRotations(std::span<const BlockRotations> blocks);
// `widths` has the width of each block. DATA_LOSS: the bytes cannot be rotations.
absl::StatusOr<std::vector<BlockRotations>> ReadRotations(ByteReader& reader,
                                                          std::span<const uint32_t> widths);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_PAIR_ROTATIONS_H_
