// Quantization with a dead zone: q = sign(c) floor(|c| / step + 1 - dead_zone).
//
// dead_zone 0.5 rounds, 1 cuts: magnitudes up to `dead_zone` steps become 0. Dropping the last bit
// of a magnitude gives a quantizer of twice the step whose dead zone is (1 + dead_zone) / 2: levels
// of an embedded code are nested whatever the finest one does, and get the wider zones that low
// rates want.
//
// Free functions, thread-safe; the same bits on every machine and SIMD target.
#ifndef KVSTOW_KERNELS_QUANTIZE_DEAD_ZONE_H_
#define KVSTOW_KERNELS_QUANTIZE_DEAD_ZONE_H_

#include <cstddef>
#include <cstdint>

namespace kvstow {

// `values` are finite, `inverse_step` is 1 / step in F32. Magnitudes end at `limit`.
void DeadZoneQuantize(const float* values, size_t count, float inverse_step, float dead_zone,
                      int32_t limit, int32_t* q);

// round(per_octave log2(x)) by comparisons, the same on every machine. x is positive and normal,
// per_octave is 4 or 8.
int RoundLog2(double x, int per_octave);
// 2^(n / per_octave); per_octave is 4, 8 or 16.
double Exp2Fraction(int n, int per_octave);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_DEAD_ZONE_H_
