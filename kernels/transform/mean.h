// mean(part): takes the page's mean off each channel, before rotation and quantizers
// (SageAttention's smoothing of K, arXiv 2410.02367). Where K's channels have large means, as after
// a QK-norm or with an attention bias, the rest is much smaller than the values were.
//
//   m[h, c] = fp16(mean of x[t, h, c] over the page's tokens t), y = x - m
//
// part: `k` (V passes as it is) or `kv`. Means are summed in F64, token after token.
//
// Side part of a slab: m of all heads and channels (fp16).
#ifndef KVSTOW_KERNELS_TRANSFORM_MEAN_H_
#define KVSTOW_KERNELS_TRANSFORM_MEAN_H_

#include "kernels/transform/transform.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Transform>> MakeMean(const OpArguments& arguments);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_MEAN_H_
