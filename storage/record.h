// Records: what outlives the process of a page and of a space, as values and as bytes at rest.
// docs/FORMAT.md ("Records at rest") gives every byte; golden files pin them.
//
// Values, and free functions over them; thread-safe. Parsing checks magic, digest and version
// first, and never allocates from an unchecked length. It fails with DATA_LOSS for damage, and with
// FAILED_PRECONDITION for a version that this build does not know.
#ifndef KVSTOW_STORAGE_RECORD_H_
#define KVSTOW_STORAGE_RECORD_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/segment.h"

namespace kvstow {

// A page as the catalog remembers it, with the facts of the leading segments whose bodies are on
// disk.
struct PageRecord {
  PageNumber number = 0;
  PageName name;
  SharedBytes header;
  Digest128 raw_digest;
  uint64_t raw_bytes = 0;
  uint64_t first_position = 0;
  uint32_t tokens = 0;
  std::optional<uint64_t> parent;  // PageIndex::HashOf of the previous page's name, if known
  bool whole = false;
  bool hot = false;
  std::vector<SegmentFacts> facts;  // of the segments on disk
};

struct SpaceRecord {
  SpaceId id = 0;
  SharedBytes bytes;   // opaque; the service defines them
  std::string tenant;  // that owns the space; "" = the one tenant of a server without identities
};

// The records that a catalog remembers.
struct LoadedRecords {
  std::vector<SpaceRecord> spaces;
  std::vector<PageRecord> pages;
  uint64_t damaged = 0;
  uint64_t locked = 0;        // records whose key is not here; they stay as they are
  uint64_t in_clear = 0;      // records in clear, in a store that seals
  uint64_t damaged_logs = 0;  // logs that held records, or changes of records, that are gone
  // The largest number and id that any record was filed under, including damaged records and
  // erased spaces. New ones must be larger.
  PageNumber max_page = 0;
  SpaceId max_space = 0;
};

inline constexpr uint16_t kRecordVersion = 1;
inline constexpr size_t kMaxStoreKeyBytes = 64;      // of PageName::key
inline constexpr size_t kMaxPageSegments = 1 << 15;  // of one page
inline constexpr size_t kMaxHeaderBytes = (1 << 24) - 1;

std::string SerializePageRecord(const PageRecord& record);
std::string SerializeSpaceRecord(const SpaceRecord& record);

// Copies from `bytes`.
absl::StatusOr<PageRecord> ParsePageRecord(std::span<const uint8_t> bytes);
absl::StatusOr<SpaceRecord> ParseSpaceRecord(std::span<const uint8_t> bytes);

// Keys of the records, big-endian so that they sort by number: 8 bytes for a page, 4 for a space,
// 10 (page, index) for a segment.
std::string PageRecordKey(PageNumber number);
std::string SpaceRecordKey(SpaceId id);
std::string SegmentKey(SegmentId id);
// Returns the number in a page's or a space's key; 0 when `key` has another length.
uint64_t NumberInKey(std::span<const uint8_t> key);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_RECORD_H_
