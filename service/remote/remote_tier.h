// RemoteTier: the cold tier that several servers share, behind a RemoteStore.
//
//   Out  Pages that were put here are sent on, in the background (remote_sender.h).
//   In   A look-up that misses here asks the remote store for the rest, in one round trip. Pages
//        that it has are fetched ahead, and enter the host tier (remote_fetches.h,
//        remote_records.h).
//
// The remote store is no promise: leases, acks and pins are this server's. A page that does not
// come in time is a miss. A server without a remote store has NoRemoteStore(), and nothing here
// costs it anything. Thread-safe.
#ifndef KVSTOW_SERVICE_REMOTE_REMOTE_TIER_H_
#define KVSTOW_SERVICE_REMOTE_REMOTE_TIER_H_

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "service/ops/metric_row.h"
#include "service/remote/remote_counters.h"
#include "service/remote/remote_fetches.h"
#include "service/remote/remote_purge.h"
#include "service/remote/remote_records.h"
#include "service/remote/remote_sender.h"
#include "service/remote/remote_store.h"
#include "service/spaces/spaces.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

class RemoteTier {
 public:
  struct Options {
    std::string prefix = "kvstow";  // of all names: servers with one prefix share pages
    Duration lookup_wait = std::chrono::milliseconds(20);
    Duration fetch_wait = std::chrono::seconds(2);
    Duration ttl = std::chrono::hours(24);
    uint64_t bytes_per_second = 0;               // out; 0 = as fast as it goes
    uint64_t ahead_bytes = uint64_t{256} << 20;  // of pages fetched before anybody asks
    CountLevels count_levels = nullptr;
    const Clock* clock = &Clock::Real();
  };
  // `store`, `spaces` and what `cold` calls outlive this.
  RemoteTier(Options options, std::unique_ptr<RemoteStore> remote, TieredStore& store,
             const Spaces& spaces, MakeColdForm cold);
  ~RemoteTier();  // waits for what it began

  bool on() const { return remote_.holds_values(); }
  // Calls `done` with the leading ones of `keys` that the remote store has, after lookup_wait at
  // most. They are the keys that follow a prefix which is here.
  void Extend(const std::shared_ptr<const Space>& space, std::vector<std::string> keys,
              std::function<void(std::vector<FoundPage>)> done);
  // Brings a page here that a worker asks for, after fetch_wait at most. NOT_FOUND: it is not
  // stored. Blocks.
  absl::Status Fetch(const Space& space, const std::string& key);
  // Returns whether Fetch would wait.
  bool MayFetch(const Space& space, const std::string& key);
  // A space was made here: other servers may open it by its name.
  void Publish(const Space& space);
  // Returns the record of a space that another server published. NOT_FOUND: there is none, or
  // nobody answers in time. Blocks.
  absl::StatusOr<SharedBytes> FindSpace(const std::string& tenant, const std::string& name);
  // A page was put here.
  void Offer(PageName name) { sender_.Offer(std::move(name)); }
  // A page was deleted here, which had so many segments; a space was dropped here. All servers
  // forget it within a second.
  void Forget(const Space& space, const std::string& key, size_t segments);
  void Drop(const Space& space);
  // Waits until all that was offered is sent, or given up, and all that was deleted is told.
  void Flush();

  const RemoteCounters& counters() const { return counters_; }
  // Returns its metrics; nothing without a remote store.
  std::vector<MetricRow> Rows() const;
  std::string name() const { return remote_.name(); }

 private:
  using SpacePtr = std::shared_ptr<const Space>;
  bool Shares(const Space& space) const;  // private spaces stay here
  FoundPage Describe(const PageRecord& record) const;
  void Find(const SpacePtr& space, uint64_t generation, const std::vector<std::string>& keys,
            Time deadline, std::function<void(std::vector<FoundPage>)> done);
  void Begin();
  void End();
  void ForgetHere(const SpacePtr& space, const std::string& key);
  void EraseThere(const Space& space, const std::string& key, size_t segments);

  const Options options_;
  const std::unique_ptr<RemoteStore> owned_;  // null: NoRemoteStore()
  RemoteStore& remote_;
  TieredStore& store_;
  const Spaces& spaces_;
  RemoteCounters counters_;
  RemoteRecords records_;
  RemotePurge purge_;
  RemoteFetches fetches_;  // asks purge_
  RemoteSender sender_;
  Mutex mu_;
  CondVar ended_;
  size_t look_ups_ KVSTOW_GUARDED_BY(mu_) = 0;  // under way
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REMOTE_TIER_H_
