// The access file: tenants, the identities that stand for them, and the spaces that they share, as
// an operator writes them in JSON (docs/OPERATIONS.md, "Tenants and identities").
//
// A value and a free function; thread-safe. Errors are INVALID_ARGUMENT and name the place in the
// file, as "tenants.team-a.limit.host".
#ifndef KVSTOW_SERVICE_ACCESS_ACCESS_FILE_H_
#define KVSTOW_SERVICE_ACCESS_ACCESS_FILE_H_

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "service/access/caller.h"
#include "service/access/tenant_limits.h"

namespace kvstow {

inline constexpr size_t kMaxAccessFileBytes = 16 << 20;
inline constexpr size_t kMaxTenantNameBytes = 64;

struct AccessFile {
  struct Tenant {
    TenantLimits limits;
    bool kv_events = false;  // whether routers are told of its pages
  };
  // The SHA-256 of a bearer token, a name of a certificate, or a user of this machine.
  using Fact = std::variant<Sha256Digest, std::string, uid_t>;
  struct Identity {
    Fact fact;
    Caller caller;  // its identity is a name for logs
  };
  // A space of `owner` that the tenants `with` find under its name.
  struct Share {
    std::string space, owner;
    std::vector<std::string> with;
    bool write = false;  // whether their workers may put into it
  };

  std::map<std::string, Tenant> tenants;
  std::vector<Identity> identities;
  std::vector<Share> shares;
};

// Refuses unknown and repeated keys, identities and shares that are there twice, tenants that are
// named and not there, admins of a tenant, and limits that contradict each other.
absl::StatusOr<AccessFile> ParseAccessFile(absl::string_view text);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_ACCESS_ACCESS_FILE_H_
