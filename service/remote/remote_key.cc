#include "service/remote/remote_key.h"

#include <algorithm>
#include <utility>

#include "base/digest.h"

namespace kvstow {
namespace {

SecretKey NamesOf(const SecretKey& secret) {
  Sha256Digest bytes = HmacSha256(secret.bytes(), AsBytes("kvstow remote names 1"));
  SecretKey out(bytes);
  Cleanse(bytes);
  return out;
}

}  // namespace

RemoteKey::RemoteKey(uint64_t id, SecretKey secret)
    : id_(id), secret_(std::move(secret)), names_(NamesOf(secret_)) {}

std::shared_ptr<const RemoteKey> RemoteKey::Random() {
  uint64_t id = 0;
  RandomBytes({reinterpret_cast<uint8_t*>(&id), sizeof(id)});
  return std::make_shared<const RemoteKey>(id, SecretKey::Random());
}

RemoteTag RemoteKey::Cover(const RemoteTag& tag) const {
  const Sha256Digest digest = HmacSha256(names_.bytes(), tag.bytes);
  RemoteTag out;
  std::copy_n(digest.begin(), out.bytes.size(), out.bytes.begin());
  return out;
}

RemotePlace PlaceAt(const RemoteTag& tag, RemoteKeyPtr key) {
  if (key == nullptr) return {.tag = tag, .key = nullptr};
  const RemoteTag covered = key->Cover(tag);
  return {.tag = covered, .key = std::move(key)};
}

RemotePlace PlaceOf(const Space& space, const RemoteEra& era, absl::string_view key) {
  return PlaceAt(TagOf(space, era.generation, key), era.key);
}

}  // namespace kvstow
