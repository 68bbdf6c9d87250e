// clip(share,group): draws the ends of each group's range in, so that a quantizer of few bits
// spends them on the many (RotateKV, arXiv 2501.16383, clips to 0.8 at 2 bits).
//
//   y = min(max(x, share min), share max) of each `group` channels of a head vector
//
// share: 0.1..1 (0.8). group: 1..4096 (128); a last, shorter group is its own. Nothing is kept of
// what was cut off: no side part, and decoding leaves values as they are.
#ifndef KVSTOW_KERNELS_TRANSFORM_CLIP_H_
#define KVSTOW_KERNELS_TRANSFORM_CLIP_H_

#include "kernels/transform/transform.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Transform>> MakeClip(const OpArguments& arguments);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_CLIP_H_
