#include "service/access/access_file.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

using nlohmann::json;

absl::Status Wrong(absl::string_view place, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(place, ": ", what));
}

std::string Under(absl::string_view place, absl::string_view key) {
  return place.empty() ? std::string(key) : absl::StrCat(place, ".", key);
}

// The file as JSON. Refuses an object that has a key twice, which the library would let pass.
absl::StatusOr<json> ParseJson(absl::string_view text) {
  if (text.size() > kMaxAccessFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", text.size(), " bytes: at most ", kMaxAccessFileBytes, " may be"));
  }
  std::vector<std::set<std::string>> keys;
  std::string twice;
  bool too_deep = false;
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    constexpr int kMaxDepth = 8;
    too_deep = too_deep || depth > kMaxDepth;
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) twice = key;
    }
    return !too_deep;  // what is too deep is read and not kept
  };
  json out = json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (out.is_discarded() || too_deep) return absl::InvalidArgumentError("it is no JSON object");
  if (!twice.empty()) return Wrong(twice, "an object has this key twice");
  return out;
}

// An object of the file. Done() refuses the keys that nobody took.
class Object {
 public:
  static absl::StatusOr<Object> Of(const json& value, std::string place) {
    if (!value.is_object()) return Wrong(place, "write an object, {...}");
    return Object(value, std::move(place));
  }
  // Returns null when the key is absent.
  const json* Take(const char* key) {
    const auto it = value_->find(key);
    if (it == value_->end()) return nullptr;
    taken_.insert(key);
    return &*it;
  }
  absl::Status Done() const {
    for (const auto& [key, value] : value_->items()) {
      if (!taken_.contains(key)) return Wrong(At(key), "there is no such key");
    }
    return absl::OkStatus();
  }
  std::string At(absl::string_view key) const { return Under(place_, key); }
  const std::string& place() const { return place_; }

  absl::Status TakeText(const char* key, std::string& out) {
    const json* const value = Take(key);
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_string()) return Wrong(At(key), "write a text");
    out = value->get<std::string>();
    return absl::OkStatus();
  }
  absl::Status TakeFlag(const char* key, bool& out) {
    const json* const value = Take(key);
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_boolean()) return Wrong(At(key), "write true or false");
    out = value->get<bool>();
    return absl::OkStatus();
  }
  absl::Status TakeCount(const char* key, uint64_t& out) {
    const json* const value = Take(key);
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_number_unsigned()) return Wrong(At(key), "write a number from 0 on");
    out = value->get<uint64_t>();
    return absl::OkStatus();
  }
  // A number of bytes, or a text as "4GiB".
  absl::Status TakeSize(const char* key, uint64_t& out) {
    const json* const value = Take(key);
    if (value == nullptr) return absl::OkStatus();
    if (value->is_number_unsigned()) {
      out = value->get<uint64_t>();
      return absl::OkStatus();
    }
    if (!value->is_string()) return Wrong(At(key), "write a size, as \"4GiB\"");
    const auto size = ParseSize(value->get_ref<const std::string&>());
    if (!size.ok()) return Wrong(At(key), size.status().message());
    out = *size;
    return absl::OkStatus();
  }

 private:
  Object(const json& value, std::string place) : value_(&value), place_(std::move(place)) {}

  const json* value_;
  std::string place_;
  std::set<std::string> taken_;
};

absl::StatusOr<const json*> ArrayOf(Object& object, const char* key) {
  static const json empty = json::array();
  const json* const value = object.Take(key);
  if (value == nullptr) return &empty;
  if (!value->is_array()) return Wrong(object.At(key), "write a list, [...]");
  return value;
}

absl::Status CheckTenantName(absl::string_view name, const std::string& place) {
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  };
  if (!name.empty() && name.size() <= kMaxTenantNameBytes && std::ranges::all_of(name, allowed)) {
    return absl::OkStatus();
  }
  return Wrong(place, absl::StrCat("the name of a tenant has 1 to ", kMaxTenantNameBytes,
                                   " letters, digits, '.', '_' or '-'"));
}

