// What a worker asks for on a direct connection: pages in and out, and which are there, one request
// after the other.
//
// What Put and Get streams do with gRPC (streams.h), without it: the same checks, the same budgets
// of bytes. A connection holds at most one page that is on its way in, until it is coded and
// stored, or one that is on its way out, until it is sent; one that there is no room for is refused
// after a moment. A worker that stalls in the middle of a frame is hung up on. One object serves
// one connection, on one thread.
#ifndef KVSTOW_SERVICE_TRANSPORTS_DIRECT_REQUESTS_H_
#define KVSTOW_SERVICE_TRANSPORTS_DIRECT_REQUESTS_H_

#include "absl/status/status.h"
#include "base/clock.h"
#include "kernels/page/page_digests.h"
#include "kvstow/v1/direct.pb.h"
#include "proto/wire/direct_socket.h"
#include "service/operators/kv_operator.h"
#include "service/ops/metrics.h"
#include "service/pages/admission.h"
#include "service/pages/page_reader.h"
#include "service/pages/page_writer.h"
#include "service/spaces/spaces.h"
#include "storage/store/staging.h"

namespace kvstow {

// What direct connections work with; outlives them all.
struct DirectParts {
  Spaces& spaces;
  Staging& staging;
  PageWriter& writer;
  PageReader& reader;
  Metrics& metrics;
  Admission& admission;
  KvOperator& op;  // for lookups
};

class DirectRequests {
 public:
  // `patience`: how long the peer may let a frame stand still, and its bytes a MiB a second beside.
  DirectRequests(DirectParts& parts, const DirectSocket& socket, Duration patience)
      : parts_(parts), socket_(socket), patience_(patience) {}
  DirectRequests(const DirectRequests&) = delete;
  DirectRequests& operator=(const DirectRequests&) = delete;

  // Takes the frame that has begun and answers it. A status that is not OK is a broken rule of
  // framing, or a peer that is gone: hang up. What is wrong with a page is its answer.
  absl::Status ServeOne();

 private:
  absl::Status Get(const v1::DirectGet& request);
  absl::Status Lookup(const std::string& request);
  absl::Status Put(v1::DirectPut& request, uint64_t payload_bytes);
  absl::Status PutPage(const Space& space, v1::DirectPut& request, uint64_t payload_bytes);
  absl::Status Skip(uint64_t bytes) const;
  absl::Status Discard(uint64_t bytes, const absl::Status& why) const;
  absl::Status ReceivePage(const Space& space, v1::DirectPut& request, std::span<uint8_t> to,
                           std::optional<PageDigests>& came) const;
  absl::Status Answer(v1::PutResult result, uint64_t raw_bytes);
  absl::Status Refuse(const absl::Status& why);
  Time Deadline(uint64_t bytes) const;

  DirectParts& parts_;
  const DirectSocket& socket_;
  const Duration patience_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_TRANSPORTS_DIRECT_REQUESTS_H_
