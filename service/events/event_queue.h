// The changes of the store's pages on their way to the publisher of KV events.
//
// The store appends, under its lock; the publisher takes all that is there. The queue is bounded.
// When it is full, what it holds and what comes after it is lost and counted, until the store tells
// all its pages anew (Residency::TellPages). So a slow publisher costs the store nothing, and
// what is published becomes true again.
//
// Thread-safe. Its lock is the innermost of all: nothing is called under it.
#ifndef KVSTOW_SERVICE_EVENTS_EVENT_QUEUE_H_
#define KVSTOW_SERVICE_EVENTS_EVENT_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/mutex.h"
#include "storage/store/residency/store_observer.h"

namespace kvstow {

// A page as routers may know it: kvstow's page is their block.
struct PageChange {
  enum class Kind : uint8_t { kRestart, kCame, kWent };

  Kind kind = Kind::kRestart;  // kRestart: what was told before is void
  SpaceId space = 0;
  uint32_t tokens = 0;
  uint64_t hash = 0;  // of the page's key: EventHash
};

class EventQueue final : public StoreObserver {
 public:
  explicit EventQueue(size_t max_changes = size_t{1} << 18) : max_changes_(max_changes) {}

  void Restart(size_t pages) override;
  void PageCame(SpaceId space, absl::string_view key, uint32_t tokens) override;
  void PageWent(SpaceId space, absl::string_view key) override;

  // Drops what it holds, until the store tells all its pages anew: what may be told of them has
  // changed. These changes do not count as lost.
  void StartOver();

  // Returns whether the store must tell all its pages: nobody has asked it yet, changes were lost,
  // or it starts over.
  bool NeedsPages() const;
  std::vector<PageChange> Take();
  size_t size() const;
  uint64_t lost() const;  // changes, since the start

 private:
  void Append(const PageChange& change);

  const size_t max_changes_;
  mutable Mutex mu_;
  size_t room_ KVSTOW_GUARDED_BY(mu_) = 0;  // more than max_changes_ for the pages of a restart
  bool needs_pages_ KVSTOW_GUARDED_BY(mu_) = true;
  bool started_ KVSTOW_GUARDED_BY(mu_) = false;
  uint64_t lost_ KVSTOW_GUARDED_BY(mu_) = 0;
  std::vector<PageChange> changes_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_EVENTS_EVENT_QUEUE_H_
