// Which node of a client gave which lease. A lease means nothing to another node.
//
// Remembers the last kMost leases. Thread-safe.
#ifndef KVSTOW_CLIENT_CONNECTION_LEASE_OWNERS_H_
#define KVSTOW_CLIENT_CONNECTION_LEASE_OWNERS_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/container/flat_hash_map.h"
#include "base/mutex.h"

namespace kvstow {

struct Node;

class LeaseOwners {
 public:
  static constexpr size_t kMost = 16'384;

  void Add(uint64_t lease, const Node& node) {
    MutexLock lock(mu_);
    if (lease == 0 || !owners_.insert_or_assign(lease, &node).second) return;
    oldest_.push_back(lease);
    if (oldest_.size() <= kMost) return;
    owners_.erase(oldest_.front());
    oldest_.pop_front();
  }
  // Returns who gave the lease; null: this client did not take it, or has forgotten.
  const Node* Find(uint64_t lease) const {
    MutexLock lock(mu_);
    const auto owner = owners_.find(lease);
    return owner == owners_.end() ? nullptr : owner->second;
  }

 private:
  mutable Mutex mu_;
  absl::flat_hash_map<uint64_t, const Node*> owners_ KVSTOW_GUARDED_BY(mu_);
  std::deque<uint64_t> oldest_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_LEASE_OWNERS_H_
