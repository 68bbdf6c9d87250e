// A metric as a part of the server tells it: a value with its name.
#ifndef KVSTOW_SERVICE_OPS_METRIC_ROW_H_
#define KVSTOW_SERVICE_OPS_METRIC_ROW_H_

#include <cstdint>

namespace kvstow {

struct MetricRow {
  const char* name;  // without "kvstow_"; a counter's ends with "_total"
  const char* help;
  uint64_t value = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_METRIC_ROW_H_
