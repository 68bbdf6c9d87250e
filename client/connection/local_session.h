// The worker's side of a local session: memory that the server on this host made and shares, and
// the socket for requests of pages (proto/kvstow/v1/local.proto).
//
// Thread-safe. One thread takes answers. Callbacks run on it and must not block. A server ends the
// session when it hangs up, breaks the rules (for example with an answer that has another page's
// key) or lets a request wait past its deadline. The session then takes the bytes of every open
// request out of the sharing, and answers the request with the reason. So a caller that gets its
// buffer back has it alone: a late server cannot write or read it any more. The memory stays at its
// address as long as this object lives.
#ifndef KVSTOW_CLIENT_CONNECTION_LOCAL_SESSION_H_
#define KVSTOW_CLIENT_CONNECTION_LOCAL_SESSION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/mutex.h"
#include "base/shared_memory.h"
#include "client/connection/fork.h"
#include "client/connection/gpu_staging.h"
#include "kvstow/v1/local.pb.h"
#include "proto/wire/local_socket.h"

namespace kvstow {

class LocalSession {
 public:
  struct Options {
    std::string socket, token;  // from OpenLocal
    uint64_t bytes = 0;         // wanted
    Duration timeout;           // of each wait in Open, and of each allocation
    // The worker's GPU and the wanted bytes of its memory; null or 0 = none.
    std::shared_ptr<DeviceSharing> gpu = nullptr;
    uint64_t gpu_bytes = 0;
  };
  // Waits for the server's welcome.
  static absl::StatusOr<std::unique_ptr<LocalSession>> Open(const Options& options);
  ~LocalSession();

  // Returns a slot, zeroed or not. Waits for the server.
  absl::StatusOr<std::span<uint8_t>> Allocate(uint64_t bytes);
  // Frees a slot from Allocate. No request may be open on it.
  void Free(std::span<uint8_t> slot);

  // Returns the range that names `bytes`, when they alone can be taken out of the sharing: they
  // begin at a shared page of a slot, and end at one or with the slot.
  std::optional<v1::SlotRange> RangeOf(std::span<const uint8_t> bytes) const;

  // Returns the memory on the GPU; null when there is none.
  GpuStaging* staging() const { return staging_.get(); }

  // A page to get or to put. The session gives its number.
  struct Page {
    std::variant<v1::LocalGetPage, v1::LocalPutPage> request;
    std::span<const uint8_t> bytes;  // named by its range; none on the GPU
    // Called once: with the answer, or with the reason why there is none.
    std::function<void(absl::StatusOr<v1::LocalReply>)> done;
  };
  // Starts a batch: all gets or all puts. No more pages travel at once than the server's socket has
  // room to answer. `fingerprint` is the space's, as it was opened.
  void Start(const std::string& space, const std::string& fingerprint, uint64_t lease,
             std::vector<Page> pages, Time deadline);

  // Ends the session soon.
  void Close() { socket_.HangUp(); }
  bool open() const;

 private:
  struct Head {
    std::string space, fingerprint;
    uint64_t lease;
    size_t pages_per_message;
  };
  struct Pending {
    Page page;
    std::shared_ptr<const Head> head;
    Time deadline;
  };
  struct Slot {
    uint32_t index, generation;
    uint64_t bytes;
  };

  LocalSession(LocalSocket socket, SharedMemory memory, std::unique_ptr<GpuStaging> staging,
               Duration timeout);
  void ReceiveAll();
  absl::Status Take(v1::LocalReply& reply);
  void TakeSlot(v1::LocalSlot& slot);
  absl::Status SendFree(const v1::Slot& slot) const;
  absl::Status AwaitMessage();
  void Break(const absl::Status& why);
  void SendMore();
  std::optional<v1::LocalRequest> NextMessage();

  const LocalSocket socket_;
  const ClosedInChild closed_in_child_{socket_.descriptor()};
  const SharedMemory memory_;
  const std::unique_ptr<GpuStaging> staging_;
  const Duration timeout_;
  const Descriptor sooner_;  // an eventfd: there is an earlier deadline
  mutable Mutex mu_;
  CondVar slot_came_;
  std::map<uint64_t, Pending> pending_ KVSTOW_GUARDED_BY(mu_);  // by number
  std::multiset<Time> deadlines_ KVSTOW_GUARDED_BY(mu_);        // of those
  Time waits_until_ KVSTOW_GUARDED_BY(mu_);  // the thread that takes answers, unless sooner_ rings
  uint64_t last_number_ KVSTOW_GUARDED_BY(mu_) = 0;
  uint64_t next_to_send_ KVSTOW_GUARDED_BY(mu_) = 1;  // earlier ones were sent
  size_t travelling_ KVSTOW_GUARDED_BY(mu_) = 0;      // sent and not answered
  // The answers to allocations that somebody waits for.
  std::map<uint64_t, std::optional<v1::LocalSlot>> allocations_ KVSTOW_GUARDED_BY(mu_);
  std::map<const uint8_t*, Slot> slots_ KVSTOW_GUARDED_BY(mu_);
  absl::Status broken_ KVSTOW_GUARDED_BY(mu_);  // OK: the session is open
  std::thread receiving_;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_LOCAL_SESSION_H_
