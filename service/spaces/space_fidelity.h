// A space's promise about the pages that come back, and the recipes that keep it.
//
//   EXACT    the very bytes: lossless recipes only
//   DENSE    every token: recipes that lose bits, not those that drop tokens
//   SPARSE   tokens may be missing; every reply says which
//
// A recipe that drops tokens by what queries looked at (attention columns) suits the session that
// asked, and fails the next one that shares the page: such a space must be private. Policies of K,
// V and position alone, and of the statistics of a model's queries, are the same for everyone.
//
// Free functions; thread-safe.
#ifndef KVSTOW_SERVICE_SPACES_SPACE_FIDELITY_H_
#define KVSTOW_SERVICE_SPACES_SPACE_FIDELITY_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "service/spaces/space_recipe.h"

namespace kvstow {

// Persisted: do not change values.
enum class SpaceFidelity : uint8_t { kExact = 1, kDense = 2, kSparse = 3 };
absl::string_view SpaceFidelityName(SpaceFidelity fidelity);  // "EXACT"

struct SpacePromise {
  SpaceFidelity fidelity = SpaceFidelity::kDense;
  bool is_private = false;  // one session alone uses the pages
  bool operator==(const SpacePromise&) const = default;
};

// Returns the promise of a new space. `lossless` says that all forms of the recipe are. Fails with
// INVALID_ARGUMENT when the recipe cannot keep the requested promise, or would drop tokens unasked.
absl::StatusOr<SpacePromise> PromiseOf(const SpaceRecipe& recipe, bool lossless,
                                       std::optional<SpaceFidelity> fidelity, bool is_private);

// Returns the promise's byte in the record of a space: the fidelity, and the highest bit for
// private ones.
uint8_t PromiseByte(SpacePromise promise);
// Fails with FAILED_PRECONDITION for a fidelity that this build does not know.
absl::StatusOr<SpacePromise> PromiseFromByte(uint8_t byte);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_SPACES_SPACE_FIDELITY_H_
