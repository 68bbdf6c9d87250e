// The loops of the plane coder (plane_coder.h) over one stream. kernels/page/loops.h
// says what a table is. Only the plane coder, its tests and its benchmark call them.
//
// Integers of a stream are [width, stride]: the tokens of a coefficient stand together, the
// stream's first is a multiple of kRansLanes and so is `stride`. Lane l codes tokens l, l +
// kRansLanes, ... Coefficient after coefficient, and within it kRansLanes tokens after kRansLanes
// tokens, a step codes a symbol of each lane that has a token; then follows, lane after lane, what
// does not fit a symbol: what is above an escape, raw bits and a sign.
//
// Where tokens have energy classes, all this is of places (plane_order.h) in their stead.
#ifndef KVSTOW_KERNELS_ENTROPY_PLANE_LOOPS_H_
#define KVSTOW_KERNELS_ENTROPY_PLANE_LOOPS_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "kernels/entropy/plane_tables.h"
#include "kernels/entropy/rans.h"

namespace kvstow {

// Magnitudes are below this at every level.
inline constexpr int32_t kPlaneMaxMagnitude = 1 << 24;

// A coefficient whose signs are not equally likely has a *tilt*, above 0 where more are positive.
// Its positive share of 256, at the level `distance` above the finest: round(256 / (1 + e^-x)), x =
// .3 tilt (distance + 1) up to 4, as the sign of a Gaussian is surer the larger its magnitude.
inline constexpr int kMaxPlaneTilt = 12;
inline constexpr uint32_t kEvenShare = 128;
inline uint32_t PositiveShare(int tilt, uint32_t distance) {
  static constexpr uint8_t kShares[kPlaneDistances][kMaxPlaneTilt + 1] = {
      {128, 147, 165, 182, 197, 209, 220, 228, 235, 240, 244, 247, 249},
      {128, 165, 197, 220, 235, 244, 249, 251, 251, 251, 251, 251, 251},
      {128, 182, 220, 240, 249, 251, 251, 251, 251, 251, 251, 251, 251},
      {128, 197, 235, 249, 251, 251, 251, 251, 251, 251, 251, 251, 251}};
  const uint32_t share = kShares[distance][tilt < 0 ? -tilt : tilt];
  return tilt < 0 ? 2 * kEvenShare - share : share;
}
// Returns the part of an even frequency, at least 2, that means positive.
constexpr uint32_t PositivePart(uint32_t frequency, uint32_t share) {
  return 1 + (((frequency - 2) * share + kEvenShare) >> 8);
}

// Tables in the form that vectors look up.
struct PlaneLookups {
  // What a row has at a level, rows of raw bits too.
  struct alignas(64) Row {
    // A symbol's start, and from bit 16 on its frequency, for each sign where it has two.
    uint32_t symbols[kPlaneSymbols];
    // The slot before a symbol's first; symbol 0 does not use it.
    uint32_t before[kPlaneSymbols];
    uint32_t centre[kPlaneSymbols];  // bits of a float, 1 = a step
    uint32_t zero[kPlaneContexts];
    uint32_t escape, raw_bits;
  };
  using Level = std::array<Row, kPlaneMaxRow + 1>;

  explicit PlaneLookups(const PlaneTables& tables);
  static const PlaneLookups& Universal();

  std::array<Level, kPlaneDistances> levels;  // by distance to the finest
};

// The shape of a stream, as the loops need it.
struct PlaneStream {
  std::span<const int16_t> rows;  // of each coefficient, at the base step
  const PlaneTables* tables;
  const PlaneLookups* lookups;
  uint32_t levels;  // of the code: a stream of fewer levels may be decoded
  uint32_t tokens;
  size_t stride;  // of the integers
  // Added to the rows of each kRansLanes tokens; null without energy classes.
  const int8_t* shifts = nullptr;
  std::span<const int8_t> tilts;  // of each coefficient, or empty

  int ShiftAt(size_t token) const { return shifts == nullptr ? 0 : shifts[token / kRansLanes]; }

