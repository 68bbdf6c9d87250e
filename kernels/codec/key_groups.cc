#include "kernels/codec/key_groups.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/page/convert.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {
namespace {

constexpr double kTop = 255;          // of 8-bit codes
constexpr uint32_t kSpanTokens = 64;  // the sample is spread over the first so many
constexpr uint32_t kLanes = 8;

// The arguments that stand in quantize/affine.h.
constexpr uint32_t kUsualBits = 8, kUsualGroup = 64, kMostGroup = 4096;

double RangeOf(const float* values, uint32_t count) {
  float low[kLanes], high[kLanes];
  for (uint32_t j = 0; j < kLanes; ++j) low[j] = high[j] = values[j % count];
  uint32_t i = 0;
  // Side by side, so that no comparison waits for the one before.
  for (; i + kLanes <= count; i += kLanes) {
    for (uint32_t j = 0; j < kLanes; ++j) {
      low[j] = std::min(low[j], values[i + j]);
      high[j] = std::max(high[j], values[i + j]);
    }
  }
  for (; i < count; ++i) {
    low[0] = std::min(low[0], values[i]);
    high[0] = std::max(high[0], values[i]);
  }
  return double{*std::max_element(high, high + kLanes)} - *std::min_element(low, low + kLanes);
}

// The mean over the groups of a vector.
double SquaredRange(const float* vector, uint32_t dim, uint32_t group) {
  double sum = 0;
  uint32_t groups = 0;
  for (uint32_t c = 0; c < dim; c += group, ++groups) {
    const double range = RangeOf(vector + c, std::min(group, dim - c));
    sum += range * range;
  }
  return sum / groups;
}

// The mean over channels of the variance of kSampledKeys vectors, which stand `padded` values apart
// and end in zeros.
double Variance(const float* vectors, uint32_t dim, uint32_t padded) {
  float sums[kLanes] = {};
  for (uint32_t c = 0; c < padded; c += kLanes) {
    float mean[kLanes] = {};
    for (uint32_t i = 0; i < kSampledKeys; ++i) {
      for (uint32_t j = 0; j < kLanes; ++j) mean[j] += vectors[i * padded + c + j];
    }
    for (uint32_t i = 0; i < kSampledKeys; ++i) {
      for (uint32_t j = 0; j < kLanes; ++j) {
        const float off = vectors[i * padded + c + j] - mean[j] / kSampledKeys;
        sums[j] += off * off;
      }
    }
  }
  double sum = 0;
  for (const float s : sums) sum += s;
  return sum / (dim * (kSampledKeys - 1.0));
}

class KeyGroupsCodec final : public Codec {
 public:
  KeyGroupsCodec(KeyGroups groups, std::shared_ptr<const Codec> by_token,
                 std::shared_ptr<const Codec> by_channel)
      : groups_(std::move(groups)),
        by_token_(std::move(by_token)),
        by_channel_(std::move(by_channel)) {}

  const Recipe& recipe() const override { return by_token_->recipe(); }
  const KvSpec& spec() const override { return by_token_->spec(); }
  bool exact() const override { return by_token_->exact(); }
  uint32_t levels() const override { return by_token_->levels(); }
  absl::StatusOr<EncodedPage> Encode(const PageToEncode& page) const override {
    // Pages of a wrong size get their error from the codec.
    const bool fits =
        page.tokens <= spec().page_tokens && page.raw.size() == PageBytes(spec(), page.tokens);
    const bool coarse = fits && groups_.TooCoarse(page.raw, page.tokens);
    return (coarse ? by_channel_ : by_token_)->Encode(page);
  }

 private:
  const KeyGroups groups_;
  const std::shared_ptr<const Codec> by_token_, by_channel_;
};

}  // namespace

absl::StatusOr<std::optional<Recipe>> WithKeyChannels(const Recipe& recipe) {
  std::vector<Op> ops(recipe.ops().begin(), recipe.ops().end());
  if (ops.empty() || recipe.drops_tokens()) return std::optional<Recipe>();
  const size_t alone = ops[0].name == "run" ? 2 : 1;
  if (ops.size() != alone || ops.back().name != "affine") return std::optional<Recipe>();
  const OpArguments arguments(ops.back());
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t bits, arguments.Number("bits", kUsualBits, 1, 8));
  if (bits != 8 || !arguments.Text("k", "").empty()) return std::optional<Recipe>();
  ops.back().arguments.push_back({"k", "channel"});
  Recipe out(std::move(ops));
  return std::optional<Recipe>(std::move(out));
}

absl::StatusOr<KeyGroups> KeyGroups::Make(const Recipe& recipe, const KvSpec& spec) {
  const OpArguments arguments(recipe.ops().back());
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t group,
                          arguments.Number("group", kUsualGroup, 1, kMostGroup));
  return KeyGroups(spec, group);
}

KeyGroups::KeyGroups(const KvSpec& spec, uint32_t group)
    : spec_(spec), group_(group), rotations_(spec, {0, spec.layers}, 0, kSpanTokens) {}

bool KeyGroups::TooCoarse(std::span<const uint8_t> raw, uint32_t tokens) const {
  if (tokens < kFewestKeys) return false;
  const uint32_t dim = spec_.head_dim_k;
  const size_t value = DTypeBytes(spec_.dtype);
  const uint32_t padded = (dim + kLanes - 1) / kLanes * kLanes;
  std::vector<float> vectors(size_t{kSampledKeys} * padded);
  double errors = 0;
  for (uint32_t layer = 0; layer < spec_.layers; ++layer) {
    const uint8_t* const slab = raw.data() + SlabOffset(spec_, layer, Part::kK, tokens);
    double range = 0;
    for (uint32_t i = 0; i < kSampledKeys; ++i) {
      // Never the first of a text, which is like no other.
      const uint32_t token = (2 * i + 1) * std::min(tokens, kSpanTokens) / (2 * kSampledKeys);
      const size_t at = (size_t{token} * spec_.kv_heads + layer % spec_.kv_heads) * dim;
      float* const vector = vectors.data() + size_t{i} * padded;
      if (!LoadFloats(spec_.dtype, slab + at * value, dim, vector)) return false;
      range += SquaredRange(vector, dim, group_) / kSampledKeys;
      rotations_.Of(layer).Undo(token, 1, 1, vector);
    }
    // Scaling of K beside its rotation is in the ranges, and undone in the variances.
    const double magnitude = RopeMagnitude(RopeOfLayer(spec_, layer));
    const double spread = Variance(vectors.data(), dim, padded) * magnitude * magnitude;
    if (range > 0) errors += range / spread;
  }
  return errors > kCoarseKeys * 12 * kTop * kTop * spec_.layers;
}

absl::StatusOr<bool> KeysAreTooCoarse(const Codec& codec, const PageToEncode& page) {
  KVSTOW_ASSIGN_OR_RETURN(const auto channels, WithKeyChannels(codec.recipe()));
  if (!channels.has_value()) return false;
  KVSTOW_ASSIGN_OR_RETURN(const KeyGroups groups, KeyGroups::Make(codec.recipe(), codec.spec()));
  return groups.TooCoarse(page.raw, page.tokens);
}

std::shared_ptr<const Codec> MakeKeyGroupsCodec(KeyGroups groups,
                                                std::shared_ptr<const Codec> by_token,
                                                std::shared_ptr<const Codec> by_channel) {
  return std::make_shared<KeyGroupsCodec>(std::move(groups), std::move(by_token),
                                          std::move(by_channel));
}

}  // namespace kvstow
