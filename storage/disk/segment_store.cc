#include "storage/disk/segment_store.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

// The bytes of one write call.
constexpr size_t kWriteBytes = 2 << 20;
// The memory kept for the next reads and writes.
constexpr size_t kPoolBytes = 32 << 20;
constexpr uint64_t kMinFileBytes = 4 << 20;
// The most bytes left for RocksDB's own files when the disk fills up.
constexpr uint64_t kReserve = 64 << 20;

uint64_t RoundDown(uint64_t bytes) { return bytes / kDiskBlock * kDiskBlock; }

// Gathers bytes that go to one run of blocks, and writes them in large pieces. What is appended is
// only copied when it is about to be written, and stays as it is until the next call of Flush is
// over.
class RunWriter {
 public:
  RunWriter(SegmentFiles& files, BlockPool& pool) : files_(files), block_(pool.Take(kWriteBytes)) {}

  absl::Status SeekTo(const Extent& extent) {
    if (extent.file == file_ && extent.offset == offset_ + used_) return absl::OkStatus();
    KVSTOW_RETURN_IF_ERROR(Flush());
    file_ = extent.file;
    offset_ = extent.offset;
    return absl::OkStatus();
  }
  absl::Status Append(std::span<const uint8_t> bytes) {
    while (!bytes.empty()) {
      const size_t n = std::min(bytes.size(), kWriteBytes - used_);
      sources_.push_back(bytes.first(n));
      bytes = bytes.subspan(n);
      used_ += n;
      if (used_ == kWriteBytes) KVSTOW_RETURN_IF_ERROR(Flush());
    }
    return absl::OkStatus();
  }
  absl::Status Flush() {
    if (used_ == 0) return absl::OkStatus();
    auto source = sources_.begin();
    const auto fill = [&](size_t begin, size_t end) {
      while (begin < end) {
        const size_t n = std::min(source->size(), end - begin);
        std::memcpy(block_.get() + begin, source->data(), n);
        begin += n;
        *source = source->subspan(n);
        if (source->empty()) ++source;
      }
    };
    KVSTOW_RETURN_IF_ERROR(files_.Write(file_, offset_, {block_.get(), used_}, fill));
    sources_.clear();
    offset_ += std::exchange(used_, 0);
    return absl::OkStatus();
  }

 private:
  SegmentFiles& files_;
  const std::shared_ptr<uint8_t[]> block_;
  std::vector<std::span<const uint8_t>> sources_;  // what is to be at the block's front
  uint64_t file_ = 0, offset_ = 0;
  size_t used_ = 0;
};

}  // namespace

SegmentStore::SegmentStore(std::string folder, std::unique_ptr<SegmentFiles> files,
                           uint64_t budget_bytes)
    : folder_(std::move(folder)),
      files_(std::move(files)),
      // So that there are not many more than 64 of them.
      new_file_bytes_(RoundDown(std::clamp(budget_bytes / 64, kMinFileBytes, uint64_t{16} << 30))),
      max_waiting_(std::clamp(budget_bytes / 32, uint64_t{1} << 20, uint64_t{64} << 20)),
      pool_(kPoolBytes) {}

absl::StatusOr<std::unique_ptr<SegmentStore>> SegmentStore::Open(
    std::string folder, std::unique_ptr<SegmentFiles> files, uint64_t budget_bytes) {
  std::unique_ptr<SegmentStore> store(
      new SegmentStore(std::move(folder), std::move(files), budget_bytes));
  KVSTOW_ASSIGN_OR_RETURN(const std::vector<SegmentFileInfo> there, store->files_->List());
  const std::shared_ptr<uint8_t[]> block = AlignedBlock(kDiskBlock);
  const std::span<uint8_t> first(block.get(), kDiskBlock);
  for (const SegmentFileInfo& file : there) {
    absl::Status ours = store->files_->Read(file.number, 0, {&first, 1});
    if (ours.ok()) ours = CheckSegmentFileHeader(first, file.number);
    MutexLock lock(store->mu_);
    store->next_file_ = std::max(store->next_file_, file.number + 1);
    if (ours.ok()) {
      store->space_.AddFullFile(file.number, RoundDown(file.bytes));
    } else {
      Log().error("{}: file {} is left alone: {}", store->folder_, file.number, ours.ToString());
    }
  }
  return store;
}

void SegmentStore::SetLive(std::vector<Extent> live) {
  std::sort(live.begin(), live.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
  });
  std::vector<uint64_t> empty;
  {
    MutexLock lock(mu_);
    auto it = live.begin();
    for (const auto& [file, bytes] : space_.files()) {
      uint64_t end = kDiskBlock;
      while (it != live.end() && it->file < file) ++it;
      for (; it != live.end() && it->file == file; ++it) {
        if (!space_.Contains(*it)) continue;
        if (it->offset > end) space_.Give({file, end, it->offset - end});
        end = it->offset + it->bytes;
      }
      if (end < bytes) space_.Give({file, end, bytes - end});
    }
    while (const auto file = space_.RemoveEmptyFile(0)) empty.push_back(*file);
  }
  for (const uint64_t file : empty) files_->Remove(file).IgnoreError();
}

