// Chooses the axis of K's groups in a page of 8-bit codes: along channels, or along tokens where
// K's channels have large means.
//
// A group of `affine` spans the whole range of its values. QK-norm or a bias may leave channels of
// K with means of many standard deviations. Then groups of channels of one token have steps many
// times what varies, and groups of tokens of one channel do not. So a recipe of 8-bit `affine`
// alone that does not name `k` (`int8`) leaves the axis open. A page gets `k=channel` when groups
// by token would be too coarse for it. Its header says it, so decoding knows nothing of the choice.
// Other pages have the bytes that the recipe says. `k=token` pins the axis.
//
// K is too coarse when the error of 8-bit steps of its groups by token, (max - min)^2 / (12 *
// 255^2), is more than kCoarseKeys of the variance of the same channels over the tokens without
// RoPE, as the mean of the layers. The measure takes kSampledKeys of the first 64 tokens, in one
// head of each layer. Pages of fewer than kFewestKeys tokens stay by token: a scale for so few
// tokens costs as much as they do. docs/CODECS.md says what a model feels of it.
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

// Returns the recipe for pages with large means, or nothing when `recipe` leaves nothing open.
absl::StatusOr<std::optional<Recipe>> WithKeyChannels(const Recipe& recipe);

// Measures pages of one geometry.
class KeyGroups {
 public:
  // `recipe` is one that WithKeyChannels takes.
  static absl::StatusOr<KeyGroups> Make(const Recipe& recipe, const KvSpec& spec);
  // Returns whether K of this page is too coarse by token. Returns false when it meets NaN or Inf:
  // such a page has no codes.
  bool TooCoarse(std::span<const uint8_t> raw, uint32_t tokens) const;

 private:
  KeyGroups(const KvSpec& spec, uint32_t group);

  const KvSpec spec_;
  const uint32_t group_;            // channels
  const LayerRotations rotations_;  // of the first tokens, whatever their positions
};

// Returns whether `codec` would code this page otherwise than its recipe is written. A device only
// codes pages as the recipe is written (device_codec.h).
absl::StatusOr<bool> KeysAreTooCoarse(const Codec& codec, const PageToEncode& page);

// Makes a codec that codes a page by `by_channel` when it is too coarse for `by_token`.
std::shared_ptr<const Codec> MakeKeyGroupsCodec(KeyGroups groups,
                                                std::shared_ptr<const Codec> by_token,
                                                std::shared_ptr<const Codec> by_channel);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_KEY_GROUPS_H_
