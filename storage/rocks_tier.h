// The disk: RocksDB holds segments (in blob files) and the catalog beside them, in one folder.
//
// One database serves both interfaces, so that a page's record and its bodies are written in one
// atomic batch. Tier and catalog share it; it closes when both are gone. docs/FORMAT.md ("Records
// at rest") gives every byte.
//
// Integrity: RocksDB's own checksums guard its metadata; bodies are read without them (its CRC32C
// is slow on this platform) and are checked by the store against the digest in the page's record.
//
// Errors of every call name the folder: RESOURCE_EXHAUSTED when the disk is full (reads go on, and
// writes work again by themselves once there is room), UNAVAILABLE for other I/O errors, DATA_LOSS
// for damaged bytes.
#ifndef KVSTOW_STORAGE_ROCKS_TIER_H_
#define KVSTOW_STORAGE_ROCKS_TIER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "storage/catalog.h"
#include "storage/tier.h"

namespace rocksdb {
class FileSystem;
}

namespace kvstow {

struct RocksOptions {
  std::string path;  // a folder; made when it is not there
  // What the store means to keep here. It only sizes write buffers: up to four of 1/32 of it, each
  // within [4 MiB, 32 MiB], are held in memory beside the store's budgets.
  uint64_t budget_bytes = uint64_t{64} << 30;
  // What RocksDB reads and writes files with; null = the system's own.
  std::shared_ptr<rocksdb::FileSystem> file_system = nullptr;
};

struct RocksStore {
  std::unique_ptr<Tier> tier;
  std::unique_ptr<Catalog> catalog;
};

// Opens or makes the store. FAILED_PRECONDITION when another process holds it (names LOCK),
// PERMISSION_DENIED or UNAVAILABLE when the folder cannot be used. A database whose metadata is
// damaged is set aside as `PATH/db.damaged-N`, with an error in the log, and a new one is made.
absl::StatusOr<RocksStore> OpenRocksStore(const RocksOptions& options);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_ROCKS_TIER_H_
