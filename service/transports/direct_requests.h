// The requests of a worker on a direct connection: pages in and out, and lookups, one request after
// the other.
//
// They do what Put and Get streams do with gRPC (streams.h), without it: the same checks, the same
// budgets of bytes. A connection holds at most one page on its way in, until it is coded and
// stored, or one page on its way out, until it is sent. A page without room is refused after a
// moment. A worker that stalls in the middle of a frame is hung up on.
//
// A large page goes out in pieces. A worker that takes none for a while holds bytes that others may
// wait for: DirectServer::HangUpOnStuck then ends it.
//
// Where callers have identities, the first frame shows a ticket of OpenDirect, and the worker is
// its caller from then on: a frame with the role of that caller, for as long as the access file has
// it.
//
// One object serves one connection, on one thread; any thread may ask for its caller, and since
// when it sends.
#ifndef KVSTOW_SERVICE_TRANSPORTS_DIRECT_REQUESTS_H_
#define KVSTOW_SERVICE_TRANSPORTS_DIRECT_REQUESTS_H_

#include <atomic>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "kvstow/v1/direct.pb.h"
#include "proto/wire/direct_socket.h"
#include "service/access/access.h"
#include "service/access/tickets.h"
#include "service/operators/kv_operator.h"
#include "service/ops/metrics.h"
#include "service/pages/admission.h"
#include "service/pages/incoming_page.h"
#include "service/pages/page_reader.h"
#include "service/spaces/spaces.h"

namespace kvstow {

// The parts that direct connections use; outlives them all.
struct DirectParts {
  Spaces& spaces;
  PutParts& puts;
  PageReader& reader;
  Metrics& metrics;
  Admission& admission;
  KvOperator& op;  // for lookups
  Access* access = &Access::ForEverybody();
  Tickets* tickets = nullptr;           // of OpenDirect; set where callers have identities
  const Clock* clock = &Clock::Real();  // of sending_since
};

class DirectRequests {
 public:
  // `patience` is the time that the peer may let a frame stand still. Its bytes add a microsecond
  // each.
  DirectRequests(DirectParts& parts, const DirectSocket& socket, Duration patience)
      : parts_(parts), socket_(socket), patience_(patience) {
    if (!parts.access->has_identities()) caller_ = std::make_shared<const Caller>();
  }
  DirectRequests(const DirectRequests&) = delete;
  DirectRequests& operator=(const DirectRequests&) = delete;

  // Takes the frame that has begun and answers it. Its message must have come by `until`. A status
  // that is not OK is a broken rule of framing, or a lost peer: the caller hangs up. The answer
  // reports what is wrong with a page.
  absl::Status ServeOne(Time until = Time::max());
  // Returns null until the worker has shown its ticket.
  CallerPtr caller() const;
  // Returns since when the worker has taken no piece of the page that is sent to it; none while no
  // page is.
  std::optional<Time> sending_since() const {
    const Time since = sending_since_;
    return since == kNotSending ? std::nullopt : std::optional(since);
  }

 private:
  static constexpr Time kNotSending = Time::max();

  absl::Status Hello(const v1::DirectHello& hello);
  absl::Status CheckCaller();
  absl::Status Get(const v1::DirectGet& request);
  absl::Status SendPage(const v1::DirectReply& reply, std::span<const SharedBytes> payload);
  absl::Status SendPieces(const v1::DirectReply& reply, std::span<const SharedBytes> payload);
  absl::Status Lookup(const std::string& request);
  absl::Status Put(v1::DirectPut& request, uint64_t payload_bytes);
  absl::Status PutPage(const Space& space, v1::DirectPut& request, uint64_t payload_bytes);
  absl::Status Skip(uint64_t bytes) const;
  absl::Status Discard(uint64_t bytes, const absl::Status& why) const;
  absl::Status Answer(v1::PutResult result);
  absl::Status Refuse(const absl::Status& why);
  Time Deadline(uint64_t bytes) const;

  DirectParts& parts_;
  const DirectSocket& socket_;
  const Duration patience_;
  mutable Mutex mu_;
  CallerPtr caller_ KVSTOW_GUARDED_BY(mu_);
  std::atomic<Time> sending_since_{kNotSending};
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_TRANSPORTS_DIRECT_REQUESTS_H_
