#include "service/access/access.h"

#include <openssl/crypto.h>

#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

constexpr Duration kComplainAgain = std::chrono::seconds(10);

// The place of a digest in the table depends on a SHA-256 alone, which nobody can steer towards
// another; the comparison takes the same time whatever is equal.
struct DigestHash {
  size_t operator()(const Sha256Digest& digest) const {
    size_t hash;
    std::memcpy(&hash, digest.data(), sizeof(hash));
    return hash;
  }
};
struct DigestEqual {
  bool operator()(const Sha256Digest& a, const Sha256Digest& b) const {
    return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
  }
};

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError("it cannot be opened");
  std::string out(kMaxAccessFileBytes + 1, '\0');
  in.read(out.data(), static_cast<std::streamsize>(out.size()));
  if (in.bad()) return absl::UnavailableError("it cannot be read");
  out.resize(static_cast<size_t>(in.gcount()));
  return out;
}

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kReader:
      return "reader";
    case Role::kWorker:
      return "worker";
    case Role::kAdmin:
      return "admin";
  }
  return "";
}

bool Same(const Caller& a, const Caller& b) {
  return a.identity == b.identity && a.tenant == b.tenant && a.role == b.role;
}

}  // namespace

// What the file says, as calls ask for it. Immutable.
struct Access::Table {
  AccessFile file;
  absl::flat_hash_map<Sha256Digest, CallerPtr, DigestHash, DigestEqual> tokens;
  absl::flat_hash_map<std::string, CallerPtr> certificates;
  absl::flat_hash_map<uid_t, CallerPtr> users;
  std::set<CallerPtr> callers;
  // By space and by the tenant that finds it.
  std::map<std::pair<std::string, std::string>, Meaning, std::less<>> shares;

  // Takes over the callers of `before` whose line is the same.
  static std::shared_ptr<const Table> Make(AccessFile file, const Table* before);
  CallerPtr Find(const AccessFile::Fact& fact) const;
};

CallerPtr Access::Table::Find(const AccessFile::Fact& fact) const {
  const auto in = [](const auto& map, const auto& key) {
    const auto it = map.find(key);
    return it == map.end() ? nullptr : it->second;
  };
  if (const auto* digest = std::get_if<Sha256Digest>(&fact)) return in(tokens, *digest);
  if (const auto* name = std::get_if<std::string>(&fact)) return in(certificates, *name);
  return in(users, std::get<uid_t>(fact));
}

std::shared_ptr<const Access::Table> Access::Table::Make(AccessFile file, const Table* before) {
  auto out = std::make_shared<Table>();
  for (const AccessFile::Identity& identity : file.identities) {
    CallerPtr caller = before == nullptr ? nullptr : before->Find(identity.fact);
    if (caller == nullptr || !Same(*caller, identity.caller)) {
      caller = std::make_shared<const Caller>(identity.caller);
    }
    out->callers.insert(caller);
    if (const auto* digest = std::get_if<Sha256Digest>(&identity.fact)) {
      out->tokens[*digest] = caller;
    } else if (const auto* name = std::get_if<std::string>(&identity.fact)) {
      out->certificates[*name] = caller;
    } else {
      out->users[std::get<uid_t>(identity.fact)] = caller;
    }
  }
  for (const AccessFile::Share& share : file.shares) {
    for (const std::string& tenant : share.with) {
      out->shares[{share.space, tenant}] = {share.owner, false, share.write};
    }
  }
  out->file = std::move(file);
  return out;
}

uint64_t HolderOf(const Caller& caller) {
  return caller.tenant.empty() ? 0 : Xxh3(AsBytes(caller.tenant));
}

Access::Access(std::string path) : path_(std::move(path)), table_(std::make_shared<Table>()) {}
Access::~Access() = default;

Access& Access::ForEverybody() {
  static Access* const open = new Access("");
  return *open;
}

absl::StatusOr<std::unique_ptr<Access>> Access::Open(const std::string& path) {
  std::unique_ptr<Access> out(new Access(path));
  if (path.empty()) return out;
  KVSTOW_RETURN_IF_ERROR(out->Reload());
  out->reloads_ = 0;
  return out;
}

