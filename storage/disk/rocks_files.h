// Files of the database's folder: RocksDB's own, which get mode 0600 whatever the umask says, and
// small ones of ours that power loss leaves whole. Both go through RocksDB's file system, so that
// tests can put faults in its place. Free functions; thread-safe.
#ifndef KVSTOW_STORAGE_DISK_ROCKS_FILES_H_
#define KVSTOW_STORAGE_DISK_ROCKS_FILES_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rocksdb {
class FileSystem;
}

namespace kvstow {

// `files`, but what is made with it is its owner's alone.
std::shared_ptr<rocksdb::FileSystem> PrivateFiles(std::shared_ptr<rocksdb::FileSystem> files);

// The file FOLDER/NAME is `content`, in one step: power loss leaves what was there before, or this.
// What was written survives it after this returns. Errors are those of storage/disk/rocks_tier.h.
absl::Status WriteWholeFile(rocksdb::FileSystem& files, const std::string& folder,
                            absl::string_view name, absl::string_view content);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_ROCKS_FILES_H_
