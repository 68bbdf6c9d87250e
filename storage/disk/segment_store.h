// Bodies in segment files. The store writes them past the page cache, reads them back, and knows
// the free blocks. RocksDB knows the place of each segment (storage/disk/rocks_database.h). That
// file also decides what may come back after a power cut, by the commit numbers that this class
// gives.
//
// Thread-safe; holds no lock over I/O. Several writes run at once, each in its own blocks. Errors
// are those of SegmentFiles (storage/disk/segment_files.h), and DATA_LOSS for an extent that does
// not hold the requested segment. Bodies are sealed on their way into the memory that the disk
// reads from, in place of a copy. They are opened where they were read, part by part, while the
// disk reads the next part. So ciphertext is as long as the body, and the seal goes with the
// segment's place.
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
#include "storage/seal/vault.h"

namespace kvstow {

class SegmentStore {
 public:
  // Opens the existing files; nothing in them is free before SetLive. Files without a header of
  // ours, or of another version, are named in the log and never touched. Fails with UNAVAILABLE
  // when a header cannot be read. Messages name `folder`.
  // `budget_bytes` is the intended content; it sizes the files. `vault` outlives the store.
  static absl::StatusOr<std::unique_ptr<SegmentStore>> Open(std::string folder,
                                                            std::unique_ptr<SegmentFiles> files,
                                                            uint64_t budget_bytes, Vault& vault);

  // Frees everything that lies in none of `live`, and removes files without any. Extents of `live`
  // do not overlap. Called once, before the first Write.
  void SetLive(std::vector<Extent> live);
  // Numbers commits from `last` on. Bodies of commits up to `synced` are synced. Called once,
  // before the first Write.
  void SetCommit(uint64_t last, uint64_t synced);
  // Marks `file`: an earlier process may have written to it without a sync.
  void SetDirty(uint64_t file);

  struct Body {
    SegmentId id;
    SpaceId space = 0;
    std::span<const uint8_t> bytes;
    uint64_t digest = 0;
    SealPlace seal_place() const;
  };
  // Writes bodies and numbers the commit that follows. All or nothing. The caller owns the places
  // until it gives them to Free. Without bodies it only numbers.
  struct Written {
    uint64_t commit = 0;
    std::vector<SegmentPlace> places;  // one for each body, in order
  };
  absl::StatusOr<Written> Write(std::span<const Body> bodies);

  struct Wanted {
    SegmentId id;
    SegmentPlace place;
    SpaceId space = 0;
    uint64_t digest = 0;
    SealPlace seal_place() const;
  };
  // Returns one result for each, in order: the body of this digest, checked. Reads neighbours on
  // disk in one call. Each body keeps only its own memory alive, not that of its neighbours.
  std::vector<absl::StatusOr<SharedBytes>> Read(std::span<const Wanted> wanted);

  // Checks by the stored digest that the whole extent was written, and writes it again as it is, so
  // that the next Sync syncs it: it would not sync what an earlier process wrote and failed to
  // sync. Needs no key. A sealed body that was changed in other ways than by a torn write passes,
  // and Read finds it. Called before the first Write.
  absl::Status WriteAgain(const Wanted& wanted);

  // Lets the extents be written again.
  void Free(std::span<const Extent> extents);
  // Clears the memory through which bodies went, once nobody reads them any more.
  void ClearMemory() { pool_.Renew(); }

  // Makes the bodies of all commits up to this number survive power loss. Callers that wait at the
  // same time share one sync. After a failure the system takes those bodies for synced, and a later
  // sync would answer OK without them. So no later Sync succeeds, and no Write of bodies does. Both
  // are UNAVAILABLE until a new store has written the bodies again.
  absl::Status Sync(uint64_t commit);
  // Returns the commit up to which all bodies are known to survive power loss.
  uint64_t synced();
  uint64_t last_commit();
  // The limit of the bytes written since the last sync: a crash leaves so much in doubt.
  static constexpr uint64_t kMaxUnsynced = uint64_t{64} << 20;
  bool ShouldSync();

  // Bytes of all files together, and the free bytes of them.
  uint64_t file_bytes();
  uint64_t free_bytes();
  // The bytes of freed extents that may wait before Free is called for them.
  uint64_t max_waiting_bytes() const { return max_waiting_; }

 private:
  SegmentStore(std::string folder, std::unique_ptr<SegmentFiles> files, uint64_t budget_bytes,
               Vault& vault);
  absl::Status sync_failure();
  absl::StatusOr<std::vector<Extent>> Place(std::span<const Body> bodies);
  bool Take(std::span<const Body> bodies, uint64_t total, std::vector<Extent>& out)
      KVSTOW_REQUIRES(mu_);
  absl::Status Grow(uint64_t bytes) KVSTOW_EXCLUDES(mu_);
  absl::StatusOr<std::vector<Seal>> WriteExtents(std::span<const Body> bodies,
                                                 std::span<const Extent> extents);
  void ReadRun(std::span<const Wanted> run, std::span<absl::StatusOr<SharedBytes>> out);

  const std::string folder_;
  const std::unique_ptr<SegmentFiles> files_;
  Vault& vault_;
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
  std::set<uint64_t> dirty_ KVSTOW_GUARDED_BY(mu_);   // files to sync
  absl::Status sync_failure_ KVSTOW_GUARDED_BY(mu_);  // of the first sync that failed
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_SEGMENT_STORE_H_
