#include "service/keys/key_ring.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/private_folder.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

namespace fs = std::filesystem;

absl::Status SetAside(const std::string& path) {
  for (int n = 1; n < 1000; ++n) {
    const std::string aside = absl::StrCat(path, ".damaged-", n);
    std::error_code error;
    if (fs::exists(aside, error)) continue;
    fs::rename(path, aside, error);
    if (error) return absl::UnavailableError(absl::StrCat(aside, ": ", error.message()));
    Log().error(
        "{} was moved to {}: put a good copy in its place and restart, or what its keys sealed is "
        "lost",
        path, aside);
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("there are too many ", path, ".damaged-N: remove some"));
}

std::string NameOf(absl::string_view tenant) {
  return tenant.empty() ? "the one tenant" : absl::StrCat("tenant '", tenant, "'");
}

}  // namespace

KeyRing::KeyRing(std::string path, std::shared_ptr<MasterKeys> masters, KeyFile file)
    : path_(std::move(path)), source_(std::move(masters)), reads_clear_(file.reads_clear) {
  MutexLock lock(mu_);
  for (WrappedKey& key : file.keys) entries_.push_back({std::move(key), nullptr});
  MakeIndex();
}

void KeyRing::MakeIndex() {
  by_id_.clear();
  newest_.clear();
  for (size_t i = 0; i < entries_.size(); ++i) {
    by_id_[entries_[i].wrapped.id] = i;
    if (entries_[i].secret != nullptr) newest_[entries_[i].wrapped.tenant] = i;
  }
}

absl::StatusOr<std::shared_ptr<KeyRing>> KeyRing::Open(const std::string& folder,
                                                       const std::string& source) {
  KVSTOW_ASSIGN_OR_RETURN(std::shared_ptr<MasterKeys> masters, MasterKeys::Open(source));
  return Open(folder, std::move(masters));
}

absl::StatusOr<std::shared_ptr<KeyRing>> KeyRing::Open(const std::string& folder,
                                                       std::shared_ptr<MasterKeys> masters) {
  if (const std::error_code error = MakePrivateFolder(folder); error) {
    return absl::UnavailableError(absl::StrCat(folder, ": ", error.message()));
  }
  const std::string path = absl::StrCat(folder, "/keys");
  auto file = ReadKeyFile(path);
  if (absl::IsDataLoss(file.status())) {
    Log().error("{}", std::string(file.status().message()));
    KVSTOW_RETURN_IF_ERROR(SetAside(path));
    file = absl::NotFoundError("");
  }
  if (absl::IsNotFound(file.status())) {
    std::error_code error;
    file = KeyFile{.reads_clear = fs::exists(absl::StrCat(folder, "/db/CURRENT"), error)};
    KVSTOW_RETURN_IF_ERROR(WriteKeyFile(path, *file));
  }
  KVSTOW_RETURN_IF_ERROR(file.status());
  std::shared_ptr<KeyRing> ring(new KeyRing(path, std::move(masters), *std::move(file)));
  if (const absl::Status s = ring->UseMasters(); !s.ok()) {
    Log().error("{}", std::string(s.message()));
  }
  return ring;
}

// Unwraps what the master keys unwrap.
void KeyRing::Unlock() {
  for (Entry& entry : entries_) {
    for (const MasterKey& master : masters_) {
      if (entry.secret != nullptr || master.id != entry.wrapped.master) continue;
      auto secret = Unwrap(*master.secret, entry.wrapped, reads_clear_);
      if (secret.ok()) {
        entry.secret = std::make_shared<const SecretKey>(*std::move(secret));
      } else {
        Log().error("{}: {}", path_, std::string(secret.status().message()));
      }
    }
    if (entry.secret != nullptr) continue;
    Log().error("{}: data key {} of {} is locked: no master key here unwraps it", path_,
                entry.wrapped.id, NameOf(entry.wrapped.tenant));
  }
}

// Wraps by the first master key what another one wrapped. Returns whether there was any.
bool KeyRing::WrapAnew() {
  bool any = false;
  const MasterKey& first = masters_.front();
  for (Entry& entry : entries_) {
    if (entry.secret == nullptr || entry.wrapped.master == first.id) continue;
    entry.wrapped = Wrap(*first.secret, first.id, entry.wrapped.id, entry.wrapped.tenant,
                         reads_clear_, *entry.secret);
    any = true;
  }
  return any;
}

