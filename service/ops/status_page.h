// The page for people at `/`: what the server is, what it holds and what it does, as HTML.
//
// The page has no script, style or picture in it and none from elsewhere: its files come from the
// program too (page_files.h), so that the strictest policy of a browser lets it be. `page.js` asks
// for the parts every few seconds and replaces those that changed. Without scripts the page is
// whole as well.
//
// Free functions of the server's answers; thread-safe.
#ifndef KVSTOW_SERVICE_OPS_STATUS_PAGE_H_
#define KVSTOW_SERVICE_OPS_STATUS_PAGE_H_

#include <string>

#include "kvstow/v1/admin.pb.h"
#include "kvstow/v1/kv_cache.pb.h"

namespace kvstow {

struct StatusFacts {
  v1::StatusResponse status;
  v1::UsageResponse usage;
  v1::AgesResponse ages;
  v1::ActivityResponse activity;
  v1::TenantsResponse tenants;
};

// Returns the parts of the page: elements with an id each.
std::string StatusParts(const StatusFacts& facts);
// Returns the page around `parts`.
std::string StatusPage(const std::string& parts);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_STATUS_PAGE_H_
