// affine(bits,group,k,v): minimum and step of a group of values, codes between them.
//
//   m = fp16(min), s = fp16((max - m) / (2^bits - 1)), q = clip(round((x - m) / s), 0, 2^bits - 1)
//   x' = q s + m
//
// bits: 1..8. group: 1..4096 values share m and s; a last, shorter group is its own. k and v: the
// axis along which the groups of K and of V run, `token` (channels of one head vector), `channel`
// (consecutive tokens of one channel, as KIVI codes K, arXiv 2402.02750) or `tensor` (the slab is
// one group, whatever `group` says). Rounding is to nearest
// even; (x - m) is multiplied by the F32 reciprocal of s. A group whose step rounds to 0 decodes to
// m.
//
// Body of a slab: the steps of all groups (fp16), their minima (fp16), the codes in the order of
// the values, bit-packed. Groups are in order of [token, head, group of channels], or of [group of
// tokens, head, channel].
#ifndef KVSTOW_KERNELS_QUANTIZE_AFFINE_H_
#define KVSTOW_KERNELS_QUANTIZE_AFFINE_H_

#include "kernels/quantize/quantizer.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Quantizer>> MakeAffine(const OpArguments& arguments);

// The loops over `count` rows of `width` values, each row cut into groups along it (the token
// axis), or grouped over rows `group` at a time (the channel axis). Codes are one a byte; `steps`
// and `minima` are the fp16 values as floats. Encoding returns false when one of them is not
// finite.
struct AffineGroups {
  size_t rows = 0, width = 0, group = 0;
  uint32_t bits = 8;
};
bool AffineEncodeRows(const AffineGroups& g, const float* values, float* steps, float* minima,
                      uint8_t* codes);
bool AffineEncodeRowsReference(const AffineGroups& g, const float* values, float* steps,
                               float* minima, uint8_t* codes);
void AffineDecodeRows(const AffineGroups& g, const float* steps, const float* minima,
                      const uint8_t* codes, float* values);
void AffineDecodeRowsReference(const AffineGroups& g, const float* steps, const float* minima,
                               const uint8_t* codes, float* values);

bool AffineEncodeColumns(const AffineGroups& g, const float* values, float* steps, float* minima,
                         uint8_t* codes);
bool AffineEncodeColumnsReference(const AffineGroups& g, const float* values, float* steps,
                                  float* minima, uint8_t* codes);
void AffineDecodeColumns(const AffineGroups& g, const float* steps, const float* minima,
                         const uint8_t* codes, float* values);
void AffineDecodeColumnsReference(const AffineGroups& g, const float* steps, const float* minima,
                                  const uint8_t* codes, float* values);

// The same straight between a page's 16-bit values (F16 or BF16) and bytes at rest, for groups side
// by side: `groups` of `group` values each, a multiple of kAffineRawGroup. Steps and minima are
// fp16. Bytes and sums are those of LoadFloats, AffineEncodeRows and SquaredError.
inline constexpr size_t kAffineRawGroup = 64;
struct AffineRaw {
  DType dtype = DType::kF16;
  size_t groups = 0, group = 0;
  uint32_t bits = 8;
};
// False when a value is not finite or a scale beyond fp16.
bool AffineEncodeRaw(const AffineRaw& g, const uint8_t* raw, uint8_t* steps, uint8_t* minima,
                     uint8_t* codes);
bool AffineEncodeRawReference(const AffineRaw& g, const uint8_t* raw, uint8_t* steps,
                              uint8_t* minima, uint8_t* codes);
// `steps` and `minima` as floats.
void AffineDecodeRaw(const AffineRaw& g, const float* steps, const float* minima,
                     const uint8_t* codes, uint8_t* raw);
void AffineDecodeRawReference(const AffineRaw& g, const float* steps, const float* minima,
                              const uint8_t* codes, uint8_t* raw);
// Adds to the sums (squared_error.h) of the values and of what the codes leave of them.
void AffineMeasureRaw(const AffineRaw& g, const uint8_t* raw, const float* steps,
                      const float* minima, const uint8_t* codes, double* energy, double* error);
void AffineMeasureRawReference(const AffineRaw& g, const uint8_t* raw, const float* steps,
                               const float* minima, const uint8_t* codes, double* energy,
                               double* error);

// The same of values that are turned: each vector of `dim` of them goes through the signed Hadamard
// transform (transform/hadamard.h). `dim` is a power of two, up to kMaxHeadDim, of whole groups.
struct AffineTurn {
  const float* signs = nullptr;  // [dim], 1 or -1
  size_t dim = 0;
};
// Adds to the sums of the turned values, and of what the codes leave of them. False as above.
bool AffineEncodeTurned(const AffineRaw& g, const AffineTurn& turn, const uint8_t* raw,
                        uint8_t* steps, uint8_t* minima, uint8_t* codes, double* energy,
                        double* error);
bool AffineEncodeTurnedReference(const AffineRaw& g, const AffineTurn& turn, const uint8_t* raw,
                                 uint8_t* steps, uint8_t* minima, uint8_t* codes, double* energy,
                                 double* error);
void AffineDecodeTurned(const AffineRaw& g, const AffineTurn& turn, const float* steps,
                        const float* minima, const uint8_t* codes, uint8_t* raw);
void AffineDecodeTurnedReference(const AffineRaw& g, const AffineTurn& turn, const float* steps,
                                 const float* minima, const uint8_t* codes, uint8_t* raw);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_AFFINE_H_