absl::Status TakeTierBytes(Object& tenant, const char* key, TierBytes& out) {
  const json* const value = tenant.Take(key);
  if (value == nullptr) return absl::OkStatus();
  KVSTOW_ASSIGN_OR_RETURN(Object tiers, Object::Of(*value, tenant.At(key)));
  for (int t = 0; t < kTiers; ++t) {
    KVSTOW_RETURN_IF_ERROR(
        tiers.TakeSize(TierName(static_cast<TierId>(t)), out[static_cast<size_t>(t)]));
  }
  return tiers.Done();
}

absl::StatusOr<AccessFile::Tenant> ParseTenant(const json& value, const std::string& place) {
  KVSTOW_ASSIGN_OR_RETURN(Object object, Object::Of(value, place));
  AccessFile::Tenant out;
  TenantLimits& limits = out.limits;
  if (const json* const weight = object.Take("weight"); weight != nullptr) {
    if (!weight->is_number()) return Wrong(object.At("weight"), "write a number");
    limits.weight = weight->get<double>();
    if (!(limits.weight > 0 && limits.weight <= 1e6)) {
      return Wrong(object.At("weight"), "write a number above 0 and up to 1,000,000");
    }
  }
  KVSTOW_RETURN_IF_ERROR(TakeTierBytes(object, "guarantee", limits.guarantee));
  KVSTOW_RETURN_IF_ERROR(TakeTierBytes(object, "limit", limits.limit));
  KVSTOW_RETURN_IF_ERROR(object.TakeCount("pages", limits.pages));
  KVSTOW_RETURN_IF_ERROR(object.TakeCount("spaces", limits.spaces));
  KVSTOW_RETURN_IF_ERROR(object.TakeCount("streams", limits.streams));
  KVSTOW_RETURN_IF_ERROR(object.TakeSize("put_bytes_per_second", limits.put_bytes_per_second));
  KVSTOW_RETURN_IF_ERROR(object.TakeSize("get_bytes_per_second", limits.get_bytes_per_second));
  KVSTOW_RETURN_IF_ERROR(object.TakeSize("remote_bytes", limits.remote_bytes));
  KVSTOW_RETURN_IF_ERROR(object.TakeFlag("kv_events", out.kv_events));
  KVSTOW_RETURN_IF_ERROR(object.Done());
  for (size_t t = 0; t < limits.limit.size(); ++t) {
    if (limits.limit[t] > 0 && limits.guarantee[t] > limits.limit[t]) {
      return Wrong(absl::StrCat(place, ".guarantee.", TierName(static_cast<TierId>(t))),
                   absl::StrCat(limits.guarantee[t], " bytes are guaranteed, and at most ",
                                limits.limit[t], " allowed"));
    }
  }
  return out;
}

absl::StatusOr<AccessFile::Fact> ParseCertificate(const json& value, const std::string& place) {
  const std::string* const name = value.get_ptr<const std::string*>();
  for (const char* kind : {"spiffe://", "dns:", "cn:", "uri:"}) {
    if (name != nullptr && absl::StartsWith(*name, kind) && *name != kind) return *name;
  }
  return Wrong(place, "write a name as \"spiffe://DOMAIN/PATH\", \"dns:NAME\" or \"cn:NAME\"");
}

absl::StatusOr<AccessFile::Fact> ParseToken(const json& value, const std::string& place) {
  Sha256Digest digest;
  const std::string* const hex = value.get_ptr<const std::string*>();
  if (hex == nullptr || hex->size() != 2 * digest.size() || !std::ranges::all_of(*hex, [](char c) {
        return absl::ascii_isxdigit(static_cast<unsigned char>(c));
      })) {
    return Wrong(place, "write the 64 hexadecimal digits of the token's SHA-256");
  }
  const std::string bytes = absl::HexStringToBytes(*hex);
  std::copy_n(bytes.begin(), digest.size(), digest.begin());
  if (digest == Sha256({})) return Wrong(place, "this is the SHA-256 of an empty token");
  return digest;
}