  uint32_t Distance(size_t level) const {
    return std::min<uint32_t>(levels - 1 - static_cast<uint32_t>(level), kPlaneDistances - 1);
  }
  uint32_t ShareAt(size_t coefficient, size_t level) const {
    return tilts.empty() ? kEvenShare : PositiveShare(tilts[coefficient], Distance(level));
  }
  // Magnitudes at the base level are below this.
  uint32_t BaseLimit() const { return uint32_t{kPlaneMaxMagnitude} >> (levels - 1); }
};

// Encodes a stream, all levels: level l of the integers `q` goes to encoders[l].
struct PlaneEncoding {
  PlaneStream stream;
  const int32_t* q;
  std::span<RansEncoder> encoders;
};

// Decodes a stream to integers of the last of decoders.size() levels; 0 where lanes have no token.
struct PlaneDecoding {
  PlaneStream stream;
  std::span<RansDecoder> decoders;
  int32_t* q;
};

struct PlaneEncodeLoops {
  // `other` may be null, or another stream of the same rows, as many tokens and levels, which is
  // coded along: where levels are few, the chains of instructions of the two run side by side.
  void (*encode)(const PlaneEncoding& one, const PlaneEncoding* other);
  static const PlaneEncodeLoops& Reference();
  static const PlaneEncodeLoops& Best();
};

struct PlaneDecodeLoops {
  // Returns false for a stream that no encoder writes. `other` is as above.
  bool (*decode)(const PlaneDecoding& one, const PlaneDecoding* other);
  // Makes coefficients of integers at `level`. `steps` has the step of each, or one for all.
  void (*dequantize)(const PlaneStream& stream, const int32_t* q, size_t level,
                     std::span<const float> steps, float* coefficients);
  static const PlaneDecodeLoops& Reference();
  static const PlaneDecodeLoops& Best();
};

// The row of tables for `row` in 0..kPlaneMaxRow, and the number of a magnitude's low bits that
// stay raw.
struct PlaneBaseRow {
  uint32_t row, raw_bits;
};
constexpr PlaneBaseRow SplitPlaneRow(int row) {
  if (row < kPlaneRows) return {static_cast<uint32_t>(row), 0};
  const int octaves = (row - kPlaneRows + 4) / 4;
  return {static_cast<uint32_t>(row - 4 * octaves), static_cast<uint32_t>(octaves)};
}
// Returns the row of a coefficient at a level.
constexpr int PlaneRow(int row, int shift, size_t level) {
  const int at = row + shift + 4 * static_cast<int>(level);
  return at < 0 ? 0 : at > kPlaneMaxRow ? kPlaneMaxRow : at;  // std::clamp is not for a GPU
}

inline constexpr uint32_t kEscapeWidthBits =
    5;  // the field that says how many bits of the escaped value follow

// The parts that follow the symbol of a magnitude. Its bits above the raw ones are escape + excess,
// or less than escape (then excess is not used). Encoders put the parts in the reverse of the order
// in which decoders get them. `Rans` is RansEncoder, or a GPU's.
template <typename Rans>
constexpr void PutPlaneRest(Rans& rans, size_t lane, uint32_t magnitude, bool negative,
                            uint32_t raw_bits, uint32_t escape) {
  const uint32_t high = magnitude >> raw_bits;
  if (raw_bits > 0) {
    if (high == 0 && magnitude > 0) rans.PutBits(lane, negative, 1);
    rans.PutBits(lane, magnitude & ((1u << raw_bits) - 1), raw_bits);
  }
  if (high < escape) return;
  const uint32_t excess = high - escape, width = static_cast<uint32_t>(std::bit_width(excess));
  if (width > 1) rans.PutBits(lane, excess & ((1u << (width - 1)) - 1), width - 1);
  rans.PutBits(lane, width, kEscapeWidthBits);
}

// Completes `magnitude`, which is the symbol on entry, and `negative`. Returns false for a width
// that no encoder writes, or a magnitude that is not below `limit`. `Rans` is RansDecoder, or a
// GPU's.
template <typename Rans>
constexpr bool GetPlaneRest(Rans& rans, size_t lane, uint32_t raw_bits, uint32_t escape,
                            uint32_t limit, uint32_t& magnitude, bool& negative) {
  uint64_t whole = magnitude;
  if (magnitude == escape) {
    const uint32_t width = rans.GetBits(lane, kEscapeWidthBits);
    if (width > 24) return false;
    whole += width < 2 ? width : (1u << (width - 1) | rans.GetBits(lane, width - 1));
  }
  if (raw_bits > 0) {
    const bool had_sign = whole > 0;
    whole = whole << raw_bits | rans.GetBits(lane, raw_bits);
    if (!had_sign && whole > 0) negative = rans.GetBits(lane, 1) != 0;
  }
  magnitude = static_cast<uint32_t>(whole);
  return whole < limit;
}

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_ENTROPY_PLANE_LOOPS_H_
