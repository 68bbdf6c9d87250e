#include "storage/disk/segment_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/private_folder.h"
#include "base/status_macros.h"
#include "storage/disk/async_transfers.h"
#include "storage/disk/block_pool.h"
#include "storage/disk/segment_format.h"

namespace kvstow {
namespace {

namespace fs = std::filesystem;

// The first part of a write is small, so that it is soon made; each other is three times the one
// before: every part is a call of the disk's.
constexpr size_t kFirstPartBytes = 256 << 10;
// Reads are cut less finely: the next part only begins when the one before has come, because some
// disks report no request as done before all that they have are.
constexpr size_t kReadPartBytes = 512 << 10;
constexpr char kSuffix[] = ".kvs";
constexpr char kUnfinished[] = ".tmp";

std::vector<iovec> Iovecs(std::span<const std::span<uint8_t>> buffers) {
  std::vector<iovec> out;
  for (const std::span<uint8_t> buffer : buffers) out.push_back({buffer.data(), buffer.size()});
  return out;
}

size_t Bytes(std::span<const iovec> buffers) {
  size_t out = 0;
  for (const iovec& buffer : buffers) out += buffer.iov_len;
  return out;
}

absl::Status ErrnoStatus(int error, const std::string& path) {
  const std::string text = absl::StrCat(path, ": ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return absl::ResourceExhaustedError(
        absl::StrCat(text, "; the disk is full: free space, writing resumes by itself"));
  }
  return absl::UnavailableError(text);
}

class File {
 public:
  File(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~File() { close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }
  absl::Status Failed(int error = errno) const { return ErrnoStatus(error, path_); }
  absl::Status Write(uint64_t offset, std::span<const uint8_t> bytes) const {
    while (!bytes.empty()) {
      const ssize_t n = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return Failed(n < 0 ? errno : ENOSPC);
      bytes = bytes.subspan(n);
      offset += n;
    }
    return absl::OkStatus();
  }
  // Fills `rest` one after the other.
  absl::Status Read(uint64_t offset, std::vector<iovec> rest) const {
    constexpr size_t kMaxBuffers = 64;  // of one call
    for (size_t at = 0; at < rest.size();) {
      const size_t count = std::min(kMaxBuffers, rest.size() - at);
      ssize_t n =
          preadv(fd_, rest.data() + at, static_cast<int>(count), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failed();
      if (n == 0) return absl::DataLossError(absl::StrCat(path_, ": cut short"));
      offset += n;
      for (; at < rest.size() && static_cast<size_t>(n) >= rest[at].iov_len; ++at) {
        n -= static_cast<ssize_t>(rest[at].iov_len);
      }
      if (n == 0) continue;
      rest[at].iov_base = static_cast<char*>(rest[at].iov_base) + n;
      rest[at].iov_len -= n;
    }
    return absl::OkStatus();
  }

 private:
  const int fd_;
  const std::string path_;
};

// Writes the bytes that `fill` makes, part by part.
absl::Status WriteParts(const File& file, AsyncTransfers& transfers, uint64_t offset,
                        std::span<const uint8_t> bytes, SegmentFiles::Fill fill) {
  struct Part {
    uint64_t offset;
    std::span<const uint8_t> bytes;
  };
  std::deque<Part> under_way;
  absl::Status status;
  const auto finish_first = [&] {
    const Part part = under_way.front();
    under_way.pop_front();
    if (!transfers.WaitFirst()) status.Update(file.Write(part.offset, part.bytes));
  };
  size_t size = kFirstPartBytes;
  for (size_t at = 0, end = 0; at < bytes.size() && status.ok(); at = end, size *= 3) {
    end = bytes.size() - at < size * 3 / 2 ? bytes.size() : at + size;
    fill(at, end);
    const Part part{offset + at, bytes.subspan(at, end - at)};
    if (under_way.size() == AsyncTransfers::kMost) finish_first();
    if (status.ok() && transfers.StartWrite(file.fd(), part.offset, part.bytes)) {
      under_way.push_back(part);
    } else if (status.ok()) {
      status = file.Write(part.offset, part.bytes);
    }
  }
  while (!under_way.empty()) finish_first();
  return status;
}

// Cuts buffers that are filled one after the other into parts.
class Parts {
 public:
  struct Part {
    size_t begin = 0, end = 0;
    std::vector<iovec> buffers;
  };
  explicit Parts(std::vector<iovec> buffers)
      : buffers_(std::move(buffers)), all_(Bytes(buffers_)) {}
  bool empty() const { return at_ == all_; }
  Part Next() {
    const size_t left = all_ - at_;
    Part part{at_, left < kReadPartBytes * 3 / 2 ? all_ : at_ + kReadPartBytes, {}};
    while (at_ < part.end) {
      iovec& rest = buffers_[first_];
      const size_t n = std::min(rest.iov_len, part.end - at_);
      part.buffers.push_back({rest.iov_base, n});
      rest.iov_base = static_cast<char*>(rest.iov_base) + n;
      rest.iov_len -= n;
      first_ += rest.iov_len == 0 ? 1 : 0;
      at_ += n;
    }
    return part;
  }

 private:
  std::vector<iovec> buffers_;  // what is left of them
  const size_t all_;
  size_t at_ = 0, first_ = 0;
};

// Reads part by part, and shows `use` each part while the next one is being read.
absl::Status ReadParts(const File& file, AsyncTransfers& transfers, uint64_t offset, Parts parts,
                       SegmentFiles::Use use) {
  absl::Status status;
  Parts::Part next, came;
  bool started = false;
  const auto start = [&] {
    next = parts.Next();
    started = transfers.StartRead(file.fd(), offset + next.begin, next.buffers);
  };
  start();
  while (next.end > next.begin) {
    came = std::exchange(next, {});
    if (!started || !transfers.WaitFirst()) {
      status = file.Read(offset + came.begin, std::move(came.buffers));
    }
    if (!status.ok()) return status;
    if (!parts.empty()) start();
    use(came.begin, came.end);
  }
  return absl::OkStatus();
}

class PosixSegmentFiles final : public SegmentFiles {
 public:
  PosixSegmentFiles(std::string folder, bool direct_io)
      : folder_(std::move(folder)), flags_(O_RDWR | O_CLOEXEC | (direct_io ? O_DIRECT : 0)) {}

  absl::StatusOr<std::vector<SegmentFileInfo>> List() override {
    std::error_code error = MakePrivateFolder(folder_);
    if (error) return ErrnoStatus(error.value(), folder_);
    std::vector<SegmentFileInfo> out;
    for (const auto& entry : fs::directory_iterator(folder_, error)) {
      const std::string name = entry.path().filename().string();
      if (absl::EndsWith(name, kUnfinished)) unlink(entry.path().c_str());
      uint64_t number = 0;
      if (!absl::EndsWith(name, kSuffix) ||
          !absl::SimpleAtoi(name.substr(0, name.size() - std::strlen(kSuffix)), &number) ||
          PathOf(number) != entry.path() || number == 0) {
        continue;
      }
      KVSTOW_ASSIGN_OR_RETURN(const std::shared_ptr<File> file, Open(PathOf(number), 0));
      struct stat facts {};
      if (fstat(file->fd(), &facts) != 0) return file->Failed();
      out.push_back({number, static_cast<uint64_t>(facts.st_size)});
      MutexLock lock(mu_);
      files_[number] = file;
    }
    if (error) return ErrnoStatus(error.value(), folder_);
    std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.number < b.number; });
    return out;
  }

