// Options of the disk tier.
#ifndef KVSTOW_STORAGE_DISK_ROCKS_STORE_OPTIONS_H_
#define KVSTOW_STORAGE_DISK_ROCKS_STORE_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "storage/disk/segment_files.h"
#include "storage/seal/data_keys.h"

namespace rocksdb {
class FileSystem;
}

namespace kvstow {

struct RocksOptions {
  std::string path;  // a folder; made when it does not exist
  // The bytes that the store means to keep here. This only sizes segment files (1/64 of it, within
  // [4 MiB, 16 GiB]) and RocksDB's write buffers, of at most 80 MiB.
  uint64_t budget_bytes = uint64_t{64} << 30;
  // The file system that RocksDB reads and writes files with; null = the system's own.
  std::shared_ptr<rocksdb::FileSystem> file_system = nullptr;
  // The keys that seal records and bodies.
  std::shared_ptr<DataKeys> keys = NoDataKeys();
  // Makes the segment files.
  std::function<std::unique_ptr<SegmentFiles>(const std::string& folder, bool direct_io)>
      make_files = MakePosixSegmentFiles;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_ROCKS_STORE_OPTIONS_H_
