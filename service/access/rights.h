// The least role that each call of the server needs. A call that is not in the table cannot be
// served: RightOf does not compile for it.
//
// A table and a function of the compiler; thread-safe. Transports beside gRPC ask for the right of
// the call that they stand for. health is open to everybody and not in the table; reflection is
// off where callers have identities (docs/decisions/0071-tenants-by-identity.md).
#ifndef KVSTOW_SERVICE_ACCESS_RIGHTS_H_
#define KVSTOW_SERVICE_ACCESS_RIGHTS_H_

#include <string_view>

#include "service/access/caller.h"

namespace kvstow {

// What the audit log keeps of a call. Calls that only read are kept where callers have identities.
enum class Audited { kNo, kRead, kChange };

struct Right {
  std::string_view method;
  Role least;
  Audited audited = Audited::kNo;
};

inline constexpr Right kRights[] = {
    {"/kvstow.v1.KvCache/OpenSpace", Role::kReader},  // to make one: kWorker
    {"/kvstow.v1.KvCache/SendCalibration", Role::kAdmin, Audited::kChange},
    {"/kvstow.v1.KvCache/SendStatistics", Role::kWorker, Audited::kChange},
    {"/kvstow.v1.KvCache/Lookup", Role::kReader},
    {"/kvstow.v1.KvCache/Put", Role::kWorker},
    {"/kvstow.v1.KvCache/Get", Role::kReader},
    {"/kvstow.v1.KvCache/ReportAttention", Role::kWorker},
    {"/kvstow.v1.KvCache/OpenLocal", Role::kReader},
    {"/kvstow.v1.KvCache/OpenDirect", Role::kReader},
    {"/kvstow.v1.KvCache/Release", Role::kReader},
    {"/kvstow.v1.KvCache/Pin", Role::kWorker},
    {"/kvstow.v1.KvCache/Delete", Role::kWorker},
    {"/kvstow.v1.KvCache/DropSpace", Role::kWorker},
    {"/kvstow.v1.KvCache/Usage", Role::kReader},
    {"/kvstow.v1.Admin/Status", Role::kAdmin, Audited::kRead},
    {"/kvstow.v1.Admin/Verify", Role::kAdmin, Audited::kRead},
    {"/kvstow.v1.Admin/SamplePages", Role::kAdmin, Audited::kRead},
    {"/kvstow.v1.Admin/Ages", Role::kAdmin, Audited::kRead},
    {"/kvstow.v1.Admin/Activity", Role::kAdmin, Audited::kRead},
    {"/kvstow.v1.Admin/Evict", Role::kAdmin, Audited::kChange},
    {"/kvstow.v1.Admin/SetBudget", Role::kAdmin, Audited::kChange},
    {"/kvstow.v1.Admin/Flush", Role::kAdmin, Audited::kChange},
    {"/kvstow.v1.Admin/Drain", Role::kAdmin, Audited::kChange},
    {"/kvstow.v1.Admin/SetQuota", Role::kAdmin, Audited::kChange},
    {"/kvstow.v1.Admin/Tenants", Role::kAdmin, Audited::kRead},
    {"/kvstow.v1.Admin/RotateKey", Role::kAdmin, Audited::kChange},
    {"/kvstow.v1.Admin/DropTenant", Role::kAdmin, Audited::kChange},
};

// Returns a row of the table.
consteval const Right& RightOf(std::string_view method) {
  for (const Right& right : kRights) {
    if (right.method == method) return right;
  }
  throw "there is no such row in kRights";
}

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_ACCESS_RIGHTS_H_
