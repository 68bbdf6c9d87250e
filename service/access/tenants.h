// TenantTable: the tenants of this server, by name: the number of each, its limits, and what it
// uses of those that the store does not keep: streams and bandwidth.
//
// The store keeps the limits of bytes and pages (TenantShare): the table tells it each change. A
// tenant that no limits were set for has none, and weight 1. The tenant "" is number 0: the one
// tenant of a server without identities. A number is given at the first use of a name, and stays as
// long as the table; names come from the access file and from spaces, never from a caller.
//
// Bandwidth is a bucket for each direction: a second of the rate fits in. A page passes while there
// is anything in the bucket, and takes all its bytes, so the bucket may end below zero: pages
// larger than a second of the rate pass too, and the next ones wait longer. Nothing waits here: a
// page that may not pass is refused, with the time after which it may. Bytes are those of the
// payload as it travels: encoded where the page travels encoded.
//
// Thread-safe. The store is told under a lock of its own; nothing else is called under a lock.
#ifndef KVSTOW_SERVICE_ACCESS_TENANTS_H_
#define KVSTOW_SERVICE_ACCESS_TENANTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "service/access/tenant_limits.h"
#include "storage/store/residency/tenant_share.h"

namespace kvstow {

// Fails with INVALID_ARGUMENT, which names the field: a weight that is not positive, or a guarantee
// above its limit.
absl::Status CheckLimits(const TenantLimits& limits);

class TenantTable {
 public:
  // The clock outlives it.
  explicit TenantTable(const Clock& clock = Clock::Real());
  TenantTable(const TenantTable&) = delete;
  TenantTable& operator=(const TenantTable&) = delete;

  TenantId IdOf(const std::string& tenant);

  // Sets who is told the shares: all of them now, and each change from now on. What `tell` refers
  // to outlives the last change.
  using Tell = std::function<void(std::span<const std::pair<TenantId, TenantShare>>)>;
  void TellStore(Tell tell);
  // Sets the limits of all tenants. Those that are not named have none from now on. The limits have
  // passed CheckLimits. Returns when the store has made what is over them leave.
  void SetLimits(const std::map<std::string, TenantLimits>& limits);
  // Sets those of one tenant. Fails like CheckLimits.
  absl::Status SetLimitsOf(const std::string& tenant, const TenantLimits& limits);
  TenantLimits LimitsOf(const std::string& tenant) const;

  // A stream of a tenant, for as long as this lives. It may outlive the table.
  class Stream {
   public:
    Stream() = default;
    Stream(Stream&&) noexcept = default;
    Stream& operator=(Stream&&) noexcept = default;

   private:
    friend class TenantTable;
    std::shared_ptr<void> place_;
  };
  // Each of these fails with RESOURCE_EXHAUSTED, and counts it, when the tenant is at its limit.
  absl::StatusOr<Stream> OpenStream(const std::string& tenant);
  absl::Status TakePut(const std::string& tenant, uint64_t payload_bytes);
  absl::Status CheckGet(const std::string& tenant);
  // Takes the bytes of a page that CheckGet let pass.
  void TakeGet(const std::string& tenant, uint64_t payload_bytes);

  struct Row {
    std::string tenant;
    TenantId id = kOnlyTenant;
    TenantLimits limits;
    uint64_t streams = 0;
    uint64_t put_bytes = 0, get_bytes = 0;  // of payload, since the start
    uint64_t refused = 0;                   // streams and pages, since the start
  };
  std::vector<Row> All() const;  // by id

 private:
  struct Bucket {
    double left = 0;  // bytes; below 0 what was taken ahead
    Time filled{};
  };
  struct Entry {
    Row row;
    Bucket puts, gets;
  };
  // Counts streams; they may outlive the table.
  struct Streams {
    Mutex mu;
    std::vector<uint64_t> open KVSTOW_GUARDED_BY(mu);  // by id
  };

  Entry& At(const std::string& tenant) KVSTOW_REQUIRES(mu_);
  void Fill(Bucket& bucket, uint64_t rate) KVSTOW_REQUIRES(mu_);
  // Tells the store the share of each of these.
  void TellShares(const std::vector<TenantId>& ids) KVSTOW_REQUIRES(telling_);
  absl::Status Refuse(Entry& entry, const Bucket& bucket, uint64_t rate, absl::string_view what)
      KVSTOW_REQUIRES(mu_);

  const Clock& clock_;
  const std::shared_ptr<Streams> streams_;
  Mutex telling_;  // the store is told changes in their order; taken before mu_
  Tell tell_ KVSTOW_GUARDED_BY(telling_);
  mutable Mutex mu_;
  std::map<std::string, TenantId> ids_ KVSTOW_GUARDED_BY(mu_);
  std::vector<Entry> entries_ KVSTOW_GUARDED_BY(mu_);  // by id
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_ACCESS_TENANTS_H_
