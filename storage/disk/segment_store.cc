#include "storage/disk/segment_store.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
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

// Encrypts a body while it is copied. With its last byte, the tail of the extent is known.
class BodySealer {
 public:
  // The tail keeps its size and its place.
  BodySealer(Sealing sealing, const SegmentStore::Body& body, std::string& tail)
      : sealing_(std::move(sealing)),
        body_(body),
        digest_(body.bytes.size()),
        left_(body.bytes.size()),
        tail_(tail) {}
  void Copy(std::span<const uint8_t> from, uint8_t* to) {
    constexpr size_t kPiece = 32 << 10;  // is still in the cache when it is digested
    for (size_t n; !from.empty(); from = from.subspan(n), to += n) {
      n = std::min(from.size(), kPiece);
      sealing_.Update(from.first(n), to);
      digest_.Update({to, n});
      left_ -= n;
    }
    if (left_ > 0) return;
    seal_ = sealing_.Finish();
    const std::string tail =
        ExtentTail(body_.id, static_cast<uint32_t>(body_.bytes.size()), digest_.Finish());
    std::copy(tail.begin(), tail.end(), tail_.begin());
  }
  const Seal& seal() const { return seal_; }

 private:
  Sealing sealing_;
  const SegmentStore::Body& body_;
  SealedDigest digest_;
  size_t left_;
  std::string& tail_;
  Seal seal_;
};

// Gathers bytes that go to one run of blocks, and writes them in large pieces. What is appended is
// only copied, or sealed, when it is about to be written, and stays as it is until the next call of
// Flush is over.
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
  // `sealer` is null for bytes that go as they are.
  absl::Status Append(std::span<const uint8_t> bytes, BodySealer* sealer) {
    while (!bytes.empty()) {
      const size_t n = std::min(bytes.size(), kWriteBytes - used_);
      sources_.push_back({bytes.first(n), sealer});
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
        const size_t n = std::min(source->bytes.size(), end - begin);
        if (source->sealer == nullptr) {
          std::memcpy(block_.get() + begin, source->bytes.data(), n);
        } else {
          source->sealer->Copy(source->bytes.first(n), block_.get() + begin);
        }
        begin += n;
        source->bytes = source->bytes.subspan(n);
        if (source->bytes.empty()) ++source;
      }
    };
    KVSTOW_RETURN_IF_ERROR(files_.Write(file_, offset_, {block_.get(), used_}, fill));
    sources_.clear();
    offset_ += std::exchange(used_, 0);
    return absl::OkStatus();
  }

 private:
  struct Source {
    std::span<const uint8_t> bytes;
    BodySealer* sealer;
  };

  SegmentFiles& files_;
  const std::shared_ptr<uint8_t[]> block_;
  std::vector<Source> sources_;  // what is to be at the block's front
  uint64_t file_ = 0, offset_ = 0;
  size_t used_ = 0;
};

// Decrypts a body in place as its bytes come, or checks one in clear.
class BodyOpener {
 public:
  BodyOpener(Vault& vault, const SegmentStore::Wanted& wanted) : digest_(wanted.digest) {
    if (!wanted.place.sealed()) {
      status_ = vault.MayBeClear();
      clear_.emplace();
      return;
    }
    auto opening = vault.Open(wanted.seal_place(), wanted.place.seal);
    if (opening.ok()) opening_.emplace(*std::move(opening));
    status_ = opening.status();
  }
  void Update(std::span<uint8_t> bytes) {
    if (opening_.has_value()) {
      opening_->Update(bytes, bytes.data());
    } else if (clear_.has_value()) {
      clear_->Update(bytes);
    }
  }
  absl::Status Finish() {
    if (opening_.has_value()) return opening_->Finish();
    if (!status_.ok() || clear_->Finish64() == digest_) return status_;
    return absl::DataLossError("a segment fails its digest");
  }

