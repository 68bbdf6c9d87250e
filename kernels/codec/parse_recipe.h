// Reads a recipe (recipe.h has the grammar). Expands presets, and names arguments that stand by
// place.
//
// A free function: thread-safe. INVALID_ARGUMENT says what is wrong; for bad grammar it has the
// text, the place and what is expected there.
#ifndef KVSTOW_KERNELS_CODEC_PARSE_RECIPE_H_
#define KVSTOW_KERNELS_CODEC_PARSE_RECIPE_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

absl::StatusOr<Recipe> ParseRecipe(absl::string_view text);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_PARSE_RECIPE_H_
