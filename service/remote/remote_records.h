// RemoteRecords: what the remote store has of pages, as far as this server asked lately.
//
// A record that was found is believed for a while, and so is that there was none: a miss that was
// just asked for costs nothing. A wrong belief costs a miss, or a page that somebody else stored
// meanwhile, and never a byte: segments are checked when they come. Thread-safe.
#ifndef KVSTOW_SERVICE_REMOTE_REMOTE_RECORDS_H_
#define KVSTOW_SERVICE_REMOTE_REMOTE_RECORDS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "service/remote/remote_counters.h"
#include "service/remote/remote_key.h"
#include "service/remote/remote_store.h"
#include "storage/record.h"

namespace kvstow {

using RemoteRecord = std::shared_ptr<const PageRecord>;  // null = there is none

class RemoteRecords {
 public:
  static constexpr Duration kFoundFor = std::chrono::seconds(30);
  static constexpr Duration kMissedFor = std::chrono::seconds(2);
  static constexpr size_t kMost = 65536;  // of each sort; the oldest go

  // All of them outlive this, and it outlives the calls that it makes.
  RemoteRecords(std::string prefix, RemoteStore& remote, RemoteCounters& counters,
                const Clock& clock)
      : prefix_(std::move(prefix)), remote_(remote), counters_(counters), clock_(clock) {}

  struct Page {
    std::string key;
    RemotePlace place;
  };
  // Finds the records of the leading pages, up to the first that has none, in one round trip at
  // most. `done` may run within the call.
  void Find(std::vector<Page> pages, Time deadline,
            std::function<void(std::vector<RemoteRecord>)> done);
  // Returns what is believed; nothing when the page was not asked for lately.
  std::optional<RemoteRecord> Known(const RemoteTag& tag);
  // Takes over what somebody found out.
  void Learn(const RemoteTag& tag, RemoteRecord record);

 private:
  struct Belief {
    RemoteRecord record;
    Time until;
  };
  // Beliefs of one sort, in the order in which they end.
  using Order = std::deque<std::pair<Time, RemoteTag>>;
  void ForgetOldest(Order& order) KVSTOW_REQUIRES(mu_);
  std::optional<RemoteRecord> Read(const Page& page, absl::StatusOr<SharedBytes> value);

  const std::string prefix_;
  RemoteStore& remote_;
  RemoteCounters& counters_;
  const Clock& clock_;
  Mutex mu_;
  absl::flat_hash_map<RemoteTag, Belief> beliefs_ KVSTOW_GUARDED_BY(mu_);
  Order found_ KVSTOW_GUARDED_BY(mu_), missed_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REMOTE_RECORDS_H_
