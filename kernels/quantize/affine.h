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

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_AFFINE_H_
