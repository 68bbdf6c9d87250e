#include "tests/fault/faulty_file_system.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

namespace kvstow {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

namespace {

namespace fs = std::filesystem;

IOStatus Cut() { return IOStatus::IOError("injected: the power is cut"); }
IOStatus Failed() { return IOStatus::IOError("injected: I/O error"); }

constexpr uint64_t kBlock = 4096;

// RocksDB writes names with and without doubled slashes.
std::string Plain(const std::string& name) { return fs::path(name).lexically_normal().string(); }

bool IsLog(const std::string& name) { return name.ends_with(".log"); }

std::string Contents(const std::string& name) {
  std::ifstream in(name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

class FaultyWritableFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  FaultyWritableFile(FaultyFileSystem& system, std::string name,
                     std::unique_ptr<FSWritableFile> file, uint64_t size)
      : FSWritableFileOwnerWrapper(std::move(file)),
        system_(system),
        name_(std::move(name)),
        size_(size) {}

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    return Write(size_ + data.size(), [&] { return target()->Append(data, options, debug); });
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const rocksdb::DataVerificationInfo&,
                  IODebugContext* debug) override {
    return Append(data, options, debug);
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            IODebugContext* debug) override {
    return Write(std::max(size_, offset + data.size()),
                 [&] { return target()->PositionedAppend(data, offset, options, debug); });
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            const rocksdb::DataVerificationInfo&, IODebugContext* debug) override {
    return PositionedAppend(data, offset, options, debug);
  }
  IOStatus Truncate(uint64_t size, const IOOptions& options, IODebugContext* debug) override {
    if (IOStatus s = system_.BeforeWrite(name_, 0); !s.ok()) return s;
    IOStatus s = target()->Truncate(size, options, debug);
    if (s.ok()) system_.Truncated(name_, size_ = size);
    return s;
  }
  // Nothing here really loses power: what counts is what was asked for.
  IOStatus Sync(const IOOptions&, IODebugContext*) override { return Persist(); }
  IOStatus Fsync(const IOOptions&, IODebugContext*) override { return Persist(); }
  IOStatus RangeSync(uint64_t, uint64_t, const IOOptions&, IODebugContext*) override {
    return IOStatus::OK();
  }

 private:
  template <typename Call>
  IOStatus Write(uint64_t end, Call call) {
    if (IOStatus s = system_.BeforeWrite(name_, end); !s.ok()) return s;
    IOStatus s = call();
    if (s.ok()) system_.Written(name_, size_ = end);
    return s;
  }
  IOStatus Persist() {
    IOStatus s = system_.BeforeWrite(name_, 0);
    return s.ok() ? system_.Sync(name_) : s;
  }

  FaultyFileSystem& system_;
  const std::string name_;
  uint64_t size_;  // RocksDB appends and truncates from one thread at a time
};

// A file that was made after the power was cut: making it seems to work, using it does not. RocksDB
// 7.8 loses count of its references when it cannot make a log file, and asserts when it is closed.
class DeadFile final : public rocksdb::FSWritableFile {
 public:
  using FSWritableFile::Append;
  IOStatus Append(const Slice&, const IOOptions&, IODebugContext*) override { return Cut(); }
  IOStatus Truncate(uint64_t, const IOOptions&, IODebugContext*) override { return Cut(); }
  IOStatus Close(const IOOptions&, IODebugContext*) override { return Cut(); }
  IOStatus Flush(const IOOptions&, IODebugContext*) override { return Cut(); }
  IOStatus Sync(const IOOptions&, IODebugContext*) override { return Cut(); }
};

class FaultyRandomAccessFile final : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  FaultyRandomAccessFile(FaultyFileSystem& system, std::unique_ptr<FSRandomAccessFile> file)
      : FSRandomAccessFileOwnerWrapper(std::move(file)), system_(system) {}

  IOStatus Read(uint64_t offset, size_t n, const IOOptions& options, Slice* result, char* scratch,
                IODebugContext* debug) const override {
    if (IOStatus s = system_.BeforeRead(); !s.ok()) return s;
    IOStatus s = target()->Read(offset, n, options, result, scratch, debug);
    if (!s.ok() || result->empty()) return s;
    if (result->data() != scratch) std::memmove(scratch, result->data(), result->size());
    *result = Slice(scratch, result->size());
    system_.MayFlip(reinterpret_cast<uint8_t*>(scratch), result->size());
    return s;
  }
  IOStatus MultiRead(rocksdb::FSReadRequest* requests, size_t count, const IOOptions& options,
                     IODebugContext* debug) override {
    for (size_t i = 0; i < count; ++i) {
      rocksdb::FSReadRequest& r = requests[i];
      r.status = Read(r.offset, r.len, options, &r.result, r.scratch, debug);
    }
    return IOStatus::OK();
  }
  // Nothing may come in past Read.
  IOStatus Prefetch(uint64_t, size_t, const IOOptions&, IODebugContext*) override {
    return IOStatus::NotSupported("every read is one call");
  }

