// A catalog: what must outlive the process so that a restart is warm: spaces, and which page has
// which segments.
//
// RocksDB keeps it beside the segments, so that a page and its bodies are written in one atomic
// step; the catalog is therefore how bodies reach the disk tier. NoopCatalog remembers nothing and
// only passes bodies on. Thread-safe. Records carry a digest; one that fails it, or of an unknown
// version, is skipped and counted by Load, left as it is, and never an error: a cache may forget.
//
// Errors are those of Tier, and name the place.
#ifndef KVSTOW_STORAGE_CATALOG_H_
#define KVSTOW_STORAGE_CATALOG_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/segment.h"
#include "storage/tier.h"

namespace kvstow {

// A page as the catalog remembers it: facts of the leading segments whose bodies are on disk.
struct PageRecord {
  PageNumber number = 0;
  PageName name;
  SharedBytes header;
  Digest128 raw_digest;
  uint64_t raw_bytes = 0;
  uint64_t first_position = 0;
  uint32_t tokens = 0;
  std::optional<uint64_t> parent;  // PageIndex::HashOf the name of the page before it, if known
  bool whole = false;
  bool hot = false;
  std::vector<SegmentFacts> facts;  // only those on disk
};

struct SpaceRecord {
  SpaceId id = 0;
  SharedBytes bytes;  // opaque: the service's
};

class Catalog {
 public:
  virtual ~Catalog() = default;

  // Writes the record and `bodies` in one atomic step; replaces the record of the same page number.
  // `ack`: what the write must survive once this returned OK.
  virtual absl::Status PutPage(const PageRecord& record, std::span<const SegmentBody> bodies,
                               Ack ack) = 0;
  // Replaces the record by one with fewer facts, and forgets the bodies from there up to `had`.
  // `ack`: the weakest that the page was put with; the record survives that or kill -9.
  virtual absl::Status TruncatePage(const PageRecord& record, size_t had, Ack ack) = 0;
  // Forgets the record and its `segments` bodies; survives kill -9. A page that is not here is no
  // error. After an error it is here or not, no other call brings it back, and it is to be asked
  // for again: so with EraseSpace.
  virtual absl::Status ErasePage(PageNumber number, size_t segments) = 0;
  // Survives power loss.
  virtual absl::Status PutSpace(const SpaceRecord& space) = 0;
  // Forgets the space's record, after everything that was erased before; survives power loss. Its
  // id still counts in Loaded::max_space. A space that is not here is no error.
  virtual absl::Status EraseSpace(SpaceId id) = 0;
  // Everything that is whole; called once, at start. Returns how many records were damaged or
  // unknown.
  struct Loaded {
    std::vector<SpaceRecord> spaces;
    std::vector<PageRecord> pages;
    uint64_t damaged = 0;
    uint64_t damaged_logs = 0;  // which held records, or changes of them, that are gone
    // The largest that any record was filed under, damaged ones and erased spaces included: new
    // ones must be larger.
    PageNumber max_page = 0;
    SpaceId max_space = 0;
  };
  virtual absl::StatusOr<Loaded> Load() = 0;
  // Everything acknowledged so far survives power loss after this.
  virtual absl::Status Sync() = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_CATALOG_H_
