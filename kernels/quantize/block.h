// block(format): blocks of 16 or 32 channels of a head vector, each with a scale of its own.
//
//   q8_0   llama.cpp: 32 values; d = max |x| / 127 as fp16, then 32 signed bytes round(x / d)
//   q4_0   llama.cpp: 32 values; d = m / -8 as fp16, m the value of largest magnitude with its
//   sign,
//          then 16 bytes: q = min(15, floor(x / d + 8.5)), byte j holds value j (low half) and
//          j + 16; x' = (q - 8) d
//   nvfp4  NVIDIA: 16 values; scale S = E4M3(max |x| / 6 / t), then 8 bytes of E2M1(x / (S t))
//   mxfp4  OCP MX: 32 values; scale e = floor(log2(max |x|)) - 2 as E8M0 (e + 127), then 16
//          bytes of E2M1(x / 2^e)
//   mxfp8  OCP MX: 32 values; e = floor(log2(max |x|)) - 8, then 32 bytes of E4M3(x / 2^e)
//
// E2M1 has the magnitudes 0 .5 1 1.5 2 3 4 6 and a sign bit; both minifloats round to nearest even
// and saturate; two E2M1 codes a byte, the first value in the low half. t = max |x| / (448 x 6)
// over the slab, in F32. In the llama.cpp formats x / d is x times the F32 reciprocal of d before
// it is rounded to fp16, as there; a block whose d rounds to 0 is all zero. The last block of a
// head vector is filled with zeros. Values beyond 65,504 are refused whatever the format could
// hold.
//
// Body of a slab: t (F32; nvfp4 alone), then block after block: its scale, its codes.
#ifndef KVSTOW_KERNELS_QUANTIZE_BLOCK_H_
#define KVSTOW_KERNELS_QUANTIZE_BLOCK_H_

#include "kernels/quantize/quantizer.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Quantizer>> MakeBlock(const OpArguments& arguments);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_BLOCK_H_