  absl::Status Create(uint64_t number, uint64_t bytes,
                      std::span<const uint8_t> first_block) override {
    const std::string path = PathOf(number), unfinished = path + kUnfinished;
    KVSTOW_ASSIGN_OR_RETURN(const std::shared_ptr<File> file, Open(unfinished, O_CREAT | O_TRUNC));
    absl::Status made = Fill(*file, bytes, first_block);
    if (made.ok() && rename(unfinished.c_str(), path.c_str()) != 0) made = file->Failed();
    if (made.ok()) made = SyncFolder();
    if (!made.ok()) {
      unlink(unfinished.c_str());
      unlink(path.c_str());
      return made;
    }
    MutexLock lock(mu_);
    files_[number] = file;
    return absl::OkStatus();
  }

  absl::Status Write(uint64_t number, uint64_t offset, std::span<const uint8_t> bytes,
                     Fill fill) override {
    KVSTOW_ASSIGN_OR_RETURN(const std::shared_ptr<File> file, Find(number));
    if ((flags_ & O_DIRECT) == 0 || bytes.size() <= kFirstPartBytes) {
      fill(0, bytes.size());
      return file->Write(offset, bytes);
    }
    std::unique_ptr<AsyncTransfers> transfers = async_.Take();
    const absl::Status written = WriteParts(*file, *transfers, offset, bytes, fill);
    async_.Give(std::move(transfers));
    return written;
  }
  absl::Status Read(uint64_t number, uint64_t offset,
                    std::span<const std::span<uint8_t>> buffers) override {
    KVSTOW_ASSIGN_OR_RETURN(const std::shared_ptr<File> file, Find(number));
    return file->Read(offset, Iovecs(buffers));
  }
  absl::Status ReadInParts(uint64_t number, uint64_t offset,
                           std::span<const std::span<uint8_t>> buffers, Use use) override {
    KVSTOW_ASSIGN_OR_RETURN(const std::shared_ptr<File> file, Find(number));
    std::vector<iovec> all = Iovecs(buffers);
    const size_t bytes = Bytes(all);
    if ((flags_ & O_DIRECT) == 0 || bytes < kReadPartBytes * 3 / 2) {
      KVSTOW_RETURN_IF_ERROR(file->Read(offset, std::move(all)));
      use(0, bytes);
      return absl::OkStatus();
    }
    std::unique_ptr<AsyncTransfers> transfers = async_.Take();
    const absl::Status read = ReadParts(*file, *transfers, offset, Parts(std::move(all)), use);
    async_.Give(std::move(transfers));
    return read;
  }
  absl::Status Sync(uint64_t number) override {
    KVSTOW_ASSIGN_OR_RETURN(const std::shared_ptr<File> file, Find(number));
    return fdatasync(file->fd()) == 0 ? absl::OkStatus() : file->Failed();
  }
  absl::Status Remove(uint64_t number) override {
    {
      MutexLock lock(mu_);
      files_.erase(number);
    }
    const std::string path = PathOf(number);
    return unlink(path.c_str()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, path);
  }
  absl::StatusOr<uint64_t> FreeBytes() override {
    struct statvfs facts {};
    if (statvfs(folder_.c_str(), &facts) != 0) return ErrnoStatus(errno, folder_);
    return uint64_t{facts.f_bavail} * facts.f_frsize;
  }

