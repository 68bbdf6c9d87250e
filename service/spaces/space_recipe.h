// The recipe of a space: one codec, a hot and a cold one, or `auto`.
//
//   int8                                    every page is coded once, when it is put
//   hot=int8,cold=kvstow-cal(run=10)        put codes by the first, which is fast; before a page
//                                           leaves the memory it becomes the second, once
//   auto(divergence=0.005)                  hot=int8,cold=kvstow(divergence=0.005) at first; then
//                                           the server itself looks for the smallest cold form that
//                                           costs the model no more (service/fitting)
//
// `auto` may name its two forms, as in auto(divergence=0.01),hot=int8,cold=kvstow. Where it does
// not, its cold form has keys=2, too, for models that norm their keys. Forms that need a
// calibration have no place in it: new spaces refuse them (spaces.h), and spaces that have them are
// not fitted.
//
// Value; thread-safe. Errors are ParseRecipe's, and INVALID_ARGUMENT for a form that is missing.
#ifndef KVSTOW_SERVICE_SPACES_SPACE_RECIPE_H_
#define KVSTOW_SERVICE_SPACES_SPACE_RECIPE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/calibration/calibration.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

// Of `auto` where the recipe does not say it: about what `kvstow` costs a small model.
inline constexpr double kDefaultDivergence = 0.01;

struct SpaceRecipe {
  Recipe hot;                  // the form that put makes
  std::optional<Recipe> cold;  // none = pages have one form
  // Of `auto`: the KL divergence, in nats, that a cold page may cost a model's next tokens; 1e-4 to
  // 1. None = the recipe is not `auto`.
  std::optional<double> divergence;

  // `normed_keys`: the model norms its keys (QK-norm).
  static absl::StatusOr<SpaceRecipe> Parse(absl::string_view text, bool normed_keys = false);
};

// Returns the ids of the calibrations that a recipe names in full: those that code its pages, and
// the statistics of queries that its policy reads. None for a text that is no recipe.
std::vector<CalibrationId> NamedCalibrations(absl::string_view text);

// Returns the written-out form, which tells two space recipes apart. Parse takes it too.
std::string PipelineOf(const SpaceRecipe& recipe);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_SPACES_SPACE_RECIPE_H_
