// Access: who calls, what they may do, and which spaces a name means for them, as the access file
// says (access_file.h).
//
// Every transport asks Identify with what it knows of its peer, and MayCall with the right of the
// call. Without a file everybody is Caller{}: one tenant, every role. A bearer token decides alone
// when there is one; then a certificate; then the user of a UNIX socket. A peer whose certificate
// has names of two identities is refused.
//
// Reload reads the file again. Calls are decided by the new file from then on. A caller whose line
// is unchanged stays the same object, so Knows tells a connection whether its caller still stands.
// A file that cannot be read changes nothing.
//
// Refusals are counted by reason, and logged once in a while. Tokens are kept and compared as
// SHA-256, in constant time. Thread-safe; only Open and Reload read a file.
#ifndef KVSTOW_SERVICE_ACCESS_ACCESS_H_
#define KVSTOW_SERVICE_ACCESS_ACCESS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "service/access/access_file.h"
#include "service/access/caller.h"
#include "service/access/rights.h"
#include "service/access/tenant_limits.h"

namespace kvstow {

using CallerPtr = std::shared_ptr<const Caller>;

// Why a peer was refused.
enum class Refusal { kNoIdentity, kUnknownIdentity, kRole, kTicket };
inline constexpr std::array<const char*, 4> kRefusals = {"no_identity", "unknown_identity", "role",
                                                         "ticket"};

class Access {
 public:
  // "" = without a file. Errors name the file and the place in it.
  static absl::StatusOr<std::unique_ptr<Access>> Open(const std::string& path);
  // An Access without a file. Outlives everything.
  static Access& ForEverybody();
  ~Access();

  bool has_identities() const { return !path_.empty(); }

  // UNAUTHENTICATED: the peer shows no identity, or none that the file has.
  absl::StatusOr<CallerPtr> Identify(const PeerFacts& facts);
  // PERMISSION_DENIED: the caller's role is less than the call needs.
  absl::Status MayCall(const Caller& caller, const Right& right);
  // Returns whether the file still has the caller, unchanged.
  bool Knows(const CallerPtr& caller) const;
  // Counts the refusal and logs it once in a while. Identify and MayCall do it themselves.
  void CountRefusal(Refusal why, absl::string_view what);

  // The space that a tenant means by a name: its own, or another tenant's that is shared with it
  // under this name. The file alone decides, whatever spaces there are.
  struct Meaning {
    std::string owner;  // a tenant
    bool own = true;
    bool write = true;  // whether the tenant's workers may put into it
  };
  Meaning MeaningOf(const std::string& tenant, absl::string_view space) const;

  std::vector<std::string> Tenants() const;  // by name
  // Returns no limits for a tenant that the file does not have.
  TenantLimits Limits(const std::string& tenant) const;
  // Returns whether routers are told of a tenant's pages.
  bool PublishesKvEvents(const std::string& tenant) const;

  // Reads the file again. After an error everything is as it was.
  absl::Status Reload();
  uint64_t version() const { return version_; }  // grows when a reload has changed something

  struct Counters {
    std::array<uint64_t, kRefusals.size()> refusals{};
    uint64_t reloads = 0, failed_reloads = 0;
  };
  Counters counters() const;

 private:
  struct Table;
  explicit Access(std::string path);
  std::shared_ptr<const Table> table() const;

  const std::string path_;
  mutable Mutex mu_;
  std::shared_ptr<const Table> table_ KVSTOW_GUARDED_BY(mu_);
  Time complain_after_ KVSTOW_GUARDED_BY(mu_);
  std::atomic<uint64_t> version_ = 1, reloads_ = 0, failed_reloads_ = 0;
  std::array<std::atomic<uint64_t>, kRefusals.size()> refusals_{};
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_ACCESS_ACCESS_H_
