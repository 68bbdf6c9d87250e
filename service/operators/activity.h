// The answer of Admin's Activity: what Metrics and a snapshot say of the last hours and of now.
//
// A free function; thread-safe.
#ifndef KVSTOW_SERVICE_OPERATORS_ACTIVITY_H_
#define KVSTOW_SERVICE_OPERATORS_ACTIVITY_H_

#include "base/clock.h"
#include "kvstow/v1/admin.pb.h"
#include "service/ops/metrics.h"

namespace kvstow {

void TellActivity(const Metrics& metrics, const MetricsSnapshot& snapshot, Time now,
                  v1::ActivityResponse& out);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPERATORS_ACTIVITY_H_
