// Caller: who makes a call, as the server decided it from what a transport knows of its peer.
//
// Values; thread-safe.
#ifndef KVSTOW_SERVICE_ACCESS_CALLER_H_
#define KVSTOW_SERVICE_ACCESS_CALLER_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvstow {

// What a caller may do. Each role may do what those before it may.
enum class Role : uint8_t {
  kReader,  // look up and get
  kWorker,  // put, delete, pin, report; open and drop spaces
  kAdmin,   // calls of kvstow.v1.Admin
};

struct Caller {
  std::string identity;  // as the access file names it, for logs; "" = a server without identities
  std::string tenant;    // "" = the one tenant of a server without identities
  Role role = Role::kAdmin;
};

// What a transport knows of its peer. Only what the transport itself has verified is in here.
struct PeerFacts {
  // Names in the peer's verified certificate: "spiffe://...", "dns:NAME", "cn:NAME"; empty = none.
  std::vector<std::string> certificate_names;
  std::string bearer_token;  // from `authorization: Bearer TOKEN`; "" = none
  std::optional<uid_t> uid;  // of the process behind a UNIX socket
};

// An operator belongs to no tenant, and sees the spaces of all.
inline bool IsOperator(const Caller& caller) {
  return caller.role == Role::kAdmin && caller.tenant.empty();
}
// Returns the caller, or for an operator who names a tenant, one who meets that tenant's spaces.
inline Caller Meant(const Caller& caller, const std::string& tenant) {
  Caller out = caller;
  if (IsOperator(caller)) out.tenant = tenant;
  return out;
}
// Returns the number under which the tenant's leases are kept: nobody else's calls touch them.
uint64_t HolderOf(const Caller& caller);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_ACCESS_CALLER_H_
