// Memory that two processes of one host share. One makes, seals and keeps it; both map it.
//
// The kernel's object (memfd) has a fixed size: its seals forbid to shrink or grow it. So the other
// side cannot cut the file and make an access within the mapping fault. All of it is allocated when
// it is made: missing memory is an error then, and no signal later.
//
// A value that moves; it unmaps when it goes. Not thread-safe; the users of the bytes agree on who
// uses them.
// Errors: RESOURCE_EXHAUSTED when there is not so much memory, FAILED_PRECONDITION for a descriptor
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

inline constexpr size_t kSharedPageBytes = 4096;  // the least that can be mapped by itself

constexpr uint64_t RoundUpToSharedPage(uint64_t bytes) {
  return (bytes + kSharedPageBytes - 1) / kSharedPageBytes * kSharedPageBytes;
}

class SharedMemory {
 public:
  // Rounds `bytes` (at least 1) up to pages.
  static absl::StatusOr<SharedMemory> Create(uint64_t bytes);
  // Takes over `descriptor`, also when it fails.
  static absl::StatusOr<SharedMemory> Map(int descriptor);

  SharedMemory(SharedMemory&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)),
        bytes_(std::exchange(other.bytes_, {})) {}
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  std::span<uint8_t> bytes() const { return bytes_; }
  // Returns the descriptor for the other process.
  int descriptor() const { return descriptor_; }

  // Takes `range`, widened to whole pages, out of the sharing in one step. It stays at its address.
  // The other process sees nothing that this one writes there from now on. Where the peer kWrites,
  // this process does not see its writes either, and the content is undefined. Where the peer only
  // kReads, the content stays. After an error nothing changed.
  enum class Peer { kReads, kWrites };
  absl::Status Unshare(std::span<const uint8_t> range, Peer peer) const;

 private:
  SharedMemory(int descriptor, std::span<uint8_t> bytes) : descriptor_(descriptor), bytes_(bytes) {}
  int descriptor_;
  std::span<uint8_t> bytes_;
};

}  // namespace kvstow

#endif  // KVSTOW_BASE_SHARED_MEMORY_H_