 private:
  const uint64_t digest_;
  absl::Status status_;
  std::optional<Opening> opening_;  // of a sealed body whose key is here
  std::optional<Xxh3Stream> clear_;
};

// Opens the bodies of a run of extents, one after the other, as the bytes of the run come.
class RunOpener {
 public:
  // What is given outlives it.
  RunOpener(Vault& vault, std::span<const SegmentStore::Wanted> run,
            std::span<const std::span<uint8_t>> extents)
      : vault_(vault), run_(run), extents_(extents), opened_(run.size()) {}

  // Takes the next bytes: they are in the extents now.
  void Use(size_t bytes) {
    while (bytes > 0) {
      const size_t body = run_[at_].place.length;
      if (!opener_.has_value()) opener_.emplace(vault_, run_[at_]);
      const size_t n = std::min(bytes, extents_[at_].size() - used_);
      if (used_ < body) {
        opener_->Update(extents_[at_].subspan(used_, std::min(n, body - used_)));
      }
      bytes -= n;
      used_ += n;
      if (used_ < extents_[at_].size()) continue;
      opened_[at_++] = opener_->Finish();
      opener_.reset();
      used_ = 0;
    }
  }
  // Returns whether body `i` is what was asked for. All bytes of the run have come.
  const absl::Status& opened(size_t i) const { return opened_[i]; }

 private:
  Vault& vault_;
  const std::span<const SegmentStore::Wanted> run_;
  const std::span<const std::span<uint8_t>> extents_;
  std::vector<absl::Status> opened_;
  size_t at_ = 0, used_ = 0;          // the extent whose bytes come, and how many of them have come
  std::optional<BodyOpener> opener_;  // of that extent, once some have
};

}  // namespace

SealPlace SegmentStore::Body::seal_place() const {
  return {.space = space, .page = id.page, .index = id.index, .digest = digest};
}

SealPlace SegmentStore::Wanted::seal_place() const {
  return {.space = space, .page = id.page, .index = id.index, .digest = digest};
}

SegmentStore::SegmentStore(std::string folder, std::unique_ptr<SegmentFiles> files,
                           uint64_t budget_bytes, Vault& vault)
    : folder_(std::move(folder)),
      files_(std::move(files)),
      vault_(vault),
      // So that there are not many more than 64 of them.
      new_file_bytes_(RoundDown(std::clamp(budget_bytes / 64, kMinFileBytes, uint64_t{16} << 30))),
      max_waiting_(std::clamp(budget_bytes / 32, uint64_t{1} << 20, uint64_t{64} << 20)),
      pool_(kPoolBytes) {}

