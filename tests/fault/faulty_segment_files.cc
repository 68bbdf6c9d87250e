#include "tests/fault/faulty_segment_files.h"

#include <rocksdb/io_status.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "storage/disk/block_pool.h"
#include "storage/disk/segment_format.h"

namespace kvstow {

class FaultySegmentFiles final : public SegmentFiles {
 public:
  FaultySegmentFiles(std::shared_ptr<FaultyFileSystem> system, std::string folder, bool direct_io)
      : system_(std::move(system)),
        folder_(std::move(folder)),
        files_(MakePosixSegmentFiles(folder_, direct_io)) {}

  absl::StatusOr<std::vector<SegmentFileInfo>> List() override {
    KVSTOW_ASSIGN_OR_RETURN(std::vector<SegmentFileInfo> out, files_->List());
    MutexLock lock(system_->mu_);
    for (const SegmentFileInfo& file : out) {
      // After kill -9 it is known what was not synced.
      system_->files_.try_emplace(
          NameOf(file.number),
          FaultyFileSystem::FileState{
              .written = file.bytes, .synced = file.bytes, .named = true, .replaced = {}});
    }
    return out;
  }
  absl::Status Create(uint64_t number, uint64_t bytes,
                      std::span<const uint8_t> first_block) override {
    const std::string name = NameOf(number);
    {
      MutexLock lock(system_->mu_);
      system_->files_[name] = {};
    }
    absl::Status made = Of(system_->BeforeWrite(name, bytes));
    if (made.ok()) made = files_->Create(number, bytes, first_block);
    MutexLock lock(system_->mu_);
    if (made.ok()) {
      system_->files_[name] = {.written = bytes, .synced = bytes, .named = true, .replaced = {}};
    } else {
      system_->files_.erase(name);
    }
    return made;
  }
  absl::Status Write(uint64_t number, uint64_t offset, std::span<const uint8_t> bytes,
                     Fill fill) override {
    const std::string name = NameOf(number);
    KVSTOW_RETURN_IF_ERROR(Of(system_->BeforeWrite(name, 0)));
    const std::shared_ptr<uint8_t[]> before = AlignedBlock(bytes.size());
    const std::span<uint8_t> buffer(before.get(), bytes.size());
    KVSTOW_RETURN_IF_ERROR(files_->Read(number, offset, {&buffer, 1}));
    KVSTOW_RETURN_IF_ERROR(files_->Write(number, offset, bytes, fill));
    MutexLock lock(system_->mu_);
    if (system_->cut_) return Of(rocksdb::IOStatus::IOError("injected: the power is cut"));
    FaultyFileSystem::FileState& file = system_->files_[name];
    for (size_t at = 0; at < buffer.size(); at += kDiskBlock) {
      const auto on_disk = file.unsyncable.extract(offset + at);
      if (!on_disk.empty()) std::copy_n(on_disk.mapped().begin(), kDiskBlock, buffer.data() + at);
    }
    file.overwritten.push_back({offset, {buffer.begin(), buffer.end()}});
    return absl::OkStatus();
  }
  absl::Status Read(uint64_t number, uint64_t offset,
                    std::span<const std::span<uint8_t>> buffers) override {
    KVSTOW_RETURN_IF_ERROR(Of(system_->BeforeReadOfBodies()));
    KVSTOW_RETURN_IF_ERROR(files_->Read(number, offset, buffers));
    for (const std::span<uint8_t> buffer : buffers) {
      system_->MayFlip(buffer.data(), buffer.size());
    }
    return absl::OkStatus();
  }
  absl::Status ReadInParts(uint64_t number, uint64_t offset,
                           std::span<const std::span<uint8_t>> buffers, Use use) override {
    KVSTOW_RETURN_IF_ERROR(Of(system_->BeforeReadOfBodies()));
    // Every part is a read of its own: it may fail, and it may have a flipped bit.
    absl::Status status;
    const absl::Status read =
        files_->ReadInParts(number, offset, buffers, [&](size_t begin, size_t end) {
          if (begin > 0 && status.ok()) status = Of(system_->BeforeReadOfBodies());
          if (!status.ok()) return;
          MayFlip(buffers, begin, end);
          use(begin, end);
        });
    return status.ok() ? read : status;
  }
  absl::Status Sync(uint64_t number) override {
    const std::string name = NameOf(number);
    KVSTOW_RETURN_IF_ERROR(Of(system_->BeforeWrite(name, 0)));
    return Of(system_->SyncBodies(name));
  }
  absl::Status Remove(uint64_t number) override {
    MutexLock lock(system_->mu_);
    if (system_->cut_) return absl::UnavailableError("injected: the power is cut");
    system_->files_.erase(NameOf(number));
    return files_->Remove(number);
  }
  absl::StatusOr<uint64_t> FreeBytes() override {
    KVSTOW_ASSIGN_OR_RETURN(const uint64_t bytes, files_->FreeBytes());
    MutexLock lock(system_->mu_);
    const uint64_t used = system_->Used(), all = system_->space_bytes;
    return std::min(bytes, used < all ? all - used : 0);
  }

 private:
  // Flips a bit of the bytes [begin, end) of the buffers, or none.
  void MayFlip(std::span<const std::span<uint8_t>> buffers, size_t begin, size_t end) {
    for (const std::span<uint8_t> buffer : buffers) {
      const size_t from = std::min(begin, buffer.size()), to = std::min(end, buffer.size());
      if (from < to) system_->MayFlip(buffer.data() + from, to - from);
      begin -= from;
      end -= to;
    }
  }
  static absl::Status Of(const rocksdb::IOStatus& s) {
    if (s.ok()) return absl::OkStatus();
    if (s.IsNoSpace()) return absl::ResourceExhaustedError(s.ToString());
    return absl::UnavailableError(s.ToString());
  }
  std::string NameOf(uint64_t number) const {
    return std::filesystem::path(absl::StrFormat("%s/%06d.kvs", folder_, number))
        .lexically_normal()
        .string();
  }

  const std::shared_ptr<FaultyFileSystem> system_;
  const std::string folder_;
  const std::unique_ptr<SegmentFiles> files_;
};

std::function<std::unique_ptr<SegmentFiles>(const std::string& folder, bool direct_io)>
FaultySegmentFilesOf(std::shared_ptr<FaultyFileSystem> system) {
  return [system = std::move(system)](const std::string& folder, bool direct_io) {
    return std::make_unique<FaultySegmentFiles>(system, folder, direct_io);
  };
}

}  // namespace kvstow
