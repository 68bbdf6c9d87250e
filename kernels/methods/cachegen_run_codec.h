// Run codecs after CacheGen (arXiv 2310.07240): uniform quantizers whose steps grow with the layer,
// and entropy coding by a table for each channel.
//
//   deltas(every,bins,early,middle,late)
//       As in the paper. The first of every `every` tokens (2..4096, 10) is the anchor. It is coded
//       in `bins` bins (4..256, 256) of its largest magnitude over all heads and channels of the
//       slab. The others are coded as differences to the anchor before them, as decoded. Their step
//       is `early`, `middle` or `late` (0.01..8; 0.5, 1, 1.5) times the rms of all differences of
//       the slab, in the first, the second and the last third of the model's layers.
//   bins(k,k_then,k_from,v,v_then,v_from)
//       As in LMCache, which codes no differences: every token is an anchor. K has `k` bins
//       (4..256, 32) before layer `k_from` (10) and `k_then` (16) from there on. V likewise,
//       v = 32, v_then = 16, v_from = 2.
//
//   anchor  a = fp16(max |x|), T = bins / 2 - 1, q = round(x T / a), x' = q a / T
//   other   s = fp16(step), d = x - anchor', q = round(d / s), x' = anchor' + q s
//
// The plane coder (plane_coder.h) does the entropy coding with its static tables. The row of a
// channel follows from the rms of its codes over the page and is stored in a byte. So a page
// carries no table of its own: LMCache's, 66 bytes a channel, are 2 bits a value in a page of 256
// tokens.
//
// One level. Body: docs/FORMAT.md. Immutable: thread-safe.
#ifndef KVSTOW_KERNELS_METHODS_CACHEGEN_RUN_CODEC_H_
#define KVSTOW_KERNELS_METHODS_CACHEGEN_RUN_CODEC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/methods/run_codec.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeDeltas(const OpArguments& arguments,
                                                           const KvSpec& spec);
absl::StatusOr<std::unique_ptr<const RunCodec>> MakeBins(const OpArguments& arguments,
                                                         const KvSpec& spec);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_CACHEGEN_RUN_CODEC_H_
