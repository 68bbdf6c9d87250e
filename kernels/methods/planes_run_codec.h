// planes(step,levels,k,depth,firstbits,keys): page statistics and the plane coder. An embedded code
// without calibration, source: our own; docs/CODECS.md has the formula and the measurements.
//
// K loses its rotary positions; every channel loses its mean over the page. A quantizer with a full
// dead zone takes the values. Its step is `step` times the slab's rms spread at the finest level,
// and doubles a level coarser. K's step is `k` times that. V's step is depth^(x - 1/2) times that,
// x from 0 at the first layer to 1 at the last. Static tables, picked by the spread of the channel,
// code the result. The first tokens of a text (positions below kPlainTokens) lie far from all
// others. They are coded apart, in `firstbits` bits (first_tokens.h).
//
// With keys=1 the keys of the page say what the model feels (page_guess.h). A layer whose heads are
// felt u times as much as those of the page on average has steps of 1 / u for K and of u^-1/2 for
// V. Steps of K's channels follow their spread^-1/2.
//
// keys=2 is for models that norm their keys (QK-norm: Gemma 3, Qwen 3). Weights of that norm make a
// channel of K large, and queries have weights of their own. So K's channels have one step, u^-1/2
// times the usual one, and V's does not depend on u.
//
// With keys=1 or 2 each token has a class of steps, too, by what its keys say of the attention that
// it gets, or by what a policy knows (MakeClassedPlanes). For keys=1 that is what the keys of the
// run say (calibration/key_slopes.h), and squared steps go with its sensitivity^-.4. For keys=2 it
// is what those of the page say, and the power is -.8. Where the page is not known as a whole, as
// with a head of which tokens were dropped, the run says it. Keys of fewer than
// kMinTokensForChannels coded tokens say nothing. Unless a policy knows, the end of the page makes
// steps finer (calibration/page_end.h). Latents have the usual step.
//
// The body of the base level has those first tokens, the statistics (page_statistics.h) and the
// plane coder's base. Bodies of the other levels are the plane coder's. Values beyond fp16 are
// OUT_OF_RANGE.
#ifndef KVSTOW_KERNELS_METHODS_PLANES_RUN_CODEC_H_
#define KVSTOW_KERNELS_METHODS_PLANES_RUN_CODEC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/calibration/calibration.h"
#include "kernels/methods/run_codec.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

inline constexpr uint64_t kPlainTokens = 4;

// step: 0.01 to 8 (0.5), of the finest level; levels: 1 to 8 (3); k, depth: 0.1 to 10 (1); keys: 0
// to 2 (0).
absl::StatusOr<std::unique_ptr<const RunCodec>> MakePlanes(const OpArguments& arguments,
                                                           const KvSpec& spec);
// Makes the same behind a policy that ends in `class`, which says how finely tokens are coded. Each
// has a class of steps, half an octave each, in the place of the plane coder's energy classes. The
// calibration is null.
absl::StatusOr<std::unique_ptr<const RunCodec>> MakeClassedPlanes(
    const OpArguments& arguments, const KvSpec& spec, std::shared_ptr<const Calibration>);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_PLANES_RUN_CODEC_H_
