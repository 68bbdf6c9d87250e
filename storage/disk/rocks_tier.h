// The disk tier. It keeps bodies of segments in files of our own, past the page cache. RocksDB
// beside them holds the place of each body, small bodies, and the catalog. All of it is in one
// folder.
//
// One database (storage/disk/rocks_database.h) serves both interfaces, so a page's record and its
// bodies become visible in one atomic step. Tier and catalog share the database; it closes when
// both are gone. Calls about one page must take turns, as the store's do; other calls run at once.
// docs/FORMAT.md ("Records at rest") gives every byte.
//
// Integrity: an extent says whose body it holds, and the tier checks that. It checks a sealed body
// by its tag, which is bound to the digest in the page's record, and one in clear by that digest.
//
// With RocksOptions::keys, records and bodies are ciphertext on disk. docs/OPERATIONS.md
// ("Encryption at rest") lists what stays in clear.
//
// Folders have mode 0700 and files 0600, whatever the umask says. OpenRocksStore tightens looser
// modes in the database's folders. The folder above them keeps its mode when it exists already.
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

// Opens or makes the store. Fails with FAILED_PRECONDITION when another process holds it (names
// LOCK), and with PERMISSION_DENIED or UNAVAILABLE when the folder cannot be used. Sets a database
// with damaged metadata aside as `PATH/db.damaged-N`, and one of another version as
// `PATH/db.version-N`. It then logs an error and makes a new database. It rewrites a FORMAT that
// power loss cut short.
absl::StatusOr<RocksStore> OpenRocksStore(const RocksOptions& options);

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_ROCKS_TIER_H_
