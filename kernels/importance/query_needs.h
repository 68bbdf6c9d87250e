// Which statistics of queries (importance/query_tables.h) the policy of a recipe reads.
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

// What the recipe's policy asks for of a calibration: section `queries` (query_tables.h), or
// nothing when it reads no statistics of queries. INVALID_ARGUMENT when its ops name several blobs.
absl::StatusOr<std::optional<CalibrationNeed>> QueryNeeds(const Recipe& recipe);

// The same recipe with the statistics of this blob (its id in hexadecimal) named in full, where it
// leaves open which, or gives the first digits of this one. Others stay as they are.
absl::StatusOr<Recipe> NameQueries(const Recipe& recipe, absl::string_view id);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_IMPORTANCE_QUERY_NEEDS_H_
