// The run codec of calibrated pages: K and V of a run of layers go through one calibrated transform
// together, then through a dead-zone quantizer and the plane coder.
//
//   joint(run=10,step=2,levels=4,stream=256,blob=any,focus=0.4,first=1,firstbits=8)
//
//   run     layers that are transformed together; the calibration must be made for it
//   step    of the finest level, in the calibration's units
//   levels  1..8; each coarser level doubles the step
//   stream  tokens of an entropy-coded stream, a multiple of 16: a reader of few decodes as many
//   focus   0..2: how much finer tokens are coded that the model feels more (token_importance.h);
//           0 = all the same
//   first   positions below this are coded apart (4 where it is not given): sinks of attention
//   firstbits  5..8 bits of them (5 where it is not given)
//   blob    leading hexadecimal digits of the calibration's id; any = the one that fits
//
// A calibration may have a vocabulary (calibration/vocabulary.h). What the tokens that it finds in
// a page foretell is then taken off before the transform, and put back after it.
//
// Every token is coded by itself. The body of level 0 holds the first tokens of a text (`first`),
// slab after slab as affine(bits=`firstbits`,group=32). The step classes of the others follow, 3
// bits each, if the calibration tells of importance and `focus` is not 0, or if a policy ends in
// `class`. The plane coder's body of the others is last, and a further level has only that. Level l
// is read with step * 2^(levels - 1 - l).
//
// Encoding is deterministic within one SIMD target, with and without AMX (tile_product.h). Another
// target may take another rounding decision, as the products' sums round differently. Decoded
// values differ by rounding: of F32 between targets, of bf16 with AMX, whose squared error is some
// 2e-6 of the energy. Parts of a page decode to what they are in the whole.
//
// Method: a Karhunen-Loeve transform over the layers and over K and V, whitened by what the model
// feels. The published relative is KVTC (NVIDIA), over K and V apart.
#ifndef KVSTOW_KERNELS_METHODS_JOINT_RUN_CODEC_H_
#define KVSTOW_KERNELS_METHODS_JOINT_RUN_CODEC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/calibration/calibration.h"
#include "kernels/methods/run_codec.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

// Fails with INVALID_ARGUMENT when an argument is out of range or the calibration has another shape
// than the spec.
absl::StatusOr<std::unique_ptr<const RunCodec>> MakeJointRunCodec(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration);
// Makes the same behind a policy that ends in `class`.
absl::StatusOr<std::unique_ptr<const RunCodec>> MakeClassedJointRunCodec(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_JOINT_RUN_CODEC_H_
