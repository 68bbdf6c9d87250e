// The parts of the status page that are drawn over time and over sizes.
//
// Free functions; thread-safe.
#ifndef KVSTOW_SERVICE_OPS_STATUS_CHARTS_H_
#define KVSTOW_SERVICE_OPS_STATUS_CHARTS_H_

#include <cstdint>
#include <string>

#include "kvstow/v1/admin.pb.h"
#include "kvstow/v1/kv_cache.pb.h"

namespace kvstow {

// Returns the sum of the intervals that ended at most `within_ms` ago.
v1::WorkInterval WorkWithin(const v1::ActivityResponse& activity, uint64_t within_ms);

std::string HitRatePart(const v1::ActivityResponse& activity);
std::string BandwidthPart(const v1::ActivityResponse& activity);
// Draws the hit rate that more or less memory would bring, at the present compression.
std::string ReusePart(const v1::UsageResponse& usage);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_STATUS_CHARTS_H_