void SegmentStore::SetCommit(uint64_t last, uint64_t synced) {
  MutexLock lock(mu_);
  commit_ = last;
  synced_ = synced;
}

void SegmentStore::SetDirty(uint64_t file) {
  MutexLock lock(mu_);
  dirty_.insert(file);
}

bool SegmentStore::Take(std::span<const Body> bodies, uint64_t total, std::vector<Extent>& out) {
  out.clear();
  if (const auto all = space_.Take(total)) {
    uint64_t offset = all->offset;
    for (const Body& body : bodies) {
      out.push_back({all->file, offset, ExtentBytes(body.bytes.size())});
      offset += out.back().bytes;
    }
    return true;
  }
  if (bodies.size() == 1) return false;
  for (const Body& body : bodies) {
    const auto one = space_.Take(ExtentBytes(body.bytes.size()));
    if (!one.has_value()) {
      for (const Extent& taken : out) space_.Give(taken);
      out.clear();
      return false;
    }
    out.push_back(*one);
  }
  return true;
}

absl::StatusOr<std::vector<Extent>> SegmentStore::Place(std::span<const Body> bodies) {
  uint64_t total = 0;
  for (const Body& body : bodies) total += ExtentBytes(body.bytes.size());
  std::vector<Extent> out;
  for (;;) {
    {
      MutexLock lock(mu_);
      while (!Take(bodies, total, out) && growing_) changed_.Wait(mu_);
      if (!out.empty()) return out;
      growing_ = true;
    }
    const absl::Status grown = Grow(total);
    MutexLock lock(mu_);
    growing_ = false;
    changed_.NotifyAll();
    if (!grown.ok()) return grown;
  }
}

// Makes a file with room for `bytes`.
absl::Status SegmentStore::Grow(uint64_t bytes) {
  const uint64_t least = bytes + kDiskBlock;
  uint64_t size = std::max(new_file_bytes_, least), number = 0;
  KVSTOW_ASSIGN_OR_RETURN(const uint64_t free, files_->FreeBytes());
  // RocksDB goes on while bodies find no room: it takes little, but does not recover by itself at
  // once.
  const uint64_t reserve = std::min(new_file_bytes_, kReserve);
  if (free < size + reserve) size = free < least + reserve ? 0 : RoundDown(free - reserve);
  if (size == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat(folder_, ": the disk is full (", free,
                     " bytes are free): free space, writing resumes by itself"));
  }
  {
    MutexLock lock(mu_);
    number = next_file_++;
  }
  KVSTOW_RETURN_IF_ERROR(files_->Create(number, size, AsBytes(SegmentFileHeader(number))));
  MutexLock lock(mu_);
  space_.AddFile(number, size);
  return absl::OkStatus();
}

absl::Status SegmentStore::WriteExtents(std::span<const Body> bodies,
                                        std::span<const Extent> extents) {
  RunWriter out(*files_, pool_);
  std::vector<std::string> tails(bodies.size());
  for (size_t i = 0; i < bodies.size(); ++i) {
    KVSTOW_RETURN_IF_ERROR(out.SeekTo(extents[i]));
    KVSTOW_RETURN_IF_ERROR(out.Append(bodies[i].bytes));
    const auto length = static_cast<uint32_t>(bodies[i].bytes.size());
    tails[i] = ExtentTail(bodies[i].id, length, bodies[i].digest);
    KVSTOW_RETURN_IF_ERROR(out.Append(AsBytes(tails[i])));
  }
  return out.Flush();
}

absl::StatusOr<SegmentStore::Written> SegmentStore::Write(std::span<const Body> bodies) {
  Written out;
  std::vector<Extent> extents;
  if (!bodies.empty()) {
    KVSTOW_ASSIGN_OR_RETURN(extents, Place(bodies));
    const absl::Status written = WriteExtents(bodies, extents);
    if (!written.ok()) {
      Free(extents);
      return written;
    }
  }
  MutexLock lock(mu_);
  for (const Extent& extent : extents) {
    dirty_.insert(extent.file);
    unsynced_bytes_ += extent.bytes;
  }
  // Numbered after the last byte was written: whoever syncs for a later commit syncs this one too.
  out.commit = ++commit_;
  for (size_t i = 0; i < extents.size(); ++i) {
    out.places.push_back({.commit = out.commit,
                          .length = static_cast<uint32_t>(bodies[i].bytes.size()),
                          .file = extents[i].file,
                          .offset = extents[i].offset});
  }
  return out;
}