 private:
  std::string PathOf(uint64_t number) const {
    return absl::StrFormat("%s/%06d%s", folder_, number, kSuffix);
  }
  absl::StatusOr<std::shared_ptr<File>> Open(const std::string& path, int more_flags) const {
    const int fd = open(path.c_str(), flags_ | more_flags, kPrivateFile);
    if (fd < 0) return ErrnoStatus(errno, path);
    return std::make_shared<File>(fd, path);
  }
  absl::StatusOr<std::shared_ptr<File>> Find(uint64_t number) {
    MutexLock lock(mu_);
    const auto it = files_.find(number);
    if (it == files_.end())
      return absl::NotFoundError(absl::StrCat(PathOf(number), " is not here"));
    return it->second;
  }
  absl::Status Fill(const File& file, uint64_t bytes, std::span<const uint8_t> first_block) {
    const int error = posix_fallocate(file.fd(), 0, static_cast<off_t>(bytes));
    if (error != 0) return file.Failed(error);
    const std::shared_ptr<uint8_t[]> block = AlignedBlock(first_block.size());
    std::memcpy(block.get(), first_block.data(), first_block.size());
    KVSTOW_RETURN_IF_ERROR(file.Write(0, {block.get(), first_block.size()}));
    return fsync(file.fd()) == 0 ? absl::OkStatus() : file.Failed();
  }
  absl::Status SyncFolder() const {
    const int fd = open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return ErrnoStatus(errno, folder_);
    const File folder(fd, folder_);
    return fsync(fd) == 0 ? absl::OkStatus() : folder.Failed();
  }

  const std::string folder_;
  const int flags_;
  AsyncTransfersPool async_;
  Mutex mu_;
  std::map<uint64_t, std::shared_ptr<File>> files_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<SegmentFiles> MakePosixSegmentFiles(std::string folder, bool direct_io) {
  return std::make_unique<PosixSegmentFiles>(std::move(folder), direct_io);
}

}  // namespace kvstow
