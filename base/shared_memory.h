// Memory that two processes of one host share: made, sealed and kept by one, mapped by both.
//
// The maker's kernel object (memfd) has a fixed size: its seals forbid to shrink or grow it, so
// that an access within the mapping never faults because the other side cut the file. All of it is
// allocated when it is made, so that memory that is not there is an error then and no signal later.
//
// A value that moves; unmapped when it goes. Not thread-safe, its bytes are whoever's they are.
// Errors: RESOURCE_EXHAUSTED when there is no such memory, FAILED_PRECONDITION for a descriptor
// that is no sealed memory, UNAVAILABLE for the rest.
#ifndef KVSTOW_BASE_SHARED_MEMORY_H_
#define KVSTOW_BASE_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvstow {

inline constexpr size_t kSharedPageBytes = 4096;  // what can be mapped by itself

constexpr uint64_t RoundUpToSharedPage(uint64_t bytes) {
  return (bytes + kSharedPageBytes - 1) / kSharedPageBytes * kSharedPageBytes;
}

class SharedMemory {
 public:
  // `bytes` (at least 1) are rounded up to pages.
  static absl::StatusOr<SharedMemory> Create(uint64_t bytes);
  // Takes over `descriptor`, also when it fails.
  static absl::StatusOr<SharedMemory> Map(int descriptor);

  SharedMemory(SharedMemory&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)),
        bytes_(std::exchange(other.bytes_, {})) {}
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  std::span<uint8_t> bytes() const { return bytes_; }
  // For the other process.
  int descriptor() const { return descriptor_; }

  // Takes `range`, widened to whole pages, out of the sharing in one step; it stays where it is.
  // What we write to it from now on, the other process does not see. Where the peer kWrites, we do
  // not see that either, and what is in the range is undefined. Where it only kReads, the content
  // stays. UNAVAILABLE when it could not be done; then nothing changed.
  enum class Peer { kReads, kWrites };
  absl::Status Unshare(std::span<const uint8_t> range, Peer peer) const;

 private:
  SharedMemory(int descriptor, std::span<uint8_t> bytes) : descriptor_(descriptor), bytes_(bytes) {}
  int descriptor_;
  std::span<uint8_t> bytes_;
};

}  // namespace kvstow

#endif  // KVSTOW_BASE_SHARED_MEMORY_H_
