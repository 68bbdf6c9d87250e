// A page as it lies in a remote store: a record, and a value for each of its segments
// (docs/FORMAT.md, "Remote values").
//
// Each value has a frame that binds it to its place: tenant, name, fingerprint and generation of
// the space, key of the page, and number of the segment. A value that is foreign, torn, swapped or
// damaged fails with DATA_LOSS. The record names the digest of each segment: a segment of another
// coding of the page fails with ABORTED. FAILED_PRECONDITION: a version that this build does not
// know.
//
// Values, and free functions over them; thread-safe.
#ifndef KVSTOW_SERVICE_REMOTE_REMOTE_PAGE_H_
#define KVSTOW_SERVICE_REMOTE_REMOTE_PAGE_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/shared_bytes.h"
#include "service/spaces/space.h"
#include "storage/record.h"
#include "storage/segment.h"

namespace kvstow {

inline constexpr uint16_t kRemoteVersion = 1;

// The name of a page among all servers: the first bytes of SHA-256 over its space and its key.
struct RemoteTag {
  std::array<uint8_t, 16> bytes{};
  bool operator==(const RemoteTag&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const RemoteTag& t) {
    return H::combine(std::move(h), t.bytes);
  }
};
RemoteTag TagOf(const Space& space, uint64_t generation, absl::string_view key);
// The same for the name of a space, whatever space has it.
RemoteTag NameTagOf(absl::string_view tenant, absl::string_view space);
// The same for the space itself, whatever its generation (remote_purge.h).
RemoteTag SpaceTagOf(const Space& space);

// Names of values. Those of one page lie together (RemoteValue).
std::string RecordName(absl::string_view prefix, const RemoteTag& tag);
std::string SegmentName(absl::string_view prefix, const RemoteTag& tag, size_t index);
std::string PurgeName(absl::string_view prefix, const RemoteTag& space);
std::string SpaceName(absl::string_view prefix, const RemoteTag& name);

enum class RemoteKind : uint8_t { kRecord = 1, kSegment = 2, kPurge = 3, kSpace = 4 };
// A value that is bound to its place, and its body when it is read back.
std::vector<SharedBytes> FramedValue(const RemoteTag& tag, RemoteKind kind, size_t index,
                                     SharedBytes body);
struct FramedBody {
  SharedBytes body;  // shares the value's memory
  uint64_t digest = 0;
};
absl::StatusOr<FramedBody> OpenFramed(const RemoteTag& tag, RemoteKind kind, size_t index,
                                      const SharedBytes& value);

// A value's parts: the frame, then the body. Number and space of the record do not travel.
std::vector<SharedBytes> RecordValue(const RemoteTag& tag, PageRecord record);
std::vector<SharedBytes> SegmentValue(const RemoteTag& tag, size_t index, const SegmentFacts& facts,
                                      const SharedBytes& body);

// Returns the encoded bytes of the page: header and segments.
uint64_t StoredBytes(const PageRecord& record);

absl::StatusOr<PageRecord> ParseRecordValue(const RemoteTag& tag, absl::string_view key,
                                            const SharedBytes& value);
// Returns the body, which shares the value's memory.
absl::StatusOr<SharedBytes> ParseSegmentValue(const RemoteTag& tag, size_t index,
                                              const SegmentFacts& facts, const SharedBytes& value);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REMOTE_PAGE_H_
