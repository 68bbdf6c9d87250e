#include "service/spaces/space_recipe.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "kernels/codec/parse_recipe.h"

namespace kvstow {
namespace {

constexpr absl::string_view kHot = "hot=", kCold = ",cold=";

}  // namespace

absl::StatusOr<SpaceRecipe> SpaceRecipe::Parse(absl::string_view text) {
  SpaceRecipe out;
  absl::string_view hot = text;
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

std::string PipelineOf(const Recipe& hot, const Recipe* cold) {
  if (cold == nullptr) return hot.pipeline();
  return absl::StrCat(kHot, hot.pipeline(), kCold, cold->pipeline());
}

}  // namespace kvstow
