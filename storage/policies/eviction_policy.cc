#include "storage/policies/eviction_policy.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "storage/policies/list_policies.h"
#include "storage/policies/value_policy.h"

namespace kvstow {
namespace {

constexpr PolicyInfo kPolicies[] = {
    {"kvstow", "least worth x chance of reuse / bytes, learned; leaves first", "this project",
     MakeValuePolicy},
    {"lru", "used longest ago", "folklore", MakeLru},
    {"slru", "LRU with 20 % of the room for what was used twice", "Karedla et al. 1994", MakeSlru},
    {"arc", "recency and frequency lists balanced by their ghosts", "Megiddo and Modha, FAST'03",
     MakeArc},
    {"s3fifo", "small FIFO, main FIFO with second chances, ghosts", "Yang et al., SOSP'23",
     MakeS3Fifo},
    {"wtinylfu", "LRU window of 1 %, then a contest of uses in a sketch", "Einziger et al., TOS'17",
     MakeWTinyLfu},
    {"gdsf", "uses x worth, aged by inflation", "Cherkasova 1998", MakeGdsf},
};

}  // namespace

std::span<const PolicyInfo> EvictionPolicies() { return kPolicies; }

absl::StatusOr<const PolicyInfo*> FindEvictionPolicy(absl::string_view name) {
  std::string names;
  for (const PolicyInfo& policy : kPolicies) {
    if (policy.name == name) return &policy;
    absl::StrAppend(&names, names.empty() ? "" : ", ", policy.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no eviction policy '", name, "': use one of ", names));
}

}  // namespace kvstow
