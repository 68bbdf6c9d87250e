// Which blocks of the segment files are free. A pure data structure, no I/O; not thread-safe.
//
// Space is taken best fit (the smallest free run that is large enough, the first of these), so a
// new file fills from front to back, and small gaps do not split large runs. Runs of one file that
// touch are one. O(log n) in the number of free runs.
#ifndef KVSTOW_STORAGE_DISK_SEGMENT_SPACE_H_
#define KVSTOW_STORAGE_DISK_SEGMENT_SPACE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "storage/disk/segment_format.h"

namespace kvstow {

class SegmentSpace {
 public:
  // A new file: all of it is free, but the first block.
  void AddFile(uint64_t number, uint64_t bytes);
  // A file that was there before, of which nothing is free until Give says so.
  void AddFullFile(uint64_t number, uint64_t bytes) { files_[number] = bytes; }

  std::optional<Extent> Take(uint64_t bytes);
  // `extent` must have been taken, or be of a full file, and must not be free.
  void Give(const Extent& extent);
  // Whether it lies in a file that is here, behind its first block.
  bool Contains(const Extent& extent) const;
  // A file that is all free, if there is one and more than `keep` bytes are free without it. It is
  // not here any more after this.
  std::optional<uint64_t> RemoveEmptyFile(uint64_t keep);

  const std::map<uint64_t, uint64_t>& files() const { return files_; }  // number -> bytes
  uint64_t free_bytes() const { return free_; }
  uint64_t file_bytes() const;

 private:
  using Place = std::pair<uint64_t, uint64_t>;  // file, offset
  void Insert(const Extent& run);
  void Remove(const Extent& run);

  std::map<uint64_t, uint64_t> files_;                        // number -> bytes
  std::map<Place, uint64_t> runs_;                            // -> bytes
  std::set<std::tuple<uint64_t, uint64_t, uint64_t>> sizes_;  // bytes, file, offset
  uint64_t free_ = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_SEGMENT_SPACE_H_
