// Bodies in segment files: writes them past the page cache, reads them back, knows what is free.
// Which segment is where is RocksDB's (storage/disk/rocks_database.h); what may come back after a
// power cut is decided there too, with the commit numbers that are given here.
//
// Thread-safe; no lock is held over I/O. Several writes run at once, each in blocks of its own.
// Errors are those of SegmentFiles (storage/disk/segment_files.h) and DATA_LOSS for an extent that
// does not hold the segment asked for. Digests of bodies are written, not checked: that is the
// store's.
#ifndef KVSTOW_STORAGE_DISK_SEGMENT_STORE_H_
#define KVSTOW_STORAGE_DISK_SEGMENT_STORE_H_

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/shared_bytes.h"
#include "storage/disk/block_pool.h"
#include "storage/disk/segment_files.h"
#include "storage/disk/segment_format.h"
#include "storage/disk/segment_space.h"

namespace kvstow {

class SegmentStore {
 public:
  // Opens what is there; nothing in it is free before SetLive. Files without a header of ours, or
  // of another version, are named in the log and never touched. `folder` is for messages;
  // `budget_bytes` is what is meant to be kept: it sizes the files.
  static absl::StatusOr<std::unique_ptr<SegmentStore>> Open(std::string folder,
                                                            std::unique_ptr<SegmentFiles> files,
                                                            uint64_t budget_bytes);

  // Everything that lies in none of `live` is free from here on. Files without any are removed.
  // Extents of `live` do not overlap. Called once, before the first Write.
  void SetLive(std::vector<Extent> live);
  // Commits are numbered from `last` on, and bodies of those up to `synced` are synced. Called
  // once, before the first Write.
  void SetCommit(uint64_t last, uint64_t synced);
  // What was written to `file` by an earlier process may not have been synced.
  void SetDirty(uint64_t file);

  struct Body {
    SegmentId id;
    std::span<const uint8_t> bytes;
    uint64_t digest = 0;
  };
  // Writes bodies and numbers the commit that is to follow. All or nothing; the places are the
  // caller's until it gives them to Free. With no bodies it only numbers.
  struct Written {
    uint64_t commit = 0;
    std::vector<SegmentPlace> places;  // one for each body, in order
  };
  absl::StatusOr<Written> Write(std::span<const Body> bodies);

  struct Wanted {
    SegmentId id;
    SegmentPlace place;
  };
  // One result for each, in order; neighbours on disk are read in one call. Each body keeps memory
  // of its own alive, not that of its neighbours.
  std::vector<absl::StatusOr<SharedBytes>> Read(std::span<const Wanted> wanted);

  // Whether the whole extent is there, by the digest that was written with it.
  absl::Status CheckWhole(const Wanted& wanted);

  // The extents may be written again.
  void Free(std::span<const Extent> extents);

  // Bodies of all commits up to this number survive power loss after this. Callers that wait at the
  // same time share one sync.
  absl::Status Sync(uint64_t commit);
  // Bodies of all commits up to this number are known to survive power loss.
  uint64_t synced();
  uint64_t last_commit();
  // Bodies that were written since the last sync, and its limit: a crash leaves so much in doubt.
  static constexpr uint64_t kMaxUnsynced = uint64_t{64} << 20;
  bool ShouldSync();

  // All files together, and what of them is free.
  uint64_t file_bytes();
  uint64_t free_bytes();
  // Freed extents may wait for so many bytes before Free is called for them.
  uint64_t max_waiting_bytes() const { return max_waiting_; }

 private:
  SegmentStore(std::string folder, std::unique_ptr<SegmentFiles> files, uint64_t budget_bytes);
  absl::StatusOr<std::vector<Extent>> Place(std::span<const Body> bodies);
  bool Take(std::span<const Body> bodies, uint64_t total, std::vector<Extent>& out)
      KVSTOW_REQUIRES(mu_);
  absl::Status Grow(uint64_t bytes) KVSTOW_EXCLUDES(mu_);
  absl::Status WriteExtents(std::span<const Body> bodies, std::span<const Extent> extents);
  void ReadRun(std::span<const Wanted> run, std::span<absl::StatusOr<SharedBytes>> out);

  const std::string folder_;
  const std::unique_ptr<SegmentFiles> files_;
  const uint64_t new_file_bytes_;
  const uint64_t max_waiting_;
  BlockPool pool_;

  Mutex mu_;
  CondVar changed_;
  SegmentSpace space_ KVSTOW_GUARDED_BY(mu_);
  bool growing_ KVSTOW_GUARDED_BY(mu_) = false;
  bool syncing_ KVSTOW_GUARDED_BY(mu_) = false;
  uint64_t next_file_ KVSTOW_GUARDED_BY(mu_) = 1;
  uint64_t commit_ KVSTOW_GUARDED_BY(mu_) = 0;
  uint64_t synced_ KVSTOW_GUARDED_BY(mu_) = 0;
  uint64_t unsynced_bytes_ KVSTOW_GUARDED_BY(mu_) = 0;
  std::set<uint64_t> dirty_ KVSTOW_GUARDED_BY(mu_);  // files to sync
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_SEGMENT_STORE_H_
