#include "client/case/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

absl::Status Errno(const std::string& path, absl::string_view what) {
  return absl::ErrnoToStatus(errno, absl::StrCat(path, ": ", what));
}

// Opens a new file beside `path`, and sets its name. The umask decides who may read it.
int OpenBeside(const std::string& path, std::string& name) {
  static std::atomic<uint64_t> next = 0;
  for (;;) {
    name = absl::StrCat(path, ".", getpid(), "-", next++);
    const int fd = open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Errno(path, "cannot open it");
  const absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return Errno(path, "cannot read its size");
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(path + ": not a file");
  MappedFile file;
  file.path_ = path;
  if (info.st_size == 0) return file;
  void* const data =
      mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) return Errno(path, "cannot map it");
  file.data_ = static_cast<uint8_t*>(data);
  file.size_ = static_cast<uint64_t>(info.st_size);
  return file;
}

absl::StatusOr<MappedFile> MappedFile::Create(const std::string& path, uint64_t bytes) {
  MappedFile file;
  file.path_ = path;
  std::string temporary;
  const int fd = OpenBeside(path, temporary);
  if (fd < 0) return Errno(path, "cannot make a file beside it");
  const absl::Cleanup close_fd = [fd] { close(fd); };
  file.temporary_ = temporary;
  // Allocates the blocks, so that a full disk is an error here and no SIGBUS later.
  if (const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes)); error != 0) {
    errno = error;
    return Errno(path, absl::StrCat("cannot make it ", bytes, " bytes long"));
  }
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return Errno(path, "cannot map it");
  file.data_ = static_cast<uint8_t*>(data);
  file.size_ = bytes;
  file.writable_ = true;
  return file;
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(writable_, other.writable_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, size_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status MappedFile::Commit() {
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return Errno(path_, "cannot replace it");
  temporary_.clear();
  return absl::OkStatus();
}

}  // namespace kvstow