absl::StatusOr<std::unique_ptr<SegmentStore>> SegmentStore::Open(
    std::string folder, std::unique_ptr<SegmentFiles> files, uint64_t budget_bytes, Vault& vault) {
  std::unique_ptr<SegmentStore> store(
      new SegmentStore(std::move(folder), std::move(files), budget_bytes, vault));
  KVSTOW_ASSIGN_OR_RETURN(const std::vector<SegmentFileInfo> there, store->files_->List());
  const std::shared_ptr<uint8_t[]> block = AlignedBlock(kDiskBlock);
  const std::span<uint8_t> first(block.get(), kDiskBlock);
  for (const SegmentFileInfo& file : there) {
    absl::Status ours = store->files_->Read(file.number, 0, {&first, 1});
    if (absl::IsUnavailable(ours)) ours = store->files_->Read(file.number, 0, {&first, 1});
    // Without the file, all in it would seem to be lost.
    if (absl::IsUnavailable(ours)) return ours;
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

// Returns the seal of each body. A seal is new at every write: no nonce serves two of them.
absl::StatusOr<std::vector<Seal>> SegmentStore::WriteExtents(std::span<const Body> bodies,
                                                             std::span<const Extent> extents) {
  RunWriter out(*files_, pool_);
  std::vector<std::string> tails(bodies.size());
  std::vector<std::unique_ptr<BodySealer>> sealers(bodies.size());
  for (size_t i = 0; i < bodies.size(); ++i) {
    const Body& body = bodies[i];
    KVSTOW_ASSIGN_OR_RETURN(std::optional<Sealing> sealing, vault_.Seal(body.seal_place()));
    tails[i] = ExtentTail(body.id, static_cast<uint32_t>(body.bytes.size()), body.digest);
    if (sealing.has_value()) {
      sealers[i] = std::make_unique<BodySealer>(*std::move(sealing), body, tails[i]);
    }
    KVSTOW_RETURN_IF_ERROR(out.SeekTo(extents[i]));
    KVSTOW_RETURN_IF_ERROR(out.Append(body.bytes, sealers[i].get()));
    KVSTOW_RETURN_IF_ERROR(out.Append(AsBytes(tails[i]), nullptr));
  }
  KVSTOW_RETURN_IF_ERROR(out.Flush());
  std::vector<Seal> seals(bodies.size());
  for (size_t i = 0; i < bodies.size(); ++i) {
    if (sealers[i] != nullptr) seals[i] = sealers[i]->seal();
  }
  return seals;
}

absl::StatusOr<SegmentStore::Written> SegmentStore::Write(std::span<const Body> bodies) {
  Written out;
  std::vector<Extent> extents;
  std::vector<Seal> seals;
  if (!bodies.empty()) {
    KVSTOW_RETURN_IF_ERROR(sync_failure());
    KVSTOW_ASSIGN_OR_RETURN(extents, Place(bodies));
    auto written = WriteExtents(bodies, extents);
    if (!written.ok()) {
      Free(extents);
      return written.status();
    }
    seals = *std::move(written);
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
                          .offset = extents[i].offset,
                          .seal = seals[i]});
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
  RunOpener opener(vault_, run, buffers);
  const uint64_t file = run[0].place.file, offset = run[0].place.offset;
  absl::Status read;
  if (std::any_of(run.begin(), run.end(), [](const Wanted& w) { return w.place.sealed(); })) {
    read = files_->ReadInParts(file, offset, buffers,
                               [&](size_t begin, size_t end) { opener.Use(end - begin); });
  } else {  // a digest takes less time than one more part does
    read = files_->Read(file, offset, buffers);
    for (const std::span<uint8_t> buffer : buffers) {
      if (read.ok()) opener.Use(buffer.size());
    }
  }
  // The file was removed since: whatever its place was read from is out of date.
  if (absl::IsNotFound(read)) read = absl::DataLossError(read.message());
  for (size_t i = 0; i < run.size(); ++i) {
    const uint32_t length = run[i].place.length;
    absl::Status good = read;
    if (good.ok()) good = CheckExtent(buffers[i], run[i].id, length).status();
    if (good.ok()) good = opener.opened(i);
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

absl::Status SegmentStore::WriteAgain(const Wanted& wanted) {
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
  const auto body = bytes.first(wanted.place.length);
  if (digest != (wanted.place.sealed() ? DigestOfSealed(body) : Xxh3(body))) {
    return absl::DataLossError("a segment fails its digest");
  }
  return files_->Write(extent.file, extent.offset, bytes, [](size_t, size_t) {});
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
      if (!sync_failure_.ok()) return sync_failure_;
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
    if (!synced.ok()) {
      Log().error("{}: a sync failed, and no more bodies are written until a restart: {}", folder_,
                  synced.ToString());
    }
    MutexLock lock(mu_);
    syncing_ = false;
    changed_.NotifyAll();
    if (!synced.ok()) {
      return sync_failure_ = absl::UnavailableError(absl::StrCat(
                 "a sync failed: ", synced.message(), "; check the disk and restart the server"));
    }
    synced_ = until;
    unsynced_bytes_ -= bytes;
  }
}

absl::Status SegmentStore::sync_failure() {
  MutexLock lock(mu_);
  return sync_failure_;
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
  return !syncing_ && sync_failure_.ok() && unsynced_bytes_ > kMaxUnsynced;
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
