#include "service/keys/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/descriptor.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/private_folder.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

// "kvKY" as it stands in a file.
constexpr uint32_t kMagic = 0x594b766b;
constexpr uint16_t kClearFlag = 1;
constexpr size_t kMostBytes = size_t{1} << 28;

std::string BoundTo(uint32_t id, const std::string& tenant, bool reads_clear) {
  ByteWriter out;
  out.PutBytes(AsBytes("kvstow data key 1"));
  out.Put(id);
  out.Put(static_cast<uint8_t>(reads_clear ? 1 : 0));
  out.PutBytes(AsBytes(tenant));
  return std::move(out).Take();
}

absl::Status Failed(const std::string& path, int error) {
  const std::string text = absl::StrCat(path, ": ", std::strerror(error));
  if (error == ENOENT) return absl::NotFoundError(text);
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(text);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(text);
  return absl::UnavailableError(text);
}

Descriptor Open(const std::string& path, int flags) {
  return Descriptor(open(path.c_str(), flags | O_CLOEXEC, kPrivateFile));
}

}  // namespace

std::string SerializeKeyFile(const KeyFile& file) {
  ByteWriter out;
  out.Put(kMagic);
  out.Put(kKeyFileVersion);
  out.Put(file.reads_clear ? kClearFlag : uint16_t{0});
  out.Put(static_cast<uint32_t>(file.keys.size()));
  for (const WrappedKey& key : file.keys) {
    out.Put(key.id);
    out.PutString16(key.tenant);
    out.Put(key.master);
    out.PutBytes(key.nonce);
    out.PutBytes(key.tag);
    out.PutBytes(key.secret);
  }
  out.Put(Xxh3(AsBytes(out.bytes())));
  return std::move(out).Take();
}

absl::StatusOr<KeyFile> ParseKeyFile(std::span<const uint8_t> bytes) {
  constexpr size_t kDigest = sizeof(uint64_t);
  if (bytes.size() < 8 + kDigest) return absl::DataLossError("the keys are cut short");
  ByteReader digest(bytes.last(kDigest));
  bytes = bytes.first(bytes.size() - kDigest);
  ByteReader in(bytes);
  if (in.Get<uint32_t>() != kMagic || digest.Get<uint64_t>() != Xxh3(bytes)) {
    return absl::DataLossError("the keys fail their digest");
  }
  const auto version = in.Get<uint16_t>();
  const auto flags = in.Get<uint16_t>();
  if (version != kKeyFileVersion || (flags & ~kClearFlag) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("keys of version ", version, " with flags ",
                                                      flags, " are not known here, only ",
                                                      kKeyFileVersion));
  }
  KeyFile out{.reads_clear = (flags & kClearFlag) != 0};
  const auto count = in.Get<uint32_t>();
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    WrappedKey key;
    key.id = in.Get<uint32_t>();
    key.tenant = std::string(in.GetString16());
    key.master = in.Get<uint64_t>();
    const auto nonce = in.GetBytes(key.nonce.size());
    const auto tag = in.GetBytes(key.tag.size());
    const auto secret = in.GetBytes(key.secret.size());
    if (!in.ok() || key.id == 0 || key.tenant.size() > kMaxTenantBytes) {
      return absl::DataLossError("keys whose lengths contradict each other");
    }
    std::copy(nonce.begin(), nonce.end(), key.nonce.begin());
    std::copy(tag.begin(), tag.end(), key.tag.begin());
    std::copy(secret.begin(), secret.end(), key.secret.begin());
    out.keys.push_back(std::move(key));
  }
  if (!in.ok() || in.remaining() != 0) {
    return absl::DataLossError("keys whose lengths contradict each other");
  }
  return out;
}

WrappedKey Wrap(const SecretKey& master, uint64_t master_id, uint32_t id, const std::string& tenant,
                bool reads_clear, const SecretKey& secret, const AeadNonce& nonce) {
  WrappedKey out{.id = id, .tenant = tenant, .master = master_id, .nonce = nonce};
  AeadMessage message =
      AeadMessage::ToSeal(master, nonce, AsBytes(BoundTo(id, tenant, reads_clear)));
  message.Update(secret.bytes(), out.secret.data());
  out.tag = message.Tag();
  return out;
}

absl::StatusOr<SecretKey> Unwrap(const SecretKey& master, const WrappedKey& key, bool reads_clear) {
  AeadMessage message =
      AeadMessage::ToOpen(master, key.nonce, AsBytes(BoundTo(key.id, key.tenant, reads_clear)));
  std::array<uint8_t, kAeadKeyBytes> bytes;
  message.Update(key.secret, bytes.data());
  const bool opens = message.Opens(key.tag);
  SecretKey secret(bytes);
  Cleanse(bytes);
  if (opens) return secret;
  return absl::DataLossError(absl::StrCat("data key ", key.id, " is damaged"));
}

absl::StatusOr<KeyFile> ReadKeyFile(const std::string& path) {
  const Descriptor file = Open(path, O_RDONLY);
  if (file.get() < 0) return Failed(path, errno);
  struct stat facts {};
  if (fstat(file.get(), &facts) != 0) return Failed(path, errno);
  if (static_cast<uint64_t>(facts.st_size) > kMostBytes) {
    return absl::DataLossError(absl::StrCat(path, ": far too large"));
  }
  std::string bytes(static_cast<size_t>(facts.st_size), '\0');
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t n =
        pread(file.get(), bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed(path, errno);
    if (n == 0) return absl::DataLossError(absl::StrCat(path, ": cut short"));
    at += static_cast<size_t>(n);
  }
  auto out = ParseKeyFile(AsBytes(bytes));
  if (out.ok()) return out;
  return absl::Status(out.status().code(), absl::StrCat(path, ": ", out.status().message()));
}

absl::Status WriteKeyFile(const std::string& path, const KeyFile& file) {
  const std::string unfinished = absl::StrCat(path, ".new");
  const Descriptor old = Open(path, O_WRONLY);  // stays open: its bytes go last
  {
    const Descriptor next = Open(unfinished, O_WRONLY | O_CREAT | O_TRUNC);
    if (next.get() < 0) return Failed(unfinished, errno);
    if (fchmod(next.get(), kPrivateFile) != 0 ||
        !WriteFromBegin(next.get(), AsBytes(SerializeKeyFile(file))) || fsync(next.get()) != 0) {
      return Failed(unfinished, errno);
    }
  }
  if (rename(unfinished.c_str(), path.c_str()) != 0) return Failed(path, errno);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const Descriptor names = Open(folder.empty() ? "." : folder, O_RDONLY | O_DIRECTORY);
  if (names.get() < 0 || fsync(names.get()) != 0) return Failed(folder, errno);
  struct stat facts {};
  if (old.get() < 0 || fstat(old.get(), &facts) != 0) return absl::OkStatus();
  const std::string zeros(static_cast<size_t>(facts.st_size), '\0');
  if (!WriteFromBegin(old.get(), AsBytes(zeros)) || fsync(old.get()) != 0) {
    Log().warn("{}: the old file's bytes may still be on the disk: {}", path, std::strerror(errno));
  }
  return absl::OkStatus();
}

}  // namespace kvstow
