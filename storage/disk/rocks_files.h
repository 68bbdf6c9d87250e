// Files of the database's folder, and the errors of RocksDB. RocksDB's own files get mode 0600
// whatever the umask says. Our small files stay whole through power loss. Both go through RocksDB's
// file system, so tests can inject faults. Free functions; thread-safe.
#ifndef KVSTOW_STORAGE_DISK_ROCKS_FILES_H_
#define KVSTOW_STORAGE_DISK_ROCKS_FILES_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rocksdb {
class FileSystem;
class Status;
}  // namespace rocksdb

namespace kvstow {

// Returns `files` with one change: only the owner can access the files that it makes.
std::shared_ptr<rocksdb::FileSystem> PrivateFiles(std::shared_ptr<rocksdb::FileSystem> files);

// Replaces the file FOLDER/NAME by `content` in one step: power loss leaves the old content or the
// new. The new content survives power loss after this has returned. Errors are those of
// storage/disk/rocks_tier.h.
absl::Status WriteWholeFile(rocksdb::FileSystem& files, const std::string& folder,
                            absl::string_view name, absl::string_view content);

// Returns a status that names the folder: RESOURCE_EXHAUSTED when the disk is full, DATA_LOSS for
// damage, UNAVAILABLE for other I/O errors.
absl::Status FromRocks(const rocksdb::Status& status, const std::string& folder);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_ROCKS_FILES_H_
