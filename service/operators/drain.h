// Drain: takes a server out of service while it runs, and back.
//
// A server that drains admits no streams and takes no pages; its health is NOT_SERVING. Lookups,
// gets beside streams, and the operator's calls are answered as ever, so workers lose nothing that
// they could use. What a drain cannot move is told in the response.
//
// Thread-safe. Run blocks as long as streams have to finish, and while it flushes.
#ifndef KVSTOW_SERVICE_OPERATORS_DRAIN_H_
#define KVSTOW_SERVICE_OPERATORS_DRAIN_H_

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "kvstow/v1/admin.pb.h"
#include "service/ops/metrics.h"
#include "service/pages/admission.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

class Drain {
 public:
  // `set_serving` tells health and readiness. `snapshot` returns the gauges of this moment.
  Drain(TieredStore& store, Admission& admission, const Metrics& metrics,
        std::function<void(bool)> set_serving, std::function<MetricsSnapshot()> snapshot)
      : store_(store),
        admission_(admission),
        metrics_(metrics),
        set_serving_(std::move(set_serving)),
        snapshot_(std::move(snapshot)) {}

  // INVALID_ARGUMENT for a grace of more than an hour.
  absl::Status Run(const v1::DrainRequest& in, v1::DrainResponse& out);

 private:
  TieredStore& store_;
  Admission& admission_;
  const Metrics& metrics_;
  const std::function<void(bool)> set_serving_;
  const std::function<MetricsSnapshot()> snapshot_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPERATORS_DRAIN_H_
