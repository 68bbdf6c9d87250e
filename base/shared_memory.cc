#include "base/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::Status Failed(const char* what, int error) {
  const std::string text = absl::StrCat("shared memory: ", what, ": ", std::strerror(error));
  const bool room = error == ENOMEM || error == ENOSPC || error == EMFILE || error == ENFILE;
  return room ? absl::ResourceExhaustedError(text) : absl::UnavailableError(text);
}

absl::StatusOr<std::span<uint8_t>> MapAll(int descriptor, uint64_t bytes, int flags) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, descriptor, 0);
  if (at == MAP_FAILED) return Failed("mmap", errno);
  madvise(at, bytes, MADV_HUGEPAGE);  // where the system has huge pages for shared memory
  return std::span<uint8_t>(static_cast<uint8_t*>(at), bytes);
}

}  // namespace

absl::StatusOr<SharedMemory> SharedMemory::Create(uint64_t bytes) {
  bytes = RoundUpToSharedPage(bytes);
  SharedMemory memory(memfd_create("kvstow", MFD_CLOEXEC | MFD_ALLOW_SEALING), {});
  const int descriptor = memory.descriptor_;
  if (descriptor < 0) return Failed("memfd_create", errno);
  if (const int error = posix_fallocate(descriptor, 0, static_cast<off_t>(bytes)); error != 0) {
    return Failed("allocating it", error);
  }
  if (fcntl(descriptor, F_ADD_SEALS, kSeals) != 0) return Failed("sealing it", errno);
  auto mapped = MapAll(descriptor, bytes, MAP_POPULATE);
  if (!mapped.ok()) return mapped.status();
  memory.bytes_ = *mapped;
  return memory;
}

absl::StatusOr<SharedMemory> SharedMemory::Map(int descriptor) {
  SharedMemory memory(descriptor, {});
  const int seals = fcntl(descriptor, F_GET_SEALS);
  struct stat facts {};
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(descriptor, &facts) != 0 ||
      facts.st_size <= 0) {
    return absl::FailedPreconditionError("what came is no sealed shared memory");
  }
  auto mapped = MapAll(descriptor, static_cast<uint64_t>(facts.st_size), MAP_POPULATE);
  if (!mapped.ok()) return mapped.status();
  memory.bytes_ = *mapped;
  return memory;
}

SharedMemory::~SharedMemory() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status SharedMemory::Unshare(std::span<const uint8_t> range, Peer peer) const {
  if (range.empty()) return absl::OkStatus();
  const size_t first = (range.data() - bytes_.data()) / kSharedPageBytes * kSharedPageBytes;
  const size_t end = RoundUpToSharedPage(range.data() + range.size() - bytes_.data());
  // Ours by copy on write, or new pages.
  const bool copy = peer == Peer::kReads;
  void* const at = mmap(bytes_.data() + first, end - first, PROT_READ | PROT_WRITE,
                        MAP_FIXED | MAP_PRIVATE | (copy ? 0 : MAP_ANONYMOUS),
                        copy ? descriptor_ : -1, copy ? static_cast<off_t>(first) : 0);
  return at == MAP_FAILED ? Failed("mmap of a part", errno) : absl::OkStatus();
}

}  // namespace kvstow