absl::Status Access::Reload() {
  if (path_.empty()) return absl::OkStatus();
  const auto parsed = [&]() -> absl::StatusOr<AccessFile> {
    KVSTOW_ASSIGN_OR_RETURN(const std::string text, ReadFile(path_));
    return ParseAccessFile(text);
  }();
  if (!parsed.ok()) {
    ++failed_reloads_;
    return absl::Status(parsed.status().code(),
                        absl::StrCat("access: ", path_, ": ", parsed.status().message()));
  }
  auto fresh = Table::Make(*parsed, table().get());
  MutexLock lock(mu_);
  table_ = std::move(fresh);
  ++version_;
  ++reloads_;
  return absl::OkStatus();
}

std::shared_ptr<const Access::Table> Access::table() const {
  MutexLock lock(mu_);
  return table_;
}

absl::StatusOr<CallerPtr> Access::Identify(const PeerFacts& facts) {
  static const auto* const anybody = new CallerPtr(std::make_shared<const Caller>());
  if (!has_identities()) return *anybody;
  const auto known = table();
  CallerPtr caller;
  bool two = false;
  if (!facts.bearer_token.empty()) {
    caller = known->Find(Sha256(AsBytes(facts.bearer_token)));
  } else if (!facts.certificate_names.empty()) {
    for (const std::string& name : facts.certificate_names) {
      const CallerPtr named = known->Find(name);
      if (named == nullptr) continue;
      two = two || (caller != nullptr && caller != named);
      caller = named;
    }
  } else if (facts.uid.has_value()) {
    caller = known->Find(*facts.uid);
  } else {
    constexpr char kNone[] =
        "the call has no identity: show a certificate (--tls-cert) or a token (--token-file)";
    CountRefusal(Refusal::kNoIdentity, kNone);
    return absl::UnauthenticatedError(kNone);
  }
  if (caller != nullptr && !two) return caller;
  const char* const why = two ? "the certificate has names of two identities"
                              : "the server does not know this identity";
  CountRefusal(Refusal::kUnknownIdentity, why);
  return absl::UnauthenticatedError(why);
}

absl::Status Access::MayCall(const Caller& caller, const Right& right) {
  if (caller.role >= right.least) return absl::OkStatus();
  const std::string why = absl::StrCat(
      absl::string_view(right.method.data(), right.method.size()).substr(1), " needs the role ",
      RoleName(right.least), ", ", caller.identity, " is a ", RoleName(caller.role));
  CountRefusal(Refusal::kRole, why);
  return absl::PermissionDeniedError(why);
}

bool Access::Knows(const CallerPtr& caller) const {
  return !has_identities() || table()->callers.contains(caller);
}

void Access::CountRefusal(Refusal why, absl::string_view what) {
  const auto number = static_cast<size_t>(why);
  const uint64_t count = ++refusals_[number];
  {
    const Time now = Clock::Real().Now();
    MutexLock lock(mu_);
    if (now < complain_after_) return;
    complain_after_ = now + kComplainAgain;
  }
  Log().warn("refused, {} so far for this reason ({}): {}", count, kRefusals[number],
             std::string(what));
}

Access::Meaning Access::MeaningOf(const std::string& tenant, absl::string_view space) const {
  if (has_identities()) {
    const auto known = table();
    const auto it = known->shares.find({std::string(space), tenant});
    if (it != known->shares.end()) return it->second;
  }
  return {.owner = tenant};
}

std::vector<std::string> Access::Tenants() const {
  std::vector<std::string> out;
  for (const auto& [name, tenant] : table()->file.tenants) out.push_back(name);
  return out;
}

TenantLimits Access::Limits(const std::string& tenant) const {
  const auto known = table();
  const auto it = known->file.tenants.find(tenant);
  return it == known->file.tenants.end() ? TenantLimits{} : it->second.limits;
}

bool Access::PublishesKvEvents(const std::string& tenant) const {
  if (!has_identities()) return true;
  const auto known = table();
  const auto it = known->file.tenants.find(tenant);
  return it != known->file.tenants.end() && it->second.kv_events;
}

Access::Counters Access::counters() const {
  Counters out{.reloads = reloads_, .failed_reloads = failed_reloads_};
  for (size_t i = 0; i < out.refusals.size(); ++i) out.refusals[i] = refusals_[i];
  return out;
}

}  // namespace kvstow
