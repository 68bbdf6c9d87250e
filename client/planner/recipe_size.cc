#include "client/planner/recipe_size.h"

#include <cmath>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/planner/bandwidth.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/page/convert.h"
#include "kernels/recipe/recipe.h"

namespace kvstow::planner {
namespace {

constexpr double kMaxRatio = 10000;
constexpr size_t kMaxProbeBytes = size_t{8} << 20;

// Two pages that no entropy coder takes the same for: noise of unit variance, and a slow wave with
// most values close to their neighbours. FP8 values are bytes to every recipe that takes them.
std::vector<uint8_t> ProbePage(const KvSpec& spec, bool noise) {
  if (IsFloat8(spec.dtype)) {
    std::vector<uint8_t> bytes(PageBytes(spec, spec.page_tokens), 0x38);  // 1.0
    for (size_t i = 0; noise && i < bytes.size(); ++i) bytes[i] = i * 2654435761u >> 24 & 0xBF;
    return bytes;
  }
  std::vector<float> values(PageBytes(spec, spec.page_tokens) / DTypeBytes(spec.dtype));
  uint32_t state = 1;
  for (size_t i = 0; i < values.size(); ++i) {
    double sum = 0;  // of four uniform numbers: near enough to a Gaussian
    for (int j = 0; j < 4; ++j) sum += (state = state * 1664525u + 1013904223u) * 0x1p-32 - 0.5;
    values[i] = static_cast<float>(noise ? sum * 1.7 : std::sin(static_cast<double>(i) * 1e-4));
  }
  std::vector<uint8_t> page(values.size() * DTypeBytes(spec.dtype));
  StoreFloats(spec.dtype, values.data(), values.size(), page.data());
  return page;
}

absl::StatusOr<double> Measure(const std::string& text, KvSpec spec) {
  KVSTOW_ASSIGN_OR_RETURN(const Recipe recipe, ParseRecipe(text));
  if (!recipe.policy_ops().empty()) {
    return absl::InvalidArgumentError("keeps what the attention says");
  }
  while (spec.layers > 1 && PageBytes(spec, spec.page_tokens) > kMaxProbeBytes) spec.layers /= 2;
  KVSTOW_ASSIGN_OR_RETURN(const auto codec, MakeCodec(recipe, spec));
  double ratio[2];
  for (const bool noise : {false, true}) {
    const std::vector<uint8_t> raw = ProbePage(spec, noise);
    // Positions beyond the first tokens of a text, which some recipes keep apart.
    KVSTOW_ASSIGN_OR_RETURN(
        const EncodedPage page,
        codec->Encode(
            {.raw = raw, .tokens = spec.page_tokens, .first_position = spec.page_tokens}));
    ratio[noise] = static_cast<double>(raw.size()) / static_cast<double>(page.StoredBytes());
  }
  if (std::abs(ratio[0] / ratio[1] - 1) > 0.01) {
    return absl::InvalidArgumentError(
        absl::StrCat("takes what the data needs (from noise to a wave ", ratio[1], " to ", ratio[0],
                     " times less)"));
  }
  return ratio[1];
}

// A recipe of a space whose server finds the cold form by itself: "auto", "auto(divergence=.01)".
bool IsFitted(absl::string_view recipe) {
  return recipe == "auto" || (absl::StartsWith(recipe, "auto(") && absl::EndsWith(recipe, ")"));
}

// Takes "@SPEED" off the end of a recipe: its bytes a second, 0 when there is none.
absl::StatusOr<double> TakeSpeed(absl::string_view& text) {
  const size_t at = text.rfind('@');
  if (at == text.npos) return 0;
  const absl::StatusOr<double> speed = ParseBandwidth(text.substr(at + 1));
  if (!speed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("recipe '", text, "': ", speed.status().message()));
  }
  text = text.substr(0, at);
  return speed;
}

}  // namespace

absl::string_view OriginName(Origin origin) {
  constexpr absl::string_view kNames[] = {"published", "given", "measured", "modelled"};
  return kNames[static_cast<size_t>(origin)];
}

uint64_t RecipeSize::StoredBytes(uint64_t raw_bytes) const {
  return static_cast<uint64_t>(std::ceil(static_cast<double>(raw_bytes) / ratio));
}

absl::StatusOr<KvSpec> SpecOfRank(const ModelKv& model, const RankKv& rank, uint32_t page_tokens) {
  KvSpec spec{.model = model.name, .dtype = model.dtype, .page_tokens = page_tokens};
  for (const KvLayers& l : rank.layers) {
    if (spec.layers > 0 && (l.kv_heads != spec.kv_heads || l.head_dim_k != spec.head_dim_k ||
                            l.head_dim_v != spec.head_dim_v)) {
      return absl::FailedPreconditionError(
          absl::StrCat(model.name, ": layers differ in geometry; give each recipe's ratio"));
    }
    spec.layers += l.layers;
    spec.kv_heads = l.kv_heads;
    spec.head_dim_k = l.head_dim_k;
    spec.head_dim_v = l.head_dim_v;
  }
  spec.world_size = rank.ranks;
  KVSTOW_RETURN_IF_ERROR(Validate(spec));
  return spec;
}

absl::StatusOr<RecipeSize> GivenRatio(absl::string_view text) {
  RecipeSize given{.origin = Origin::kGiven};
  KVSTOW_ASSIGN_OR_RETURN(given.decode_bytes_per_s, TakeSpeed(text));
  const size_t last = text.find_last_of(")=");
  if (last != text.npos && text[last] == '=') given.recipe = std::string(text.substr(0, last));
  if (given.recipe.empty() || !absl::SimpleAtod(text.substr(last + 1), &given.ratio) ||
      !(given.ratio >= 1 && given.ratio <= kMaxRatio)) {
    return absl::InvalidArgumentError(
        absl::StrCat("recipe '", text, "': write NAME=RATIO with a ratio from 1 to ", kMaxRatio));
  }
  return given;
}

absl::StatusOr<RecipeSize> SizeOfRecipe(const std::string& text, const KvSpec& spec) {
  RecipeSize size;
  absl::string_view recipe = text;
  KVSTOW_ASSIGN_OR_RETURN(size.decode_bytes_per_s, TakeSpeed(recipe));
  if (IsFitted(recipe)) {
    return absl::InvalidArgumentError(
        absl::StrCat("recipe '", recipe,
                     "' has no size of its own: a server fits it to the pages "
                     "that it holds; take the ratio from `kvstow stats` where such pages are and "
                     "write '",
                     recipe, "=RATIO', or plan with --server"));
  }
  const size_t last = recipe.find_last_of(")=");
  // Two forms end in a '=' that is before no ratio: "hot=int8,cold=kvstow".
  const bool ratio_follows = last != recipe.npos && recipe[last] == '=' &&
                             !absl::EndsWith(recipe.substr(0, last), ",cold");
  if (ratio_follows) return GivenRatio(text);
  size.recipe = std::string(recipe);
  const auto ratio = Measure(size.recipe, spec);
  if (!ratio.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "recipe '", recipe, "' has no size of its own: ", ratio.status().message(),
        "; measure it with `kvstow codec roundtrip --format json` on a case and give the output "
        "as --roundtrip FILE, or write '",
        recipe, "=RATIO'"));
  }
  size.ratio = *ratio;
  return size;
}

}  // namespace kvstow::planner
