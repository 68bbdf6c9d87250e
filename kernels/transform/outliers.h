// sparse(share,k,v): stores outliers, the largest and the smallest values, apart with their places
// (GEAR, arXiv 2403.05527; KVQuant, arXiv 2401.18079, stores 1 % so). The next op sees them clipped
// to the range of the others.
//
// A slab is cut into vectors, along the `channel` axis (the tokens of one channel of a head; the
// default for K) or the `token` axis (all heads and channels of one token; the default for V). A
// vector of n values has round(share n / 2) outliers at the top and as many at the bottom, in fp16.
// Among equal values, those at higher places are the larger. share: 0.001..0.5 (0.02).
//
// Side part of a slab: for each vector the outliers in order of their places (fp16), then for
// each vector the places, ascending, little-endian in as few bytes as hold n - 1. Vectors in order
// of [head, channel], or of tokens.
#ifndef KVSTOW_KERNELS_TRANSFORM_OUTLIERS_H_
#define KVSTOW_KERNELS_TRANSFORM_OUTLIERS_H_

#include "kernels/transform/transform.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Transform>> MakeOutliers(const OpArguments& arguments);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_OUTLIERS_H_
