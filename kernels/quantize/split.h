// Quantizers that cut a slab in two and code each piece by its own quantizer: `first` stands
// between the op and `rest` in a recipe, `rest` behind it.
//
//   outliers(share,group)|first|rest|rest
//       The channels with the most energy go to `first`: of each head, and of each `group` tokens
//       (1..4096, without it the page), round(share dim) channels, at least one and not all.
//       Ties go to the lower channel. share: 0.01..0.99 (0.25). QJL (arXiv 2406.03482) and
//       TurboQuant (arXiv 2504.19874) give such channels more bits.
//       Side part: a bit a channel, 1 = first, in order of [group of tokens, head, channel].
//   latent(rope)|first|rest|rest
//       The last `rope` channels (1..1024, 64) of each vector go to `rest`, those before to
//       `first`: an MLA cache holds a latent and a RoPE part that must share no group, scale or
//       rotation (DeepSeek-V2, arXiv 2405.04434). No side part. A vector of no more than `rope`
//       channels is RoPE part throughout.
//   anchor(every)|first|rest|rest
//       The first of every `every` tokens (2..4096, 10) goes to `first`; of the others `rest` codes
//       the difference to the anchor before them as `first` decodes it (CacheGen, arXiv
//       2310.07240). No side part.
//
// A piece without values has no bytes. Values of a piece keep their order. Splits are immutable and
// thread-safe.
#ifndef KVSTOW_KERNELS_QUANTIZE_SPLIT_H_
#define KVSTOW_KERNELS_QUANTIZE_SPLIT_H_

#include <memory>

#include "kernels/quantize/quantizer.h"

namespace kvstow {

struct SplitPieces {
  std::unique_ptr<Quantizer> first, rest;
};

// The table of ops makes a split by one of these. INVALID_ARGUMENT names the argument and its
// limits.
using MakeSplit = absl::StatusOr<std::unique_ptr<Quantizer>> (*)(const OpArguments&, SplitPieces);

absl::StatusOr<std::unique_ptr<Quantizer>> MakeOutliers(const OpArguments& arguments,
                                                        SplitPieces pieces);
absl::StatusOr<std::unique_ptr<Quantizer>> MakeLatent(const OpArguments& arguments,
                                                      SplitPieces pieces);
absl::StatusOr<std::unique_ptr<Quantizer>> MakeAnchor(const OpArguments& arguments,
                                                      SplitPieces pieces);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_QUANTIZE_SPLIT_H_
