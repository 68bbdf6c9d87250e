// The statistics of queries (importance/query_tables.h) that the policy of a recipe reads.
//
// Free functions: thread-safe.
#ifndef KVSTOW_KERNELS_IMPORTANCE_QUERY_NEEDS_H_
#define KVSTOW_KERNELS_IMPORTANCE_QUERY_NEEDS_H_

#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/calibration/calibration.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

// Returns the calibration that the recipe's policy needs: section `queries` (query_tables.h), or
// nothing when it reads no statistics of queries. Fails with INVALID_ARGUMENT when its ops name
// several blobs.
absl::StatusOr<std::optional<CalibrationNeed>> QueryNeeds(const Recipe& recipe);

// Returns the recipe with the statistics of this blob (its id in hexadecimal) named in full, when
// the recipe leaves the blob open or gives the first digits of this id. Returns other recipes as
// they are.
absl::StatusOr<Recipe> NameQueries(const Recipe& recipe, absl::string_view id);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_QUERY_NEEDS_H_