 private:
  FaultyFileSystem& system_;
};

class FaultyDirectory final : public rocksdb::FSDirectoryWrapper {
 public:
  FaultyDirectory(FaultyFileSystem& system, std::string name,
                  std::unique_ptr<rocksdb::FSDirectory> directory)
      : FSDirectoryWrapper(std::move(directory)), system_(system), name_(std::move(name)) {}

  IOStatus Fsync(const IOOptions&, IODebugContext*) override {
    IOStatus s = system_.BeforeWrite(name_, 0);
    return s.ok() ? system_.FolderSynced(name_) : s;
  }
  IOStatus FsyncWithDirOptions(const IOOptions& options, IODebugContext* debug,
                               const rocksdb::DirFsyncOptions&) override {
    return Fsync(options, debug);
  }

 private:
  FaultyFileSystem& system_;
  const std::string name_;
};

FaultyFileSystem::FaultyFileSystem(uint64_t seed)
    : FileSystemWrapper(rocksdb::FileSystem::Default()), random_(seed) {}

void FaultyFileSystem::CutPower() {
  MutexLock lock(mu_);
  cut_ = true;
  changed_.NotifyAll();
}

void FaultyFileSystem::CutPowerAfter(uint64_t writes) {
  MutexLock lock(mu_);
  writes_left_ = writes;
}

void FaultyFileSystem::CutPowerAfterNewLog(uint64_t writes) {
  MutexLock lock(mu_);
  writes_after_log_ = writes;
}

void FaultyFileSystem::PowerOn() {
  MutexLock lock(mu_);
  for (const auto& [name, state] : files_) {
    if (cut_ && !(worst_order && IsLog(name))) Lose(name, state);
  }
  if (cut_ && worst_order) LoseInWorstOrder();
  std::error_code error;
  std::erase_if(files_, [&](const auto& file) { return !fs::exists(file.first, error); });
  for (auto& [name, state] : files_) {
    const uint64_t size = fs::file_size(name, error);
    state = {.written = size, .synced = size, .named = true, .replaced = {}};
  }
  cut_ = false;
  writes_left_ = writes_after_log_ = 0;
}

void FaultyFileSystem::LoseWhatIsUnknown(const std::string& folder) {
  MutexLock lock(mu_);
  for (const auto& file : fs::recursive_directory_iterator(folder)) {
    if (file.is_regular_file() && !files_.contains(Plain(file.path()))) {
      fs::resize_file(file.path(), 0);
    }
  }
}

void FaultyFileSystem::Lose(const std::string& name, const FileState& state) {
  std::error_code error;
  if (!fs::exists(name, error)) return;
  if (!state.named && random_() % 2 == 0) {
    fs::remove(name, error);
    if (state.replaced.has_value()) std::ofstream(name, std::ios::binary) << *state.replaced;
    return;
  }
  std::fstream file(name, std::ios::binary | std::ios::in | std::ios::out);
  for (auto it = state.overwritten.rbegin(); it != state.overwritten.rend(); ++it) {
    const uint64_t fate = random_() % 4, blocks = it->before.size() / kBlock;
    const uint64_t stays = fate < 2 ? blocks : fate == 2 ? 0 : random_() % (blocks + 1);
    file.seekp(static_cast<std::streamoff>(it->offset + stays * kBlock));
    file.write(reinterpret_cast<const char*>(it->before.data()) + stays * kBlock,
               static_cast<std::streamsize>((blocks - stays) * kBlock));
  }
  for (const auto& [offset, before] : state.unsyncable) {
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(reinterpret_cast<const char*>(before.data()), kBlock);
  }
  file.close();
  const uint64_t size = fs::file_size(name, error);
  if (state.synced >= size) return;
  const uint64_t kind = random_() % (IsLog(name) ? 3 : 2);
  const uint64_t end = kind == 0 ? state.synced : state.synced + random_() % (size - state.synced);
  fs::resize_file(name, end, error);
  if (kind == 2) fs::resize_file(name, size, error);
}

// Names of logs count upwards, so the newest is the last.
void FaultyFileSystem::LoseInWorstOrder() {
  std::error_code error;
  bool newest = true;
  for (auto it = files_.rbegin(); it != files_.rend(); ++it) {
    const auto& [name, state] = *it;
    if (!IsLog(name) || !fs::exists(name, error) || std::exchange(newest, false)) continue;
    if (state.named) {
      fs::resize_file(name, state.synced, error);
    } else {
      fs::remove(name, error);
    }
  }
}

uint64_t FaultyFileSystem::Used() {
  uint64_t used = 0;
  for (const auto& [name, state] : files_) used += state.written;
  return used;
}

uint64_t FaultyFileSystem::used_bytes() {
  MutexLock lock(mu_);
  return Used();
}

void FaultyFileSystem::Stall(bool& which, bool stall) {
  MutexLock lock(mu_);
  which = stall;
  changed_.NotifyAll();
}

void FaultyFileSystem::WaitOut(const bool& which) {
  ++stalled_;
  changed_.NotifyAll();
  while (which && !cut_) changed_.Wait(mu_);
  --stalled_;
}

void FaultyFileSystem::WaitForStalled() {
  MutexLock lock(mu_);
  while (stalled_ == 0) changed_.Wait(mu_);
}

IOStatus FaultyFileSystem::BeforeWrite(const std::string& name, uint64_t end) {
  MutexLock lock(mu_);
  if (writes_stalled_) WaitOut(writes_stalled_);
  if (writes_left_ > 0 && --writes_left_ == 0) cut_ = true;
  if (cut_) return Cut();
  if (OneIn(write_errors_one_in) || (IsLog(name) && OneIn(log_errors_one_in))) {
    ++errors_;
    return Failed();
  }
  const auto file = files_.find(name);
  if (file == files_.end() || end <= file->second.written) return IOStatus::OK();
  if (Used() + end - file->second.written <= space_bytes) return IOStatus::OK();
  ++errors_;
  return IOStatus::NoSpace("injected: no space left on device");
}

IOStatus FaultyFileSystem::BeforeRead() {
  MutexLock lock(mu_);
  if (reads_stalled_) WaitOut(reads_stalled_);
  if (cut_) return Cut();
  if (!OneIn(read_errors_one_in)) return IOStatus::OK();
  ++errors_;
  return Failed();
}

void FaultyFileSystem::FailReadsOfBodies(uint64_t pass, uint64_t fail) {
  MutexLock lock(mu_);
  reads_to_pass_ = pass;
  reads_to_fail_ = fail;
}

IOStatus FaultyFileSystem::BeforeReadOfBodies() {
  {
    MutexLock lock(mu_);
    if (reads_to_pass_ > 0) {
      --reads_to_pass_;
    } else if (reads_to_fail_ > 0) {
      --reads_to_fail_;
      ++errors_;
      return Failed();
    }
  }
  return BeforeRead();
}

void FaultyFileSystem::MayFlip(uint8_t* bytes, size_t size) {
  MutexLock lock(mu_);
  if (!OneIn(flips_one_in)) return;
  bytes[random_() % size] ^= static_cast<uint8_t>(1 << random_() % 8);
  ++flips_;
}

void FaultyFileSystem::Written(const std::string& name, uint64_t end) {
  MutexLock lock(mu_);
  if (const auto it = files_.find(name); it != files_.end()) it->second.written = end;
}

void FaultyFileSystem::Truncated(const std::string& name, uint64_t size) {
  MutexLock lock(mu_);
  const auto it = files_.find(name);
  if (it == files_.end()) return;
  it->second.written = size;
  it->second.synced = std::min(it->second.synced, size);
}

IOStatus FaultyFileSystem::Sync(const std::string& name) {
  MutexLock lock(mu_);
  if (syncs_of_logs_fail && IsLog(name)) {
    ++errors_;
    return Failed();
  }
  const auto it = files_.find(name);
  if (it == files_.end()) return IOStatus::OK();
  const uint64_t written = it->second.written;  // what comes while it runs is not promised
  const size_t overwritten = it->second.overwritten.size();
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(sync_millis);
  for (auto now = end; !cut_ && (now = std::chrono::steady_clock::now()) < end;) {
    changed_.WaitFor(mu_, end - now);
  }
  if (cut_) return Cut();
  if (const auto file = files_.find(name); file != files_.end()) {
    file->second.synced = std::max(file->second.synced, written);
    auto& list = file->second.overwritten;
    list.erase(list.begin(), list.begin() + std::min(overwritten, list.size()));
  }
  return IOStatus::OK();
}

IOStatus FaultyFileSystem::SyncBodies(const std::string& name) {
  if (!syncs_of_bodies_fail) return Sync(name);
  MutexLock lock(mu_);
  FileState& file = files_[name];
  for (const Overwritten& write : file.overwritten) {
    for (size_t at = 0; at < write.before.size(); at += kBlock) {
      const auto block = write.before.begin() + static_cast<std::ptrdiff_t>(at);
      file.unsyncable.try_emplace(write.offset + at, block, block + kBlock);
    }
  }
  file.overwritten.clear();
  ++errors_;
  return Failed();
}

IOStatus FaultyFileSystem::FolderSynced(const std::string& folder) {
  MutexLock lock(mu_);
  if (cut_) return Cut();
  for (auto& [name, state] : files_) {
    if (fs::path(name).parent_path() != folder) continue;
    state.named = true;
    state.replaced.reset();
  }
  return IOStatus::OK();
}

IOStatus FaultyFileSystem::Track(const std::string& name, IOStatus made,
                                 std::unique_ptr<rocksdb::FSWritableFile>* file) {
  if (!made.ok()) return made;
  std::error_code error;
  const uint64_t size = fs::file_size(name, error);
  *file = std::make_unique<FaultyWritableFile>(*this, name, std::move(*file), error ? 0 : size);
  return made;
}

IOStatus FaultyFileSystem::NewWritableFile(const std::string& name, const Options& options,
                                           std::unique_ptr<rocksdb::FSWritableFile>* file,
                                           Debug* debug) {
  const std::string plain = Plain(name);
  if (IOStatus s = BeforeWrite(plain, 0); !s.ok()) {
    MutexLock lock(mu_);
    if (!cut_) return s;
    *file = std::make_unique<DeadFile>();
    return IOStatus::OK();
  }
  IOStatus made = target()->NewWritableFile(name, options, file, debug);
  if (made.ok()) {
    MutexLock lock(mu_);
    files_[plain] = {};
    if (writes_after_log_ > 0 && IsLog(plain)) {
      writes_left_ = std::exchange(writes_after_log_, 0);
    }
  }
  return Track(plain, std::move(made), file);
}

IOStatus FaultyFileSystem::ReopenWritableFile(const std::string& name, const Options& options,
                                              std::unique_ptr<rocksdb::FSWritableFile>* file,
                                              Debug* debug) {
  const std::string plain = Plain(name);
  if (IOStatus s = BeforeWrite(plain, 0); !s.ok()) return s;
  IOStatus made = target()->ReopenWritableFile(name, options, file, debug);
  if (made.ok()) {
    std::error_code error;
    const uint64_t size = fs::file_size(plain, error);
    MutexLock lock(mu_);
    if (!files_.contains(plain)) {
      files_[plain] = {.written = size, .synced = size, .named = true, .replaced = {}};
    }
  }
  return Track(plain, std::move(made), file);
}

IOStatus FaultyFileSystem::NewRandomAccessFile(const std::string& name, const Options& options,
                                               std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                               Debug* debug) {
  IOStatus opened = target()->NewRandomAccessFile(name, options, file, debug);
  if (opened.ok()) *file = std::make_unique<FaultyRandomAccessFile>(*this, std::move(*file));
  return opened;
}

IOStatus FaultyFileSystem::NewDirectory(const std::string& name, const IOOptions& options,
                                        std::unique_ptr<rocksdb::FSDirectory>* directory,
                                        Debug* debug) {
  IOStatus opened = target()->NewDirectory(name, options, directory, debug);
  if (opened.ok()) {
    *directory = std::make_unique<FaultyDirectory>(*this, Plain(name), std::move(*directory));
  }
  return opened;
}

IOStatus FaultyFileSystem::DeleteFile(const std::string& name, const IOOptions& options,
                                      Debug* debug) {
  MutexLock lock(mu_);
  if (cut_) return Cut();
  IOStatus s = target()->DeleteFile(name, options, debug);
  if (s.ok()) files_.erase(Plain(name));
  return s;
}

IOStatus FaultyFileSystem::RenameFile(const std::string& from, const std::string& to,
                                      const IOOptions& options, Debug* debug) {
  MutexLock lock(mu_);
  if (cut_) return Cut();
  std::optional<std::string> replaced;
  if (std::error_code error; fs::is_regular_file(to, error)) replaced = Contents(to);
  IOStatus s = target()->RenameFile(from, to, options, debug);
  if (!s.ok()) return s;
  const auto it = files_.find(Plain(from));
  if (it == files_.end()) return s;  // a folder, or from before the last PowerOn
  FileState state = it->second;
  files_.erase(it);
  state.named = false;
  state.replaced = std::move(replaced);
  files_[Plain(to)] = std::move(state);
  return s;
}

IOStatus FaultyFileSystem::GetFreeSpace(const std::string& path, const IOOptions& options,
                                        uint64_t* bytes, Debug* debug) {
  IOStatus s = target()->GetFreeSpace(path, options, bytes, debug);
  MutexLock lock(mu_);
  const uint64_t used = Used(), all = space_bytes;
  *bytes = std::min(*bytes, used < all ? all - used : 0);
  return s;
}

}  // namespace kvstow
