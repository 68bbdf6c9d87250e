// What a store tells of its pages as they come and go: StoreObserver.
//
// The store calls an observer with its lock held, at the very change of its index. So the calls
// come in the order of the changes: a page that goes and comes again is told in that order, and
// what was told is what the store holds. An observer must return at once. It must not block, do
// I/O, or call the store. One call runs at a time.
//
// A page that moves between tiers, cools, or loses refinements is neither gone nor new.
#ifndef KVSTOW_STORAGE_STORE_RESIDENCY_STORE_OBSERVER_H_
#define KVSTOW_STORAGE_STORE_RESIDENCY_STORE_OBSERVER_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "storage/segment.h"

namespace kvstow {

class StoreObserver {
 public:
  virtual ~StoreObserver() = default;
  // Everything that was told before is void; PageCame is called for each of `pages` pages next.
  virtual void Restart(size_t pages) = 0;
  virtual void PageCame(SpaceId space, absl::string_view key, uint32_t tokens) = 0;
  // For every reason: eviction, deletion, damage, the drop of its space.
  virtual void PageWent(SpaceId space, absl::string_view key) = 0;
};

// Observes nothing. Lives for ever.
StoreObserver& NoStoreObserver();

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_RESIDENCY_STORE_OBSERVER_H_