void SegmentStore::ReadRun(std::span<const Wanted> run,
                           std::span<absl::StatusOr<SharedBytes>> out) {
  std::vector<std::shared_ptr<uint8_t[]>> blocks;
  std::vector<std::span<uint8_t>> buffers;
  for (const Wanted& one : run) {
    const size_t bytes = one.place.extent().bytes;
    blocks.push_back(pool_.Take(bytes));
    buffers.emplace_back(blocks.back().get(), bytes);
  }
  const absl::Status read = files_->Read(run[0].place.file, run[0].place.offset, buffers);
  for (size_t i = 0; i < run.size(); ++i) {
    const uint32_t length = run[i].place.length;
    absl::Status good = read;
    // The file was removed since: whatever its place was read from is out of date.
    if (absl::IsNotFound(good)) good = absl::DataLossError(good.message());
    if (good.ok()) good = CheckExtent(buffers[i], run[i].id, length).status();
    if (good.ok()) {
      out[i] = SharedBytes(std::move(blocks[i]), buffers[i].first(length));
    } else {
      out[i] = good;
    }
  }
}

std::vector<absl::StatusOr<SharedBytes>> SegmentStore::Read(std::span<const Wanted> wanted) {
  std::vector<absl::StatusOr<SharedBytes>> out(
      wanted.size(), absl::DataLossError("the segment's place is in no segment file"));
  std::vector<bool> there;
  {
    MutexLock lock(mu_);
    for (const Wanted& one : wanted) there.push_back(space_.Contains(one.place.extent()));
  }
  for (size_t first = 0; first < wanted.size();) {
    size_t end = first + 1;
    for (; there[first] && end < wanted.size() && there[end]; ++end) {
      const Extent before = wanted[end - 1].place.extent();
      if (wanted[end].place.file != before.file) break;
      if (wanted[end].place.offset != before.offset + before.bytes) break;
    }
    if (there[first]) ReadRun(wanted.subspan(first, end - first), {&out[first], end - first});
    first = end;
  }
  return out;
}

absl::Status SegmentStore::CheckWhole(const Wanted& wanted) {
  const Extent extent = wanted.place.extent();
  {
    MutexLock lock(mu_);
    if (!space_.Contains(extent)) return absl::DataLossError("a place in no segment file");
  }
  const std::shared_ptr<uint8_t[]> block = pool_.Take(extent.bytes);
  const std::span<uint8_t> bytes(block.get(), extent.bytes);
  KVSTOW_RETURN_IF_ERROR(files_->Read(extent.file, extent.offset, {&bytes, 1}));
  KVSTOW_ASSIGN_OR_RETURN(const uint64_t digest,
                          CheckExtent(bytes, wanted.id, wanted.place.length));
  if (Xxh3(bytes.first(wanted.place.length)) == digest) return absl::OkStatus();
  return absl::DataLossError("a segment fails its digest");
}

void SegmentStore::Free(std::span<const Extent> extents) {
  std::vector<uint64_t> empty;
  {
    MutexLock lock(mu_);
    for (const Extent& extent : extents) {
      if (space_.Contains(extent)) space_.Give(extent);
    }
    // Blocks that were written before are faster to write than new ones: some are kept.
    while (const auto file = space_.RemoveEmptyFile(2 * max_waiting_ + new_file_bytes_)) {
      dirty_.erase(*file);
      empty.push_back(*file);
    }
  }
  for (const uint64_t file : empty) files_->Remove(file).IgnoreError();
}

absl::Status SegmentStore::Sync(uint64_t commit) {
  for (;;) {
    std::set<uint64_t> files;
    uint64_t until = 0, bytes = 0;
    {
      MutexLock lock(mu_);
      while (syncing_ && synced_ < commit) changed_.Wait(mu_);
      if (synced_ >= commit) return absl::OkStatus();
      syncing_ = true;
      until = commit_;
      bytes = unsynced_bytes_;
      files.swap(dirty_);
    }
    absl::Status synced;
    for (const uint64_t file : files) {
      const absl::Status one = files_->Sync(file);
      if (!absl::IsNotFound(one)) synced.Update(one);  // removed: nothing in it is wanted
    }
    MutexLock lock(mu_);
    syncing_ = false;
    changed_.NotifyAll();
    if (!synced.ok()) {
      dirty_.merge(files);
      return synced;
    }
    synced_ = until;
    unsynced_bytes_ -= bytes;
  }
}

uint64_t SegmentStore::synced() {
  MutexLock lock(mu_);
  return synced_;
}

uint64_t SegmentStore::last_commit() {
  MutexLock lock(mu_);
  return commit_;
}

bool SegmentStore::ShouldSync() {
  MutexLock lock(mu_);
  return !syncing_ && unsynced_bytes_ > kMaxUnsynced;
}

uint64_t SegmentStore::file_bytes() {
  MutexLock lock(mu_);
  return space_.file_bytes();
}

uint64_t SegmentStore::free_bytes() {
  MutexLock lock(mu_);
  return space_.free_bytes();
}

}  // namespace kvstow
