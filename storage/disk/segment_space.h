// The free blocks of the segment files. A pure data structure, no I/O; not thread-safe.
//
// Take chooses the best fit (the smallest free run that is large enough, the first of these). So a
// new file fills from front to back, and small gaps do not split large runs. Adjacent runs of one
// file become one. Take and Give cost O(log n) in the number of free runs.
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
  // Adds a new file. All of it is free except the first block.
  void AddFile(uint64_t number, uint64_t bytes);
  // Adds a file that existed before. Nothing in it is free until Give says so.
  void AddFullFile(uint64_t number, uint64_t bytes) { files_[number] = bytes; }

  std::optional<Extent> Take(uint64_t bytes);
  // `extent` must be from Take or from a full file, and must not be free.
  void Give(const Extent& extent);
  // Returns whether the extent lies in a known file, behind its first block.
  bool Contains(const Extent& extent) const;
  // Removes and returns a file that is all free, if there is one and at least `spare` bytes are
  // free without it.
  std::optional<uint64_t> RemoveEmptyFile(uint64_t spare);

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
