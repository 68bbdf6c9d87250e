// clip(share,group): narrows each group's range, so that a quantizer of few bits spends them on the
// bulk of the values (RotateKV, arXiv 2501.16383, clips to 0.8 at 2 bits).
//
//   y = min(max(x, share min), share max) of each `group` channels of a head vector
//
// share: 0.1..1 (0.8). group: 1..4096 (128); a last, shorter group stands alone. The cut parts are
// lost: there is no side part, and decoding leaves values as they are.
#ifndef KVSTOW_KERNELS_TRANSFORM_CLIP_H_
#define KVSTOW_KERNELS_TRANSFORM_CLIP_H_

#include "kernels/transform/transform.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Transform>> MakeClip(const OpArguments& arguments);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_TRANSFORM_CLIP_H_
