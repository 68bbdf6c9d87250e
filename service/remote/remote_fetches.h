// RemoteFetches: brings pages from the remote store into the host tier.
//
// A page is fetched once at a time, whoever wants it: those that want it meanwhile join. A page
// whose refinements are missing enters with fewer levels. A page without its base, or a `whole`
// page with a segment missing, does not enter; its record is deleted from the remote store, so that
// somebody sends it again. What fails its check is deleted there, too, and counted.
//
// Thread-safe. The destructor waits for the fetches that run.
#ifndef KVSTOW_SERVICE_REMOTE_REMOTE_FETCHES_H_
#define KVSTOW_SERVICE_REMOTE_REMOTE_FETCHES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "kernels/calibration/calibration.h"
#include "service/ops/worker_pool.h"
#include "service/remote/remote_records.h"
#include "service/spaces/space.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

class RemoteFetches {
 public:
  struct Options {
    std::string prefix;
    Duration wait;         // of one page
    uint64_t ahead_bytes;  // of pages under way that nobody waits for yet
  };
  // Returns whether a page may still be here: it was not deleted while it was on its way.
  using Wanted = std::function<bool(const Space&, const std::string& key, const RemotePlace&)>;
  // Called for a page that entered and that names a calibration.
  using Needs = std::function<void(const Space&, const CalibrationId&)>;
  // All of them outlive this.
  RemoteFetches(Options options, RemoteStore& remote, RemoteRecords& records, TieredStore& store,
                RemoteCounters& counters, const Clock& clock, Wanted wanted, Needs needs)
      : options_(std::move(options)),
        remote_(remote),
        records_(records),
        store_(store),
        counters_(counters),
        clock_(clock),
        wanted_(std::move(wanted)),
        needs_(std::move(needs)) {}
  ~RemoteFetches();

  using SpacePtr = std::shared_ptr<const Space>;
  // Begins to fetch a page whose record is known, unless much is under way already.
  void Ahead(const SpacePtr& space, const RemoteRecords::Page& page, const RemoteRecord& record);
  // Fetches a page and waits for it, `options.wait` at most. NOT_FOUND: there is none.
  absl::Status Fetch(const SpacePtr& space, const RemoteRecords::Page& page);

 private:
  struct Flight;
  using FlightPtr = std::shared_ptr<Flight>;

  FlightPtr Join(const SpacePtr& space, const RemoteRecords::Page& page, bool& is_new);
  void FindRecord(const FlightPtr& flight);
  void AskForSegments(const FlightPtr& flight, RemoteRecord record);
  void Enter(const FlightPtr& flight, std::vector<absl::StatusOr<SharedBytes>> values);
  absl::StatusOr<PageToStore> PageOf(const Flight& flight,
                                     std::vector<absl::StatusOr<SharedBytes>> values);
  absl::Status Put(const Flight& flight, PageToStore page);
  void Land(const FlightPtr& flight, const absl::Status& status);

  const Options options_;
  RemoteStore& remote_;
  RemoteRecords& records_;
  TieredStore& store_;
  RemoteCounters& counters_;
  const Clock& clock_;
  const Wanted wanted_;
  const Needs needs_;
  Mutex mu_;
  CondVar landed_;
  absl::flat_hash_map<RemoteTag, FlightPtr> flights_ KVSTOW_GUARDED_BY(mu_);
  uint64_t ahead_ KVSTOW_GUARDED_BY(mu_) = 0;  // bytes of flights that know theirs
  WorkerPool workers_{"kvstow-remote", 2};     // they check what came and put it into the store
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REMOTE_FETCHES_H_