absl::StatusOr<AccessFile::Fact> ParseUid(const json& value, const std::string& place) {
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() < std::numeric_limits<uid_t>::max()) {  // which means "no user"
    return static_cast<uid_t>(value.get<uint64_t>());
  }
  return Wrong(place, "write the number of a user");
}

struct FactRow {
  const char* key;
  absl::StatusOr<AccessFile::Fact> (*parse)(const json&, const std::string&);
};
constexpr FactRow kFacts[] = {
    {"certificate", ParseCertificate}, {"token_sha256", ParseToken}, {"uid", ParseUid}};

struct RoleRow {
  const char* name;
  Role role;
};
constexpr RoleRow kRoles[] = {
    {"reader", Role::kReader}, {"worker", Role::kWorker}, {"admin", Role::kAdmin}};

absl::Status TakeRole(Object& object, Role& out) {
  std::string name;
  KVSTOW_RETURN_IF_ERROR(object.TakeText("role", name));
  for (const RoleRow& row : kRoles) {
    if (name != row.name) continue;
    out = row.role;
    return absl::OkStatus();
  }
  return Wrong(object.At("role"), "write reader, worker or admin");
}

std::string NameOf(const AccessFile::Fact& fact, absl::string_view given) {
  if (const auto* certificate = std::get_if<std::string>(&fact)) return *certificate;
  if (const auto* uid = std::get_if<uid_t>(&fact)) return absl::StrCat("uid:", *uid);
  return absl::StrCat("token:", given);
}

absl::StatusOr<AccessFile::Identity> ParseIdentity(const json& value, const std::string& place) {
  KVSTOW_ASSIGN_OR_RETURN(Object object, Object::Of(value, place));
  AccessFile::Identity out;
  int facts = 0;
  for (const FactRow& row : kFacts) {
    const json* const fact = object.Take(row.key);
    if (fact == nullptr) continue;
    KVSTOW_ASSIGN_OR_RETURN(out.fact, row.parse(*fact, object.At(row.key)));
    ++facts;
  }
  if (facts != 1) {
    return Wrong(place, "an identity is one of certificate, token_sha256 and uid");
  }
  std::string name;
  KVSTOW_RETURN_IF_ERROR(object.TakeText("name", name));
  const bool is_token = std::holds_alternative<Sha256Digest>(out.fact);
  if (is_token) KVSTOW_RETURN_IF_ERROR(CheckTenantName(name, object.At("name")));
  if (!is_token && !name.empty()) {
    return Wrong(object.At("name"), "only a token needs a name: it goes into logs in its place");
  }
  KVSTOW_RETURN_IF_ERROR(object.TakeText("tenant", out.caller.tenant));
  KVSTOW_RETURN_IF_ERROR(TakeRole(object, out.caller.role));
  KVSTOW_RETURN_IF_ERROR(object.Done());
  const bool is_admin = out.caller.role == Role::kAdmin;
  if (out.caller.tenant.empty() && !is_admin) {
    return Wrong(object.At("tenant"), "say whose pages a reader or a worker may reach");
  }
  if (!out.caller.tenant.empty() && is_admin) {
    return Wrong(
        object.At("tenant"),
        "an admin's calls are about all tenants, so it belongs to none: leave this out, or "
        "make it a worker");
  }
  out.caller.identity = NameOf(out.fact, name);
  return out;
}

absl::Status CheckTenant(const AccessFile& file, const std::string& tenant,
                         const std::string& place) {
  if (file.tenants.contains(tenant)) return absl::OkStatus();
  return Wrong(place, absl::StrCat("there is no tenant '", tenant, "' under `tenants`"));
}

