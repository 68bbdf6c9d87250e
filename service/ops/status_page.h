// The page that people see at `/`: what the server is and what it holds, as HTML.
//
// A free function of what Status and Usage answer; thread-safe.
#ifndef KVSTOW_SERVICE_OPS_STATUS_PAGE_H_
#define KVSTOW_SERVICE_OPS_STATUS_PAGE_H_

#include <string>

#include "kvstow/v1/admin.pb.h"
#include "kvstow/v1/kv_cache.pb.h"

namespace kvstow {

std::string StatusPage(const v1::StatusResponse& status, const v1::UsageResponse& usage);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_STATUS_PAGE_H_
