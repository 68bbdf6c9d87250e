// Frames: what binds a remote value to its place (docs/FORMAT.md, "Remote values").
//
// A value in clear has a frame with two digests. A sealed one is encrypted by the tenant's key, and
// its tag authenticates its place; nobody without the key makes one. A value that is foreign, torn,
// swapped or damaged fails with DATA_LOSS, and so does one in clear at a place where values are
// sealed: only somebody without the key put it there. FAILED_PRECONDITION: a version that this
// build does not know, or a sealed value at a place in clear.
//
// Free functions; thread-safe.
#ifndef KVSTOW_SERVICE_REMOTE_REMOTE_FRAME_H_
#define KVSTOW_SERVICE_REMOTE_REMOTE_FRAME_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/aead.h"
#include "base/shared_bytes.h"
#include "service/remote/remote_key.h"

namespace kvstow {

inline constexpr uint16_t kRemoteVersion = 1;

enum class RemoteKind : uint8_t {
  kRecord = 1,
  kSegment = 2,
  kPurge = 3,
  kSpace = 4,
  kKey = 5,
  kCalibration = 6,  // says that its parts are there
  kCalibrationPart = 7
};

// A body, with its digest where the caller knows it.
struct FramedBody {
  SharedBytes body;
  uint64_t digest = 0;  // XXH3
};
FramedBody Digested(SharedBytes body);

// Returns a value's parts. In clear they share the body; sealing takes the place of a copy. No key
// may ever see a nonce for two values; tests give their own.
std::vector<SharedBytes> FramedValue(const RemotePlace& place, RemoteKind kind, size_t index,
                                     const FramedBody& body,
                                     const AeadNonce& nonce = RandomNonce());
// Returns what a value has. A body in clear shares the value's memory. The digest of a sealed body
// is what its writer said, who had the key.
absl::StatusOr<FramedBody> OpenFramed(const RemotePlace& place, RemoteKind kind, size_t index,
                                      const SharedBytes& value);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REMOTE_FRAME_H_