absl::Status ParseIdentities(Object& root, AccessFile& file) {
  KVSTOW_ASSIGN_OR_RETURN(const json* identities, ArrayOf(root, "identities"));
  std::set<AccessFile::Fact> facts;
  std::set<std::string> names;
  for (const json& value : *identities) {
    const std::string place = absl::StrCat("identities[", file.identities.size(), "]");
    KVSTOW_ASSIGN_OR_RETURN(AccessFile::Identity identity, ParseIdentity(value, place));
    const std::string& tenant = identity.caller.tenant;
    if (!tenant.empty()) KVSTOW_RETURN_IF_ERROR(CheckTenant(file, tenant, place + ".tenant"));
    if (!facts.insert(identity.fact).second || !names.insert(identity.caller.identity).second) {
      return Wrong(place, absl::StrCat(identity.caller.identity,
                                       " is there twice: an identity has one meaning"));
    }
    file.identities.push_back(std::move(identity));
  }
  return absl::OkStatus();
}

absl::StatusOr<AccessFile::Share> ParseShare(const json& value, const std::string& place) {
  KVSTOW_ASSIGN_OR_RETURN(Object object, Object::Of(value, place));
  AccessFile::Share out;
  KVSTOW_RETURN_IF_ERROR(object.TakeText("space", out.space));
  KVSTOW_RETURN_IF_ERROR(object.TakeText("tenant", out.owner));
  KVSTOW_RETURN_IF_ERROR(object.TakeFlag("write", out.write));
  KVSTOW_ASSIGN_OR_RETURN(const json* with, ArrayOf(object, "with"));
  KVSTOW_RETURN_IF_ERROR(object.Done());
  for (const json& tenant : *with) {
    if (!tenant.is_string()) return Wrong(object.At("with"), "write names of tenants");
    out.with.push_back(tenant.get<std::string>());
  }
  if (out.space.empty()) return Wrong(object.At("space"), "name the space that is shared");
  if (out.with.empty()) return Wrong(object.At("with"), "name a tenant that finds the space");
  return out;
}

absl::Status ParseShares(Object& root, AccessFile& file) {
  KVSTOW_ASSIGN_OR_RETURN(const json* shares, ArrayOf(root, "shared_spaces"));
  std::set<std::pair<std::string, std::string>> found;  // space, and the tenant that finds it
  for (const json& value : *shares) {
    const std::string place = absl::StrCat("shared_spaces[", file.shares.size(), "]");
    KVSTOW_ASSIGN_OR_RETURN(AccessFile::Share share, ParseShare(value, place));
    KVSTOW_RETURN_IF_ERROR(CheckTenant(file, share.owner, place + ".tenant"));
    for (const std::string& tenant : share.with) {
      KVSTOW_RETURN_IF_ERROR(CheckTenant(file, tenant, place + ".with"));
      if (tenant == share.owner) {
        return Wrong(place + ".with", absl::StrCat("'", tenant, "' owns the space"));
      }
      if (!found.insert({share.space, tenant}).second) {
        return Wrong(
            place + ".with",
            absl::StrCat("'", tenant, "' finds two spaces under the name '", share.space, "'"));
      }
    }
    file.shares.push_back(std::move(share));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AccessFile> ParseAccessFile(absl::string_view text) {
  KVSTOW_ASSIGN_OR_RETURN(const json parsed, ParseJson(text));
  if (!parsed.is_object()) return absl::InvalidArgumentError("it is no JSON object");
  KVSTOW_ASSIGN_OR_RETURN(Object root, Object::Of(parsed, ""));
  AccessFile out;
  if (const json* const tenants = root.Take("tenants"); tenants != nullptr) {
    if (!tenants->is_object()) return Wrong("tenants", "write an object, {\"NAME\": {...}}");
    for (const auto& [name, value] : tenants->items()) {
      const std::string place = Under("tenants", name);
      KVSTOW_RETURN_IF_ERROR(CheckTenantName(name, place));
      KVSTOW_ASSIGN_OR_RETURN(out.tenants[name], ParseTenant(value, place));
    }
  }
  KVSTOW_RETURN_IF_ERROR(ParseIdentities(root, out));
  KVSTOW_RETURN_IF_ERROR(ParseShares(root, out));
  KVSTOW_RETURN_IF_ERROR(root.Done());
  return out;
}

}  // namespace kvstow
