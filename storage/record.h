// Records at rest: the catalog's form of a page and of a space. docs/FORMAT.md ("Records at rest")
// gives every byte; golden files pin them.
//
// Free functions over values; thread-safe. Parsing checks magic, digest and version first, and
// never allocates from an unchecked length. It fails with DATA_LOSS for damage, and with
// FAILED_PRECONDITION for a version that this build does not know.
#ifndef KVSTOW_STORAGE_RECORD_H_
#define KVSTOW_STORAGE_RECORD_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "storage/catalog.h"

namespace kvstow {

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
