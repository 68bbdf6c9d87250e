// The loops behind quantizers. Manuals: affine.h, block.h, codebook.h, dead_zone.h, levels.h,
// minifloat.h. kernels/page/loops.h says what a table is.
#ifndef KVSTOW_KERNELS_QUANTIZE_LOOPS_H_
#define KVSTOW_KERNELS_QUANTIZE_LOOPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/page/page.h"

namespace kvstow {

// `rows` of `width` values.
struct AffineGroups {
  size_t rows = 0, width = 0, group = 0;
  uint32_t bits = 8;
};

// Groups run along rows (the token axis), or over rows, `group` at a time (the channel axis). Codes
// are one a byte; `steps` and `minima` are the fp16 values as floats. Encoding returns false when
// one of them is not finite.
struct AffineLoops {
  bool (*encode_rows)(const AffineGroups& g, const float* values, float* steps, float* minima,
                      uint8_t* codes);
  void (*decode_rows)(const AffineGroups& g, const float* steps, const float* minima,
                      const uint8_t* codes, float* values);
  bool (*encode_columns)(const AffineGroups& g, const float* values, float* steps, float* minima,
                         uint8_t* codes);
  void (*decode_columns)(const AffineGroups& g, const float* steps, const float* minima,
                         const uint8_t* codes, float* values);
  static const AffineLoops& Reference();
  static const AffineLoops& Best();
};

// `groups` of `group` values each, side by side; `group` is a multiple of kAffineRawGroup.
inline constexpr size_t kAffineRawGroup = 64;
struct AffineRaw {
  DType dtype = DType::kF16;
  size_t groups = 0, group = 0;
  uint32_t bits = 8;
};

// From a page's 16-bit values (F16 or BF16) to bytes at rest and back. Steps and minima are fp16 as
// encoding writes them, and floats as decoding reads them. Bytes and sums are those of LoadFloats,
// AffineLoops and SquaredError.
struct AffineRawLoops {
  // False when a value is not finite or a scale beyond fp16.
  bool (*encode)(const AffineRaw& g, const uint8_t* raw, uint8_t* steps, uint8_t* minima,
                 uint8_t* codes);
  void (*decode)(const AffineRaw& g, const float* steps, const float* minima, const uint8_t* codes,
                 uint8_t* raw);
  // Adds to the sums (squared_error.h) of the values and of what the codes leave of them.
  void (*measure)(const AffineRaw& g, const uint8_t* raw, const float* steps, const float* minima,
                  const uint8_t* codes, double* energy, double* error);
  static const AffineRawLoops& Reference();
  static const AffineRawLoops& Best();
};

// Each vector of `dim` values goes through the signed Hadamard transform (transform/hadamard.h).
// `dim` is a power of two, up to kMaxHeadDim, of whole groups.
struct AffineTurn {
  const float* signs = nullptr;  // [dim], 1 or -1
  size_t dim = 0;
};

// The same with values that are turned.
struct AffineTurnedLoops {
  // Adds to the sums of the turned values, and of what the codes leave of them. False as above.
  bool (*encode)(const AffineRaw& g, const AffineTurn& turn, const uint8_t* raw, uint8_t* steps,
                 uint8_t* minima, uint8_t* codes, double* energy, double* error);
  void (*decode)(const AffineRaw& g, const AffineTurn& turn, const float* steps,
                 const float* minima, const uint8_t* codes, uint8_t* raw);
  static const AffineTurnedLoops& Reference();
  static const AffineTurnedLoops& Best();
};

enum class BlockFormat : uint8_t { kQ8, kQ4, kNv4, kMx4, kMx8 };

// `count` whole blocks side by side; `tensor` is t, for nvfp4 alone. `values` are finite and not
// beyond fp16. Decoding returns false when the blocks cannot have come from encoding.
struct BlockLoops {
  void (*encode)(BlockFormat format, const float* values, size_t count, float tensor,
                 uint8_t* blocks);
  bool (*decode)(BlockFormat format, const uint8_t* blocks, size_t count, float tensor,
                 float* values);
  static const BlockLoops& Reference();
  static const BlockLoops& Best();
};

// `entries` are in ascending order.
struct CodebookLoops {
  // The place of the entry nearest to each x[i] scale.
  void (*nearest)(const std::vector<float>& entries, const float* x, size_t count, float scale,
                  uint8_t* codes);
  // out[i] = entries[codes[i]] scale.
  void (*scaled)(const std::vector<float>& entries, const uint8_t* codes, size_t count, float scale,
                 float* out);
  // The sum of squares, in eight sums of a fixed order.
  double (*squared_length)(const float* x, size_t count);
  static const CodebookLoops& Reference();
  static const CodebookLoops& Best();
};

struct DeadZoneLoops {
  void (*quantize)(const float* values, size_t count, float inverse_step, float dead_zone,
                   int32_t limit, int32_t* q);
  static const DeadZoneLoops& Reference();
  static const DeadZoneLoops& Best();
};

// `count` vectors of `dim` values, scaled by their tops. `codes` have `bits` bits; `centroids` are
// LevelCentroids(bits).
struct LevelLoops {
  void (*encode)(const float* values, size_t count, size_t dim, const float* tops, uint32_t bits,
                 uint8_t* codes);
  void (*decode)(const uint8_t* codes, size_t count, size_t dim, const float* tops, uint32_t bits,
                 const float* centroids, float* values);
  static const LevelLoops& Reference();
  static const LevelLoops& Best();
};

// The scale of a vector code. tops[v] = fp16(max |x|) of vector v of `count` vectors of `dim`
// finite values. Returns false when one is beyond fp16.
struct MagnitudeLoops {
  bool (*tops)(const float* values, size_t count, size_t dim, float* tops);
  static const MagnitudeLoops& Reference();
  static const MagnitudeLoops& Best();
};

// `count` vectors of `dim` values, scaled by their tops. Decoding returns false when a code is NaN.
struct MinifloatLoops {
  void (*encode)(const float* values, size_t count, size_t dim, const float* tops, uint8_t* codes);
  bool (*decode)(const uint8_t* codes, size_t count, size_t dim, const float* tops, float* values);
  static const MinifloatLoops& Reference();
  static const MinifloatLoops& Best();
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_LOOPS_H_
