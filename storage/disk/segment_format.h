// The bytes of segments at rest: values of RocksDB's family `segments`, and the files that hold
// larger bodies. docs/FORMAT.md ("Segment files") gives every byte; golden files pin them.
//
// A body in a file fills an extent: a run of whole blocks with the body at its front and a trailer
// at its end. A sealed body lies there as it is sealed, as long as the body itself; its seal is
// with its place. Free functions over values; thread-safe. Parsing fails with DATA_LOSS for damage,
// and with FAILED_PRECONDITION for a version that this build does not know.
#ifndef KVSTOW_STORAGE_DISK_SEGMENT_FORMAT_H_
#define KVSTOW_STORAGE_DISK_SEGMENT_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/seal/seal.h"
#include "storage/segment.h"

namespace kvstow {

// The content of the file FORMAT beside RocksDB's files. Version 1 had bodies as blobs, and no such
// file.
inline constexpr char kDatabaseFormat[] = "kvstow database 2\n";
inline constexpr uint16_t kSegmentFileVersion = 1;

// The alignment of direct I/O. Every extent begins and ends at a multiple of it.
inline constexpr size_t kDiskBlock = 4096;
// Smaller bodies are values of RocksDB: their extents would be mostly padding.
inline constexpr size_t kMinExtentBody = 4096;
inline constexpr size_t kTrailerBytes = 40;

// A run of blocks of one file.
struct Extent {
  uint64_t file = 0;  // its number, from 1
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool operator==(const Extent&) const = default;
};

// Returns the size of an extent with a body of `length` bytes.
inline constexpr uint64_t ExtentBytes(uint64_t length) {
  return (length + kTrailerBytes + kDiskBlock - 1) / kDiskBlock * kDiskBlock;
}

// The place of a segment's body.
struct SegmentPlace {
  uint64_t commit = 0;  // commits are numbered in their order
  uint32_t length = 0;  // of the body
  uint64_t file = 0;    // 0 = the body is in the value itself
  uint64_t offset = 0;
  Seal seal;  // key 0 = the body is in clear
  bool operator==(const SegmentPlace&) const = default;
  bool sealed() const { return seal.key != 0; }
  Extent extent() const { return {file, offset, ExtentBytes(length)}; }
};

struct SegmentValue {
  SegmentPlace place;
  std::span<const uint8_t> body;  // the body in the value; points into the parsed bytes
};
// `key` is SegmentKey of the segment. A value under another segment's key is damage.
std::string SerializeSegmentValue(const std::string& key, const SegmentPlace& place,
                                  std::span<const uint8_t> body);
absl::StatusOr<SegmentValue> ParseSegmentValue(std::span<const uint8_t> key,
                                               std::span<const uint8_t> bytes);

// Returns the segment for which SegmentKey gives `key`.
std::optional<SegmentId> SegmentOfKey(std::span<const uint8_t> key);

// Returns the first block of file `number`.
std::string SegmentFileHeader(uint64_t number);
absl::Status CheckSegmentFileHeader(std::span<const uint8_t> block, uint64_t number);

// Digests what tells a sealed body from a torn write of it: the first 8 bytes of each 512. A disk
// writes 512 bytes whole or not at all, and ciphertext under a new nonce is nowhere as what was
// there before. Changes behind these bytes are for the seal's tag to find.
class SealedDigest {
 public:
  explicit SealedDigest(size_t body_bytes);
  // Takes the next bytes. Each call but the last takes a multiple of 512.
  void Update(std::span<const uint8_t> bytes);
  uint64_t Finish() const;

 private:
  std::vector<uint8_t> marks_;
  size_t used_ = 0;
};
uint64_t DigestOfSealed(std::span<const uint8_t> body);

// Returns the bytes after a body in its extent: zeros and the trailer. `digest` is that of the
// body as it lies there: of a sealed one, its SealedDigest.
std::string ExtentTail(SegmentId id, uint32_t length, uint64_t digest);
// Returns the digest of the body as it lies there when `extent` is that of this very segment.
absl::StatusOr<uint64_t> CheckExtent(std::span<const uint8_t> extent, SegmentId id,
                                     uint32_t length);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_SEGMENT_FORMAT_H_
