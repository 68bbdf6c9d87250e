// Which way the groups of K run in a page of 8-bit codes: along channels, or along tokens where its
// channels have large means.
//
// A group of `affine` spans all that its values span. Where QK-norm or a bias leaves channels of K
// with means of many standard deviations, groups of channels of one token have steps many times
// what varies, and groups of tokens of one channel do not. So a recipe that ends in 8-bit `affine`
// alone and does not name `k` (`int8`) leaves the axis open, and each page gets `k=channel` when
// groups by token would be too coarse for it. Its header says so, and decoding knows nothing of the
// choice. Other pages have the bytes that the recipe says. `k=token` pins the axis.
//
// `planes` and `joint` take means off before they code, but keep the first tokens of a text apart
// in groups by token of 5 bits (first_tokens.h). A page that has some and is too coarse so gets
// `firstbits=8`, unless the recipe names `firstbits`.
//
// Too coarse: the error that 8-bit steps of K's groups by token make, (max - min)^2 / (12 * 255^2),
// is more than kCoarseKeys of the variance of the same channels over the tokens without RoPE, as
// the mean of the layers. kSampledKeys tokens of one head of each layer are looked at. Pages of
// fewer than kFewestKeys tokens stay by token: a scale for so few tokens costs as much as they do.
// docs/CODECS.md has what a model feels of it.
//
// Deterministic, whatever the SIMD target. Free functions and an immutable codec: thread-safe.
#ifndef KVSTOW_KERNELS_CODEC_KEY_GROUPS_H_
#define KVSTOW_KERNELS_CODEC_KEY_GROUPS_H_

#include <memory>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/codec/codec.h"
#include "kernels/recipe/recipe.h"
#include "kernels/transform/rope.h"

namespace kvstow {

inline constexpr double kCoarseKeys = 5e-4;
inline constexpr uint32_t kSampledKeys = 4, kFewestKeys = 8;

// What pages with large means get instead of `recipe`; nothing when the recipe leaves nothing open.
absl::StatusOr<std::optional<Recipe>> WithKeyChannels(const Recipe& recipe);

// Measures pages of one geometry.
class KeyGroups {
 public:
  // Of a recipe that WithKeyChannels takes.
  static absl::StatusOr<KeyGroups> Make(const Recipe& recipe, const KvSpec& spec);
  // Whether K of this page is too coarse by token. A page with NaN or Inf is not: it has no codes.
  bool TooCoarse(std::span<const uint8_t> raw, uint32_t tokens) const;

 private:
  KeyGroups(const KvSpec& spec, uint32_t group);

  const KvSpec spec_;
  const uint32_t group_;         // channels
  const RopeRotation rotation_;  // of the first tokens, whatever their positions
};

// Whether `codec` would code this page otherwise than its recipe is written, which is all that a
// device does (device_codec.h).
absl::StatusOr<bool> KeysAreTooCoarse(const Codec& codec, const PageToEncode& page);

// Pages go through `by_channel` when they are too coarse for `by_token`.
std::shared_ptr<const Codec> MakeKeyGroupsCodec(KeyGroups groups,
                                                std::shared_ptr<const Codec> by_token,
                                                std::shared_ptr<const Codec> by_channel);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_KEY_GROUPS_H_
