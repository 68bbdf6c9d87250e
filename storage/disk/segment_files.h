// The files that hold bodies of segments. This interface is what the disk tier needs of an
// operating system, so tests can replace it by power cuts, errors, and full and slow disks.
//
// Numbers name the files. Files have their full size from the start. Offsets, lengths and memory of
// reads and writes are multiples of kDiskBlock (storage/disk/segment_format.h). Thread-safe: any
// calls may run at once, but Create is the first call about a file and Remove the last.
//
// Errors name the file: RESOURCE_EXHAUSTED when the disk is full, DATA_LOSS for bytes that a file
// does not have, NOT_FOUND for a file that is not here, UNAVAILABLE for other failures.
#ifndef KVSTOW_STORAGE_DISK_SEGMENT_FILES_H_
#define KVSTOW_STORAGE_DISK_SEGMENT_FILES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvstow {

struct SegmentFileInfo {
  uint64_t number = 0;
  uint64_t bytes = 0;
};

class SegmentFiles {
 public:
  virtual ~SegmentFiles() = default;

  // Opens and returns all files that exist, by number. Called first, once. Removes what an
  // interrupted Create left.
  virtual absl::StatusOr<std::vector<SegmentFileInfo>> List() = 0;
  // Makes a file of `bytes` that begins with `first_block`. The file, its size and this block
  // survive power loss.
  virtual absl::Status Create(uint64_t number, uint64_t bytes,
                              std::span<const uint8_t> first_block) = 0;
  // Makes parts of `bytes` by `fill`, in order, and writes them. It may make one part while others
  // are being written. After a success the parts cover all of `bytes`. After a failure it makes no
  // more parts.
  using Fill = absl::FunctionRef<void(size_t begin, size_t end)>;
  virtual absl::Status Write(uint64_t number, uint64_t offset, std::span<const uint8_t> bytes,
                             Fill fill) = 0;
  // Fills `buffers` one after the other.
  virtual absl::Status Read(uint64_t number, uint64_t offset,
                            std::span<const std::span<uint8_t>> buffers) = 0;
  // The same, and shows `use` the bytes that came, part by part and in order. It may read some
  // parts while `use` has an earlier one. After a success the parts cover all bytes. After a
  // failure it shows no more parts.
  using Use = absl::FunctionRef<void(size_t begin, size_t end)>;
  virtual absl::Status ReadInParts(uint64_t number, uint64_t offset,
                                   std::span<const std::span<uint8_t>> buffers, Use use) = 0;
  // Makes everything that was written to the file before survive power loss.
  virtual absl::Status Sync(uint64_t number) = 0;
  virtual absl::Status Remove(uint64_t number) = 0;
  // Returns how many bytes Create could still take.
  virtual absl::StatusOr<uint64_t> FreeBytes() = 0;
};

// Makes files `FOLDER/000001.kvs` and so on, past the page cache where `direct_io`. List makes the
// folder.
std::unique_ptr<SegmentFiles> MakePosixSegmentFiles(std::string folder, bool direct_io);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_SEGMENT_FILES_H_
