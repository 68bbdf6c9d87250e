// Reads a recipe (recipe.h has the grammar): presets are expanded, and arguments that stand by
// place get their names.
//
// A free function: thread-safe. INVALID_ARGUMENT has the text, the place and what is expected
// there.
#ifndef KVSTOW_KERNELS_CODEC_PARSE_RECIPE_H_
#define KVSTOW_KERNELS_CODEC_PARSE_RECIPE_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

absl::StatusOr<Recipe> ParseRecipe(absl::string_view text);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CODEC_PARSE_RECIPE_H_
