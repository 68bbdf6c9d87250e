// Catalog: the spaces, and the pages with their segments, that outlive the process. It makes a
// restart warm.
//
// RocksDB keeps the catalog beside the segments, so it writes a page and its bodies in one atomic
// step. Bodies therefore reach the disk tier through the catalog. NoopCatalog remembers nothing and
// only passes bodies on. Thread-safe. Records carry a digest. Load skips, counts and leaves in
// place each record that fails its digest or has an unknown version. Such a record is never an
// error: a cache may forget.
//
// Errors are those of Tier, and name the place.
#ifndef KVSTOW_STORAGE_CATALOG_H_
#define KVSTOW_STORAGE_CATALOG_H_

#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/record.h"
#include "storage/segment.h"
#include "storage/tier.h"

namespace kvstow {

class Catalog {
 public:
  virtual ~Catalog() = default;

  // Writes the record and `bodies` in one atomic step. Replaces the record of the same page number.
  // `ack` says what the write survives once this has returned OK.
  virtual absl::Status PutPage(const PageRecord& record, std::span<const SegmentBody> bodies,
                               Ack ack) = 0;
  // Replaces the record by one with fewer facts. Forgets the bodies from there up to `had`. `ack`
  // is the weakest ack that the page was put with. The record survives what `ack` says, or kill -9.
  virtual absl::Status TruncatePage(const PageRecord& record, size_t had, Ack ack) = 0;
  // Forgets the record and its `segments` bodies; survives kill -9. A page that is not here is no
  // error. After an error the page may or may not be here. No other call brings it back. The caller
  // must call this again. The same holds for EraseSpace.
  virtual absl::Status ErasePage(PageNumber number, size_t segments) = 0;
  // Survives power loss.
  virtual absl::Status PutSpace(const SpaceRecord& space) = 0;
  // Forgets the space's record, after everything that was erased before; survives power loss. The
  // space's id still counts in Loaded::max_space. A space that is not here is no error.
  virtual absl::Status EraseSpace(SpaceId id) = 0;
  // Returns every whole record, and how many records were damaged or unknown. Called once, at
  // start.
  using Loaded = LoadedRecords;
  virtual absl::StatusOr<Loaded> Load() = 0;
  // Makes everything that was acknowledged so far survive power loss.
  virtual absl::Status Sync() = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_CATALOG_H_