absl::Status KeyRing::Reload() {
  KVSTOW_RETURN_IF_ERROR(source_->Reload());
  return UseMasters();
}

absl::Status KeyRing::UseMasters() {
  std::vector<MasterKey> masters = source_->Current();
  MutexLock lock(mu_);
  masters_ = std::move(masters);
  Unlock();
  MakeIndex();
  if (masters_.empty() || !WrapAnew()) return absl::OkStatus();
  KVSTOW_RETURN_IF_ERROR(Save());
  Log().info("{}: wrapped by the first master key now", path_);
  return absl::OkStatus();
}

absl::Status KeyRing::Save() {
  KeyFile file{.reads_clear = reads_clear_};
  for (const Entry& entry : entries_) file.keys.push_back(entry.wrapped);
  return WriteKeyFile(path_, file);
}

// The key is in the file before anything is sealed with it.
absl::StatusOr<DataKey> KeyRing::AddKey(absl::string_view tenant) {
  if (masters_.empty()) {
    return absl::UnavailableError("there is no master key: see what the log says of --master-key");
  }
  if (tenant.size() > kMaxTenantBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a tenant's name has ", tenant.size(),
                                                   " bytes, and may have ", kMaxTenantBytes));
  }
  uint32_t id = 0;
  while (id == 0 || by_id_.contains(id)) RandomBytes({reinterpret_cast<uint8_t*>(&id), sizeof(id)});
  auto secret = std::make_shared<const SecretKey>(SecretKey::Random());
  entries_.push_back({Wrap(*masters_.front().secret, masters_.front().id, id, std::string(tenant),
                           reads_clear_, *secret),
                      secret});
  if (const absl::Status s = Save(); !s.ok()) {
    entries_.pop_back();
    return absl::UnavailableError(absl::StrCat("a new data key is not saved: ", s.message()));
  }
  MakeIndex();
  Log().info("{}: {} has the new data key {}", path_, NameOf(tenant), id);
  return DataKey{id, std::move(secret)};
}

absl::StatusOr<DataKey> KeyRing::KeyToSeal(absl::string_view tenant) {
  MutexLock lock(mu_);
  const auto it = newest_.find(tenant);
  if (it == newest_.end()) return AddKey(tenant);
  const Entry& entry = entries_[it->second];
  return DataKey{entry.wrapped.id, entry.secret};
}

absl::StatusOr<DataKey> KeyRing::KeyToOpen(absl::string_view tenant, uint32_t id) {
  MutexLock lock(mu_);
  const auto it = by_id_.find(id);
  if (it == by_id_.end() || entries_[it->second].wrapped.tenant != tenant) {
    return absl::UnavailableError(absl::StrCat(NameOf(tenant), " has no data key ", id, " here"));
  }
  const Entry& entry = entries_[it->second];
  if (entry.secret != nullptr) return DataKey{id, entry.secret};
  return absl::UnavailableError(absl::StrCat("data key ", id, " is locked"));
}

bool KeyRing::Has(absl::string_view tenant) {
  MutexLock lock(mu_);
  return std::ranges::any_of(entries_, [&](const Entry& e) { return e.wrapped.tenant == tenant; });
}

absl::Status KeyRing::Rotate(absl::string_view tenant) {
  MutexLock lock(mu_);
  return AddKey(tenant).status();
}

absl::Status KeyRing::Drop(absl::string_view tenant) {
  MutexLock lock(mu_);
  const size_t dropped =
      std::erase_if(entries_, [&](const Entry& e) { return e.wrapped.tenant == tenant; });
  MakeIndex();
  KVSTOW_RETURN_IF_ERROR(Save());
  Log().warn("{}: the {} data keys of {} are erased", path_, dropped, NameOf(tenant));
  return absl::OkStatus();
}

KeyRing::Counts KeyRing::counts() {
  MutexLock lock(mu_);
  Counts out{.master_keys = masters_.size()};
  for (const Entry& entry : entries_) ++(entry.secret != nullptr ? out.keys : out.locked);
  return out;
}

}  // namespace kvstow
