// The recipe of a space: one codec, or a hot and a cold one.
//
//   int8                                    every page is coded once, when it is put
//   hot=int8,cold=kvstow-cal(run=10)        put codes by the first, which is fast; before a page
//                                           leaves the memory it becomes the second, once
//
// Value; thread-safe. Errors are ParseRecipe's, and INVALID_ARGUMENT for a form that is missing.
#ifndef KVSTOW_SERVICE_SPACES_SPACE_RECIPE_H_
#define KVSTOW_SERVICE_SPACES_SPACE_RECIPE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

struct SpaceRecipe {
  Recipe hot;                  // the form that put makes
  std::optional<Recipe> cold;  // none = pages have one form

  static absl::StatusOr<SpaceRecipe> Parse(absl::string_view text);
};

// Returns the written-out form, which tells two space recipes apart. Parse takes it too.
std::string PipelineOf(const Recipe& hot, const Recipe* cold);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_SPACES_SPACE_RECIPE_H_
