#include "service/spaces/space_recipe.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/importance/query_needs.h"

namespace kvstow {
namespace {

constexpr absl::string_view kHot = "hot=", kCold = ",cold=";
constexpr absl::string_view kAuto = "auto";
constexpr double kLeastDivergence = 1e-4, kMostDivergence = 1;

// Takes `auto`, maybe with its argument, and a comma before more off the front of `text`. Returns
// nothing when it begins otherwise.
absl::StatusOr<std::optional<double>> ConsumeAuto(absl::string_view& text) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, kAuto)) return std::nullopt;
  double divergence = kDefaultDivergence;
  bool right = true;
  if (absl::ConsumePrefix(&rest, "(divergence=")) {
    const size_t end = rest.find(')');
    right = end != absl::string_view::npos && absl::SimpleAtod(rest.substr(0, end), &divergence) &&
            divergence >= kLeastDivergence && divergence <= kMostDivergence;
    if (right) rest.remove_prefix(end + 1);
  }
  right = right && (rest.empty() || absl::ConsumePrefix(&rest, ","));
  if (!right) {
    return absl::InvalidArgumentError(absl::StrCat(
        "recipe '", text, "': write auto or auto(divergence=D), D from ", kLeastDivergence, " to ",
        kMostDivergence, " nats, and maybe ,hot=RECIPE,cold=RECIPE behind it"));
  }
  text = rest;
  return divergence;
}

// The forms of an `auto` that names none. The cold one costs the model what it may from the first
// page on.
std::string FormsOfAuto(double divergence, bool normed_keys) {
  return absl::StrCat("hot=int8,cold=kvstow(", normed_keys ? "keys=2," : "",
                      "divergence=", divergence, ")");
}

}  // namespace

absl::StatusOr<SpaceRecipe> SpaceRecipe::Parse(absl::string_view text, bool normed_keys) {
  SpaceRecipe out;
  absl::string_view hot = text;
  KVSTOW_ASSIGN_OR_RETURN(out.divergence, ConsumeAuto(hot));
  std::string forms;
  if (out.divergence.has_value() && hot.empty()) {
    hot = forms = FormsOfAuto(*out.divergence, normed_keys);
  }
  if (out.divergence.has_value() && !absl::StartsWith(hot, kHot)) {
    return absl::InvalidArgumentError(
        absl::StrCat("recipe '", text, "': auto needs two forms: hot=RECIPE,cold=RECIPE"));
  }
  if (absl::ConsumePrefix(&hot, kHot)) {
    const size_t at = hot.find(kCold);
    if (at == absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat(
          "recipe '", text, "': a hot form needs a cold one: write hot=RECIPE,cold=RECIPE"));
    }
    KVSTOW_ASSIGN_OR_RETURN(out.cold, ParseRecipe(hot.substr(at + kCold.size())));
    hot = hot.substr(0, at);
  }
  KVSTOW_ASSIGN_OR_RETURN(out.hot, ParseRecipe(hot));
  return out;
}

std::vector<CalibrationId> NamedCalibrations(absl::string_view text) {
  std::vector<CalibrationId> out;
  const auto add = [&](const absl::StatusOr<std::optional<CalibrationNeed>>& need) {
    if (!need.ok() || !need->has_value()) return;
    const std::string id = absl::HexStringToBytes((*need)->blob);
    if (id.size() != sizeof(CalibrationId)) return;
    std::ranges::copy(id, out.emplace_back().begin());
  };
  const absl::StatusOr<SpaceRecipe> recipe = SpaceRecipe::Parse(text);
  if (!recipe.ok()) return out;
  for (const Recipe* form : {&recipe->hot, recipe->cold.has_value() ? &*recipe->cold : nullptr}) {
    if (form == nullptr) continue;
    add(CalibrationNeeds(*form));
    add(QueryNeeds(*form));
  }
  return out;
}

std::string PipelineOf(const SpaceRecipe& recipe) {
  if (!recipe.cold.has_value()) return recipe.hot.pipeline();
  const std::string forms =
      absl::StrCat(kHot, recipe.hot.pipeline(), kCold, recipe.cold->pipeline());
  if (!recipe.divergence.has_value()) return forms;
  return absl::StrCat(kAuto, "(divergence=", *recipe.divergence, "),", forms);
}

}  // namespace kvstow
