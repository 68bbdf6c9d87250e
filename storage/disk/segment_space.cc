#include "storage/disk/segment_space.h"

#include <iterator>

namespace kvstow {

void SegmentSpace::AddFile(uint64_t number, uint64_t bytes) {
  files_[number] = bytes;
  if (bytes > kDiskBlock) Insert({number, kDiskBlock, bytes - kDiskBlock});
}

std::optional<Extent> SegmentSpace::Take(uint64_t bytes) {
  const auto it = sizes_.lower_bound({bytes, 0, 0});
  if (it == sizes_.end() || bytes == 0) return std::nullopt;
  const auto [size, file, offset] = *it;
  Remove({file, offset, size});
  if (size > bytes) Insert({file, offset + bytes, size - bytes});
  return Extent{file, offset, bytes};
}

void SegmentSpace::Give(const Extent& extent) {
  Extent run = extent;
  const auto next = runs_.find({run.file, run.offset + run.bytes});
  if (next != runs_.end()) {
    const Extent right{run.file, next->first.second, next->second};
    Remove(right);
    run.bytes += right.bytes;
  }
  const auto after = runs_.lower_bound({run.file, run.offset});
  if (after != runs_.begin()) {
    const auto before = std::prev(after);
    const Extent left{before->first.first, before->first.second, before->second};
    if (left.file == run.file && left.offset + left.bytes == run.offset) {
      Remove(left);
      run = {run.file, left.offset, left.bytes + run.bytes};
    }
  }
  Insert(run);
}

bool SegmentSpace::Contains(const Extent& extent) const {
  const auto file = files_.find(extent.file);
  return file != files_.end() && extent.offset >= kDiskBlock && extent.offset <= file->second &&
         extent.bytes <= file->second - extent.offset;
}

std::optional<uint64_t> SegmentSpace::RemoveEmptyFile(uint64_t spare) {
  if (free_ <= spare) return std::nullopt;
  for (const auto& [number, bytes] : files_) {
    const auto run = runs_.find({number, kDiskBlock});
    if (run == runs_.end() || run->second != bytes - kDiskBlock) continue;
    if (free_ - run->second < spare) continue;
    Remove({number, kDiskBlock, run->second});
    const uint64_t removed = number;
    files_.erase(removed);
    return removed;
  }
  return std::nullopt;
}

uint64_t SegmentSpace::file_bytes() const {
  uint64_t sum = 0;
  for (const auto& [number, bytes] : files_) sum += bytes;
  return sum;
}

void SegmentSpace::Insert(const Extent& run) {
  runs_[{run.file, run.offset}] = run.bytes;
  sizes_.insert({run.bytes, run.file, run.offset});
  free_ += run.bytes;
}

void SegmentSpace::Remove(const Extent& run) {
  runs_.erase({run.file, run.offset});
  sizes_.erase({run.bytes, run.file, run.offset});
  free_ -= run.bytes;
}

}  // namespace kvstow
