#include "base/private_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace kvstow {
namespace {

namespace fs = std::filesystem;

std::error_code Errno() { return {errno, std::generic_category()}; }
// A file that went meanwhile needs no mode.
std::error_code UnlessGone() { return errno == ENOENT ? std::error_code() : Errno(); }

std::error_code SyncFolder(const fs::path& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Errno();
  const std::error_code error = fsync(fd) == 0 ? std::error_code() : Errno();
  close(fd);
  return error;
}

std::error_code TightenOne(const fs::path& path) {
  struct stat facts {};
  if (lstat(path.c_str(), &facts) != 0) return UnlessGone();
  constexpr mode_t kAll = 07777, kOwner = 0700;
  const bool ours = S_ISREG(facts.st_mode) || S_ISDIR(facts.st_mode);
  if (!ours || (facts.st_mode & kAll & ~kOwner) == 0) return {};
  return chmod(path.c_str(), facts.st_mode & kOwner) == 0 ? std::error_code() : UnlessGone();
}

}  // namespace

std::error_code MakePrivateFolder(const std::string& path) {
  std::error_code error;
  fs::path folder = fs::absolute(path, error).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  if (!error) fs::create_directories(folder.parent_path(), error);
  if (error) return error;
  if (mkdir(folder.c_str(), 0700) == 0) return SyncFolder(folder.parent_path());
  if (errno != EEXIST) return Errno();
  const bool there = fs::is_directory(folder, error);
  return there || error ? error : std::make_error_code(std::errc::not_a_directory);
}

std::error_code TightenFolder(const std::string& path) {
  std::error_code first = TightenOne(path), error;
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    const std::error_code one = TightenOne(it->path());
    if (!first) first = one;
  }
  return first ? first : error;
}

}  // namespace kvstow
