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
#include "service/remote/remote_calibrations.h"
#include "service/remote/remote_counters.h"
#include "service/remote/remote_fetches.h"
#include "service/remote/remote_keys.h"
#include "service/remote/remote_purge.h"
#include "service/remote/remote_records.h"
#include "service/remote/remote_sender.h"
#include "service/remote/remote_store.h"
#include "service/spaces/spaces.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

class RemoteTier {
 public:
  using SpacePtr = std::shared_ptr<const Space>;
  // What one look-up asks for at most: one caller leaves room for the others.
  static constexpr size_t kMostAsked = 4096;
  struct Options {
    std::string prefix = "kvstow";  // of all names: servers with one prefix share pages
    Duration lookup_wait = std::chrono::milliseconds(20);
    Duration fetch_wait = std::chrono::seconds(2);
    Duration ttl = std::chrono::hours(24);
    uint64_t bytes_per_second = 0;               // out; 0 = as fast as it goes
    TenantBytes limit_of = nullptr;              // out, of each tenant (remote_sender.h)
    uint64_t ahead_bytes = uint64_t{256} << 20;  // of pages fetched before anybody asks
    CountLevels count_levels = nullptr;
    const Clock* clock = &Clock::Real();
  };
  // `masters` wrap the keys that seal values; null = values are in clear. `store`, `spaces` and
  // what `cold` calls outlive this.
  RemoteTier(Options options, std::unique_ptr<RemoteStore> remote,
             std::shared_ptr<MasterKeys> masters, TieredStore& store, const Spaces& spaces,
             Calibrations& calibrations, MakeColdForm cold);
  ~RemoteTier();  // waits for what it began

  bool on() const { return remote_.holds_values(); }
  // Calls `done` with the leading ones of `keys` that the remote store has, after lookup_wait at
  // most. They are the keys that follow a prefix which is here. Keys beyond kMostAsked are misses.
  void Extend(const std::shared_ptr<const Space>& space, std::vector<std::string> keys,
              std::function<void(std::vector<FoundPage>)> done);
  // Brings a page here that a worker asks for, after fetch_wait at most. NOT_FOUND: it is not
  // stored. Blocks.
  absl::Status Fetch(const Space& space, const std::string& key);
  // Returns whether Fetch would wait.
  bool MayFetch(const Space& space, const std::string& key);
  // A space was made here: other servers may open it by its name, and get its calibrations.
  void Publish(const Space& space);
  // Returns the record of a space that another server published. NOT_FOUND: there is none, or
  // nobody answers in time. Blocks.
  absl::StatusOr<SharedBytes> FindSpace(const std::string& tenant, const std::string& name);
  // Fetches the calibrations that a recipe of the tenant names in full and that are not here.
  // Returns how many came. Blocks.
  size_t FetchCalibrations(const std::string& tenant, absl::string_view recipe) {
    return on() ? calibrations_.Fetch(tenant, recipe) : 0;
  }
  // A page was put here, behind the page `parent` of its prompt; "" = not known.
  void Offer(const PageName& name, absl::string_view parent) { sender_.Offer(name, parent); }
  // A page was served again.
  void Use(const PageName& name) { sender_.Use(name); }
  // A page was deleted here, which had so many segments; a space was dropped here. All servers
  // forget it within a second.
  void Forget(const Space& space, const std::string& key, size_t segments);
  void Drop(const Space& space);

  // Returns whether values are sealed. Without, RotateKey and DropTenant do nothing.
  bool seals() const { return keys_.seals(); }
  // Returns how many tenants have a key that no master key here unwraps.
  uint64_t locked_keys() const { return keys_.counts().locked; }
  // Looks after the keys of these tenants from now on, and after the calibrations and the purge
  // records of all spaces, as at the start and after new master keys.
  void WatchTenants(std::span<const std::string> tenants);
  // A tenant gets a new key when something of it is sent next: what the old one sealed is noise
  // then. Fails as RemoteKeys::Drop does. Blocks.
  absl::Status RotateKey(const std::string& tenant);
  // The same, and the other servers forget the pages that they have of these spaces of the tenant.
  absl::Status DropTenant(const std::string& tenant, std::span<const SpacePtr> spaces);

  // Waits until all that was offered is sent, or given up, and all that was deleted is told.
  void Flush();

  const RemoteCounters& counters() const { return counters_; }
  // Returns its metrics; nothing without a remote store.
  std::vector<MetricRow> Rows() const;
  std::string name() const { return remote_.name(); }

 private:
  bool Shares(const Space& space) const;  // private spaces stay here
  FoundPage Describe(const PageRecord& record) const;
  void Find(const SpacePtr& space, const RemoteEra& era, std::span<const std::string> keys,
            Time deadline, std::function<void(std::vector<FoundPage>)> done);
  // Calls under way, which end on the remote store's threads.
  class Calls {
   public:
    bool Begin();  // false after EndAll
    void End();
    void EndAll();  // waits

   private:
    Mutex mu_;
    CondVar ended_;
    size_t calls_ KVSTOW_GUARDED_BY(mu_) = 0;
    bool over_ KVSTOW_GUARDED_BY(mu_) = false;
  };
  bool ForgetHere(const SpacePtr& space, const std::string& key, RemotePurge::Pages pages);
  bool ForgetAllHere(const SpacePtr& space, RemotePurge::Pages pages,
                     const std::function<bool()>& stopping);
  void SaveEra(const SpacePtr& space, const SavedEra& era);
  void EraseThere(const Space& space, const std::string& key, size_t segments);

  const Options options_;
  const std::unique_ptr<RemoteStore> owned_;  // null: NoRemoteStore()
  RemoteStore& remote_;
  TieredStore& store_;
  const Spaces& spaces_;
  const PageNumber last_from_disk_;  // pages up to this number were on disk at the start
  RemoteCounters counters_;
  Calls calls_;  // threads of what follows begin some
  RemoteKeys keys_;
  RemoteCalibrations calibrations_;
  RemoteRecords records_;
  RemotePurge purge_;      // asks keys_
  RemoteFetches fetches_;  // asks purge_
  RemoteSender sender_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REMOTE_TIER_H_
