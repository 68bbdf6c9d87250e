// The requests of a worker on a direct connection: pages in and out, and lookups, one request after
// the other.
//
// They do what Put and Get streams do with gRPC (streams.h), without it: the same checks, the same
// budgets of bytes. A connection holds at most one page on its way in, until it is coded and
// stored, or one page on its way out, until it is sent. A page without room is refused after a
// moment. A worker that stalls in the middle of a frame is hung up on. One object serves one
// connection, on one thread.
#ifndef KVSTOW_SERVICE_TRANSPORTS_DIRECT_REQUESTS_H_
#define KVSTOW_SERVICE_TRANSPORTS_DIRECT_REQUESTS_H_

#include "absl/status/status.h"
#include "base/clock.h"
#include "kvstow/v1/direct.pb.h"
#include "proto/wire/direct_socket.h"
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
};

class DirectRequests {
 public:
  // `patience` is the time that the peer may let a frame stand still. Its bytes add a microsecond
  // each.
  DirectRequests(DirectParts& parts, const DirectSocket& socket, Duration patience)
      : parts_(parts), socket_(socket), patience_(patience) {}
  DirectRequests(const DirectRequests&) = delete;
  DirectRequests& operator=(const DirectRequests&) = delete;

  // Takes the frame that has begun and answers it. A status that is not OK is a broken rule of
  // framing, or a lost peer: the caller hangs up. The answer reports what is wrong with a page.
  absl::Status ServeOne();

 private:
  absl::Status Get(const v1::DirectGet& request);
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
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_TRANSPORTS_DIRECT_REQUESTS_H_
