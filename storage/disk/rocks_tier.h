// The disk: bodies of segments in files of our own, past the page cache; RocksDB beside them holds
// where each is, small bodies, and the catalog, all in one folder.
//
// One database (storage/disk/rocks_database.h) serves both interfaces, so that a page's record and
// its bodies become visible in one atomic step. Tier and catalog share it; it closes when both are
// gone. Calls about one page must take turns, as the store's do; others run at once. docs/FORMAT.md
// ("Records at rest") gives every byte.
//
// Integrity: an extent says whose body it holds, and that is checked here; the body's bytes are
// checked by the store against the digest in the page's record.
//
// Folders have mode 0700 and files 0600, whatever the umask says; what was left open is closed when
// it is opened. The folder above them keeps its mode when it is there already.
//
// Errors of every call name the folder: RESOURCE_EXHAUSTED when the disk is full (reads go on, and
// writes work again by themselves once there is room), UNAVAILABLE for other I/O errors, DATA_LOSS
// for damaged bytes.
#ifndef KVSTOW_STORAGE_DISK_ROCKS_TIER_H_
#define KVSTOW_STORAGE_DISK_ROCKS_TIER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "storage/catalog.h"
#include "storage/disk/rocks_store_options.h"
#include "storage/tier.h"

namespace kvstow {

struct RocksStore {
  std::unique_ptr<Tier> tier;
  std::unique_ptr<Catalog> catalog;
};

// Opens or makes the store. FAILED_PRECONDITION when another process holds it (names LOCK),
// PERMISSION_DENIED or UNAVAILABLE when the folder cannot be used. A database whose metadata is
// damaged is set aside as `PATH/db.damaged-N`, one of another version as `PATH/db.version-N`, with
// an error in the log, and a new one is made. A FORMAT that power loss cut short is written again.
absl::StatusOr<RocksStore> OpenRocksStore(const RocksOptions& options);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_ROCKS_TIER_H_
