// The page for people at `/`: what the server is and what it holds, as HTML.
//
// A free function of the responses of Status and Usage; thread-safe.
#ifndef KVSTOW_SERVICE_OPS_STATUS_PAGE_H_
#define KVSTOW_SERVICE_OPS_STATUS_PAGE_H_

#include <string>

#include "kvstow/v1/admin.pb.h"
#include "kvstow/v1/kv_cache.pb.h"

namespace kvstow {

std::string StatusPage(const v1::StatusResponse& status, const v1::UsageResponse& usage);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_STATUS_PAGE_H_
