#include "storage/disk/rocks_files.h"

#include <rocksdb/file_system.h>
#include <rocksdb/status.h>
#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/private_folder.h"

namespace kvstow {
namespace {

using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

class OwnersFiles final : public rocksdb::FileSystemWrapper {
 public:
  explicit OwnersFiles(std::shared_ptr<rocksdb::FileSystem> files)
      : FileSystemWrapper(std::move(files)) {}
  const char* Name() const override { return "OwnersFiles"; }

  IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* file,
                           IODebugContext* debug) override {
    return Private(target()->NewWritableFile(name, options, file, debug), name);
  }
  IOStatus NewLogger(const std::string& name, const IOOptions& options,
                     std::shared_ptr<rocksdb::Logger>* log, IODebugContext* debug) override {
    return Private(target()->NewLogger(name, options, log, debug), name);
  }
  IOStatus LockFile(const std::string& name, const IOOptions& options, rocksdb::FileLock** lock,
                    IODebugContext* debug) override {
    return Private(target()->LockFile(name, options, lock, debug), name);
  }

 private:
  // The folder keeps others out already, so a file system without modes is no error.
  static IOStatus Private(IOStatus made, const std::string& name) {
    if (made.ok()) (void)chmod(name.c_str(), kPrivateFile);
    return made;
  }
};

IOStatus WriteAndSync(rocksdb::FileSystem& files, const std::string& name,
                      absl::string_view content) {
  std::unique_ptr<rocksdb::FSWritableFile> file;
  IOStatus s = files.NewWritableFile(name, {}, &file, nullptr);
  if (s.ok()) s = file->Append(rocksdb::Slice(content.data(), content.size()), {}, nullptr);
  if (s.ok()) s = file->Fsync({}, nullptr);
  if (s.ok()) s = file->Close({}, nullptr);
  return s;
}

}  // namespace

std::shared_ptr<rocksdb::FileSystem> PrivateFiles(std::shared_ptr<rocksdb::FileSystem> files) {
  return std::make_shared<OwnersFiles>(std::move(files));
}

absl::Status WriteWholeFile(rocksdb::FileSystem& files, const std::string& folder,
                            absl::string_view name, absl::string_view content) {
  const std::string path = absl::StrCat(folder, "/", name), unfinished = path + ".tmp";
  IOStatus s = WriteAndSync(files, unfinished, content);
  if (s.ok()) s = files.RenameFile(unfinished, path, {}, nullptr);
  std::unique_ptr<rocksdb::FSDirectory> there;
  if (s.ok()) s = files.NewDirectory(folder, {}, &there, nullptr);
  if (s.ok()) s = there->FsyncWithDirOptions({}, nullptr, rocksdb::DirFsyncOptions(path));
  return FromRocks(s, path);
}

absl::Status FromRocks(const rocksdb::Status& s, const std::string& folder) {
  if (s.ok()) return absl::OkStatus();
  const std::string text = absl::StrCat(folder, ": ", s.ToString());
  if (s.IsNotFound() || s.IsPathNotFound()) return absl::NotFoundError(text);
  if (s.IsNoSpace() || s.subcode() == rocksdb::Status::kSpaceLimit) {
    return absl::ResourceExhaustedError(
        absl::StrCat(text, "; the disk is full: free space, writing resumes by itself"));
  }
  if (s.IsCorruption()) return absl::DataLossError(text);
  return absl::UnavailableError(text);
}

}  // namespace kvstow
