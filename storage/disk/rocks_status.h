// Converts a status of RocksDB to absl::Status.
#ifndef KVSTOW_STORAGE_DISK_ROCKS_STATUS_H_
#define KVSTOW_STORAGE_DISK_ROCKS_STATUS_H_

#include <string>

#include "absl/status/status.h"

namespace rocksdb {
class Status;
}

namespace kvstow {

// Returns a status that names the folder: RESOURCE_EXHAUSTED when the disk is full, DATA_LOSS for
// damage, UNAVAILABLE for other I/O errors.
absl::Status FromRocks(const rocksdb::Status& status, const std::string& folder);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_ROCKS_STATUS_H_
