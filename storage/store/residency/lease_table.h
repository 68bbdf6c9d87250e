// Leases: the promised pages, and the end of each promise.
//
// Every lease ends at its TTL: a client that vanishes can never make a page unevictable for good.
// The table only keeps time. PageIndex counts the leases of a page. The owner of both passes on
// what Release and Expire return. The table limits leases and the pages that they promise, so
// nobody can fill memory with promises. Not thread-safe: Residency's lock guards it.
#ifndef KVSTOW_STORAGE_STORE_RESIDENCY_LEASE_TABLE_H_
#define KVSTOW_STORAGE_STORE_RESIDENCY_LEASE_TABLE_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "base/clock.h"
#include "storage/segment.h"

namespace kvstow {

using LeaseId = uint64_t;      // 0 = none
using LeaseHolder = uint64_t;  // who took a lease; nobody else renews or releases it

// A lease as somebody names it. A plain number means the holder 0.
struct NamedLease {
  NamedLease(LeaseId lease, LeaseHolder by = 0) : id(lease), holder(by) {}  // NOLINT: implicit
  LeaseId id;
  LeaseHolder holder;
};

class LeaseTable {
 public:
  struct Limits {
    uint64_t leases = 65'536;
    uint64_t pages = 4'194'304;  // of all leases together; a page counts once for each promise
  };
  // Ids after `first` are random: they tell nobody how many leases others take. So is `first` in a
  // server, and a client's lease of an earlier run is not taken for another's.
  LeaseTable(Duration ttl, LeaseId first, const Limits& limits)
      : ttl_(ttl), limits_(limits), next_(first == 0 ? 1 : first) {}

  // Returns whether the table has room for one more lease of so many pages.
  bool HasRoomFor(size_t pages) const {
    return leases_.size() < limits_.leases && pages <= limits_.pages - pages_;
  }
  // HasRoomFor must hold.
  LeaseId Grant(std::vector<PageRef> pages, Time now, LeaseHolder holder = 0);
  // Extends the lease to a full TTL from `now`; false when it has ended, or is another holder's.
  bool Renew(const NamedLease& named, Time now);
  // Ends the lease and returns its pages; nothing when it has ended before, or is another holder's.
  std::optional<std::vector<PageRef>> Release(const NamedLease& named, Time now);
  // The pages of all leases that have ended by `now`, once for each promise.
  struct Expired {
    size_t leases = 0;
    std::vector<PageRef> pages;
  };
  Expired Expire(Time now);

  Duration ttl() const { return ttl_; }
  size_t size() const { return leases_.size(); }
  uint64_t pages() const { return pages_; }
  // Returns the number of promises of each page, for checks.
  absl::flat_hash_map<PageNumber, uint32_t> CountPages() const;

 private:
  struct Lease {
    Time end;
    std::vector<PageRef> pages;
    LeaseHolder holder;
  };

  const Duration ttl_;
  const Limits limits_;
  LeaseId next_;
  uint64_t pages_ = 0;
  absl::flat_hash_map<LeaseId, Lease> leases_;
  absl::btree_set<std::pair<Time, LeaseId>> ends_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_RESIDENCY_LEASE_TABLE_H_
