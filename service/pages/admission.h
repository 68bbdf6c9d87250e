// Admission: limits the server's load. It keeps every limit on bytes in flight and on streams, for
// every transport of pages.
//
//   bytes out    Pages on their way out: the coded and the decoded form of a page, until the last
//                byte left. When these bytes are spent, pages wait in line.
//   requests     Requests of Get streams with many that wait: a quarter of the bytes out, beside
//                them.
//   bytes in     Pages on their way in, before and after coding: each byte counts twice, as it came
//                and as it is coded. One half is for windows of Put streams, the other for pages
//                beside streams, so neither shuts the other out.
//   streams      The number of each kind, and how long a stream may stand still.
//
// A page larger than all bytes of its way is taken alone. A move-only value holds bytes or a place,
// and gives them back when it goes. A refused call fails with RESOURCE_EXHAUSTED, and refused_calls
// counts it by its reason. A refused stream is also told when to come back (FinishStream). A page
// refused beside streams goes over a stream. The store limits leases (LeaseTable).
//
// A stream is idle while it waits for its client: for a message, for credit, or for the client to
// take what was sent. A stream that waits for the server is never idle. An idle stream ends after
// `idle`. It ends after `grace` when others need what it holds: its place, its window, or its
// bytes.
//
// Thread-safe. No lock is held while a stream is told to end.
#ifndef KVSTOW_SERVICE_PAGES_ADMISSION_H_
#define KVSTOW_SERVICE_PAGES_ADMISSION_H_

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "service/access/tenants.h"
#include "service/ops/metrics.h"
#include "service/pages/byte_budget.h"

namespace kvstow {

struct AdmissionLimits {
  uint64_t get_bytes = uint64_t{512} << 20;
  uint64_t put_bytes = uint64_t{512} << 20;
  uint64_t streams = 256;  // of each kind, over all connections
  // Longer than a worker computes between two layers or pages of a prompt; shorter than a few
  // attempts to have a stream under the usual deadlines.
  Duration idle = std::chrono::seconds(60);
  Duration grace = std::chrono::seconds(1);
  // The wait of pages beside streams in line. A stream has until its deadline.
  Duration patience = std::chrono::seconds(1);
};

// Returns who pays for the bytes of a tenant's page. `tenants` may be null.
ByteBudget::Payer PayerOf(TenantTable* tenants, const std::string& tenant);

// Admission's view of a stream.
class AdmittedStream {
 public:
  virtual ~AdmittedStream() = default;
  // Ends the stream with `why`, unless it has ended.
  virtual void End(const absl::Status& why) = 0;
};

class Admission {
 public:
  using Bytes = ByteBudget::Held;

  // `metrics` and `clock` outlive it.
  Admission(const AdmissionLimits& limits, Metrics& metrics, const Clock& clock = Clock::Real());
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // A stream's place, for as long as this lives.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept = default;
    Place& operator=(Place&& other) noexcept = default;
    // Records that something moved. From now on the stream is idle, or not (`busy`). `holding` says
    // whether it holds bytes or a window.
    void Moved(bool busy, bool holding);

   private:
    friend class Admission;
    struct Entry;
    struct Leave {
      void operator()(Entry* entry) const;
    };
    explicit Place(Entry* entry) : entry_(entry) {}
    std::unique_ptr<Entry, Leave> entry_;
  };
  absl::StatusOr<Place> Admit(StreamKind kind, std::weak_ptr<AdmittedStream> stream);

  // Takes the window of a Put stream (WindowOf): a quarter of what is left, at most `most_bytes`,
  // but room for two pages; room for one page where that is all there is.
  absl::StatusOr<Bytes> TakeWindow(uint64_t most_bytes, uint64_t page_bytes);
  static uint64_t WindowOf(const Bytes& window) { return window.bytes() / 2; }
  // Take bytes for a page on a direct connection or of a local session. They wait at most
  // limits.patience, and those of a tenant in a line of its own (ByteBudget).
  absl::StatusOr<Bytes> TakePut(uint64_t page_bytes, ByteBudget::Payer payer = {});
  absl::StatusOr<Bytes> TakeGet(uint64_t bytes, ByteBudget::Payer payer = {});
  // Takes bytes for the request of a page that waits on a Get stream for credit.
  absl::StatusOr<Bytes> TakeRequest(uint64_t bytes);
  // The budget of pages of Get streams, which wait in line.
  ByteBudget& gets() { return gets_; }

  // Ends idle streams. The server calls it about every second.
  void Reap();

  // A server that drains admits no streams, and takes no more pages (CheckTakesPuts). Both fail
  // with UNAVAILABLE.
  void SetDraining(bool draining) { draining_ = draining; }
  absl::Status CheckTakesPuts() const;
  // Waits until no stream is left, at most so long; then ends those that are, and waits a moment
  // for them to go. Returns how many were ended.
  size_t EndStreams(Duration grace);

  uint64_t get_bytes() const { return gets_.used(); }
  uint64_t put_bytes() const { return windows_.used() + puts_.used(); }
  uint64_t waiting_gets() const { return gets_.waiting(); }

 private:
  using Entry = Place::Entry;

  // Returns the stream that is to end, if there is one: the one that has been idle longest, beyond
  // the grace. With `holding`, only streams that hold something count.
  std::weak_ptr<AdmittedStream> MakeWay(StreamKind kind, bool holding) KVSTOW_REQUIRES(mu_);
  std::weak_ptr<AdmittedStream> ToEnd(Entry& entry) KVSTOW_REQUIRES(mu_);
  Duration IdleFor(const Entry& entry) const;
  void End(const std::weak_ptr<AdmittedStream>& stream, const char* reason);
  absl::Status Refuse(const char* reason, absl::string_view what);
  void WaitForNone(Duration patience);

  const AdmissionLimits limits_;
  Metrics& metrics_;
  const Clock& clock_;
  ByteBudget gets_, requests_, windows_, puts_;
  std::atomic<bool> draining_ = false;
  mutable Mutex mu_;
  CondVar left_;  // a stream went
  std::list<Entry*> streams_ KVSTOW_GUARDED_BY(mu_);
  uint64_t open_[2] KVSTOW_GUARDED_BY(mu_) = {};  // of each kind, less those told to end
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_PAGES_ADMISSION_H_
