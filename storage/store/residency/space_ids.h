// The ids of the spaces that exist, and the ids that are never given (again). Not thread-safe:
// Residency's lock guards it.
#ifndef KVSTOW_STORAGE_STORE_RESIDENCY_SPACE_IDS_H_
#define KVSTOW_STORAGE_STORE_RESIDENCY_SPACE_IDS_H_

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "storage/segment.h"

namespace kvstow {

class SpaceIds {
 public:
  // Reserves the ids up to `last` for an earlier process. Those that no Add names are lost.
  void StartAfter(SpaceId last) {
    last_old_ = last;
    next_ = last + 1;
  }
  void Add(SpaceId id) {
    saved_.insert(id);
    next_ = std::max(next_, id + 1);
  }
  void Drop(SpaceId id) {
    saved_.erase(id);
    dropped_.insert(id);
    next_ = std::max(next_, id + 1);
  }
  SpaceId New() { return next_++; }

  bool Has(SpaceId id) const { return saved_.contains(id); }
  // Checks that pages may be put into the space.
  absl::Status CheckNotDropped(SpaceId id) const {
    if (!dropped_.contains(id)) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("space id ", id, " is of a space that was dropped: open it again"));
  }
  // Checks that the space's record may be written.
  absl::Status CheckMaySave(SpaceId id) const {
    if (id == 0) return absl::InvalidArgumentError("space ids start at 1");
    if (id <= last_old_ && !saved_.contains(id) && !dropped_.contains(id)) {
      return absl::FailedPreconditionError(
          absl::StrCat("space id ", id,
                       " was used before by a space whose record cannot be read; take one from "
                       "NewSpaceId"));
    }
    return CheckNotDropped(id);
  }

 private:
  absl::flat_hash_set<SpaceId> saved_, dropped_;
  SpaceId last_old_ = 0;  // the largest that records were filed under
  SpaceId next_ = 1;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_RESIDENCY_SPACE_IDS_H_
