// One space: the meaning of a worker's pages (spaces.h keeps them all).
//
// A value; immutable once it is shared, but for its counters.
#ifndef KVSTOW_SERVICE_SPACES_SPACE_H_
#define KVSTOW_SERVICE_SPACES_SPACE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/codec.h"
#include "kernels/page/page.h"
#include "service/spaces/calibrations.h"
#include "service/spaces/fitted_form.h"
#include "service/spaces/space_fidelity.h"
#include "service/spaces/space_recipe.h"
#include "storage/catalog.h"

namespace kvstow {

// Counts of a space since it was opened. Copies of the space share them. Thread-safe.
struct SpaceCounters {
  std::atomic<uint64_t> lookup_keys = 0, lookup_hit_keys = 0;
};

using Fingerprint = std::array<uint8_t, 16>;

struct Space {
  SpaceId id = 0;
  std::string name;
  std::string tenant;  // that owns it; "" = the one tenant of a server without identities
  KvSpec spec;
  std::string recipe;    // as written
  std::string pipeline;  // the recipe written out
  SpacePromise promise;
  std::shared_ptr<const Codec> cold;   // codes pages before they leave memory; null = pages stay
  std::shared_ptr<FittedForm> fitted;  // replaces `cold`, as the server fits it; null: not `auto`
  std::shared_ptr<const Codec> codec;  // codes puts; refuses every page without its calibration
  bool calibration_missing = false;
  Fingerprint fingerprint{};
  std::shared_ptr<SpaceCounters> counters = std::make_shared<SpaceCounters>();
};

inline constexpr size_t kMaxSpaceNameBytes = 128;
// Fails with INVALID_ARGUMENT.
absl::Status CheckSpaceName(absl::string_view name);

// Gives a space the codecs of its recipe, and the pipeline that names them. Fails with
// FAILED_PRECONDITION when a calibration is missing.
absl::Status MakeCodecs(const SpaceRecipe& recipe, Calibrations& calibrations, Space& space);

// Names a space in the notes of blobs that are for it alone (calibration.h). No other space ever
// has the name, not even a later one that is opened in the same way: ids are given once.
FitName FitNameOf(const Space& space);
FitOwner FitOwnerOf(const Space& space);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_SPACES_SPACE_H_
