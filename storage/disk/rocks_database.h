// The database under the disk tier and the catalog. RocksDB holds records, small bodies and the
// places of larger bodies. Segment files hold the larger bodies. The database keeps the two in
// step.
//
// A commit is a batch of records and values. The database writes the bodies first, then the batch:
// publish last. It syncs segment files only for DURABLE, and after every 64 MiB, while RocksDB's
// log may survive a power cut further than that. So every value carries the number of its commit,
// and every batch carries the number up to which bodies were synced. Open reads back the bodies of
// later commits, and writes them again. It keeps nothing from the first of them that is not whole:
// a power cut loses the last commits, never one in the middle, and no record stays without its
// bodies.
//
// The blocks of a replaced or removed body are written again only after the removal was synced, so
// a value that comes back finds its bytes. A failed commit may still be in the log or be visible.
// Before the database writes another page or body, it writes over that commit with what was there
// before. It does not take back a failed removal: it writes the removal again at that point.
//
// Records and bodies are sealed on their way to the disk (storage/seal/vault.h), where there are
// keys. Whatever recovery does needs none of them.
//
// Thread-safe, but calls about one page must take turns. Errors are those of
// storage/disk/rocks_tier.h.
#ifndef KVSTOW_STORAGE_DISK_ROCKS_DATABASE_H_
#define KVSTOW_STORAGE_DISK_ROCKS_DATABASE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/shared_bytes.h"
#include "storage/catalog.h"
#include "storage/disk/rocks_options.h"
#include "storage/disk/rocks_store_options.h"
#include "storage/disk/segment_store.h"
#include "storage/seal/vault.h"

namespace rocksdb {
class ColumnFamilyHandle;
class DB;
class Env;
class Iterator;
class Status;
class WriteBatch;
}  // namespace rocksdb

namespace kvstow {

class LogWatch;

// Keys of the family `default`.
inline constexpr char kSyncedKey[] = "synced";
inline constexpr char kErasedSpaceKey[] = "erased_space";

class Database {
 public:
  // Opens or makes the database in `folder`. `files` takes the place of the options' file system.
  // `rocks` receives RocksDB's own status.
  static absl::StatusOr<std::shared_ptr<Database>> Open(const std::string& folder,
                                                        const RocksOptions& options,
                                                        std::shared_ptr<rocksdb::FileSystem> files,
                                                        rocksdb::Status& rocks);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  const std::string& folder() const { return folder_; }
  Vault& vault() { return vault_; }
  // Returns the number of damaged logs of an earlier process. Their content is gone.
  uint64_t damaged_logs() const;

  // Writes `record`, if it is not null, and `bodies` in one atomic step. Bodies of `record` have
  // its digests.
  absl::Status Put(const PageRecord* record, std::span<const SegmentBody> bodies, Ack ack);
  // Forgets segments [first, end) of the page in one atomic step, and replaces its record by
  // `record`. When that is null and `first` is 0, it forgets the record. Survives kill -9. After an
  // error the page never comes back whole in this process. It is gone only when the caller repeats
  // the call and gets OK.
  absl::Status Cut(PageNumber number, const PageRecord* record, size_t first, size_t end);
  // Forgets bodies alone. Survives kill -9.
  absl::Status EraseBodies(std::span<const SegmentId> ids);
  // Both survive power loss. What was erased before a space goes first. A space that cannot be
  // sealed is not put, and that is no error.
  absl::Status PutSpace(const SpaceRecord& space);
  absl::Status EraseSpace(SpaceId id);
  SpaceId last_erased_space();  // the largest id; 0 = none was erased
  // Bodies of a page whose space was never put belong to the tenant "".
  std::vector<absl::StatusOr<SharedBytes>> Read(std::span<const ExpectedSegment> expected);
  // Makes everything that was written before survive power loss.
  absl::Status Sync();

  // Calls `each` for every key and value of a family, in order. The status is that of the medium.
  absl::Status Scan(Family family, const std::function<void(std::span<const uint8_t> key,
                                                            std::span<const uint8_t> value)>& each);

 private:
  // A value of the family `segments` as a scan finds it.
  struct Found {
    SegmentId id;
    SegmentPlace place;
  };
  using Batch = rocksdb::WriteBatch;

  Database(std::string folder, std::unique_ptr<rocksdb::Env> env, std::shared_ptr<LogWatch> logs,
           rocksdb::DB* db, std::vector<rocksdb::ColumnFamilyHandle*> families,
           std::shared_ptr<DataKeys> keys);
  // Takes over what an earlier process left: finds the free blocks, and forgets what must go. After
  // OK all that is left survives power loss.
  absl::Status Recover();
  // Returns the first commit of `doubtful`, sorted by commit, that is not whole; 0 = all are whole.
  // Writes those before it again. Fails when it cannot read or write one of them.
  absl::StatusOr<uint64_t> FirstTorn(std::span<const Found> doubtful);
  // Forgets segments, and the segments behind them in their pages.
  absl::Status Forget(std::span<const Found> found);
  // When two values claim one block, the later commit wrote it. Forgets the other value.
  absl::Status ForgetOverwritten(std::vector<Found>& found);

  absl::StatusOr<std::string> Get(Family family, const std::string& key);
  // The changes of one call. Put and Delete add them and read what was there. Put fails when that
  // cannot be read: it could not be put back. Apply writes the changes.
  struct Commit;
  absl::Status Put(Commit& commit, Family family, std::string key, const std::string& value);
  void Delete(Commit& commit, Family family, std::string key);
  absl::Status Remember(Commit& commit, Family family, std::string key);
  absl::Status AddPage(Commit& commit, const PageRecord* record,
                       std::span<const SegmentStore::Body> bodies,
                       const SegmentStore::Written& written);
  void ConfirmRemoval(Commit& commit);  // a removal that fails is written again, not taken back
  absl::Status Apply(Commit& commit, Ack ack);
  // Fails when the batch is not sure to be kept. It may be visible all the same.
  absl::Status Write(Batch& batch, Ack ack);
  // Repairs the logs after one failed (storage/disk/rocks_logs.h).
  absl::Status MendLogs();
  absl::Status SyncLogs();
  // Adds the number of the commit up to which bodies are synced.
  void AddSynced(Batch& batch);
  // Frees the extents once it is synced that nothing refers to them.
  void FreeLater(std::vector<Extent> extents);
  absl::Status FreeNow();
  // Writes over failed commits with their settled state.
  absl::Status SettleFailed();
  void AddSettled(const Commit& commit, Batch& batch);
  absl::StatusOr<SegmentStore::Written> WriteBodies(std::span<const SegmentStore::Body> bodies,
                                                    Ack ack);
  absl::StatusOr<std::string> SmallValue(const SegmentStore::Body& body, const std::string& key,
                                         uint64_t commit);
  absl::StatusOr<SharedBytes> OpenSmall(const ExpectedSegment& expected, const SegmentPlace& place,
                                        std::string value);

  const std::string folder_;
  const std::unique_ptr<rocksdb::Env> env_;
  const std::shared_ptr<LogWatch> logs_;
  const std::unique_ptr<rocksdb::DB> db_;
  const std::vector<rocksdb::ColumnFamilyHandle*> families_;
  Vault vault_;
  std::unique_ptr<SegmentStore> segments_;
  bool verify_blocks_ = false;  // see the constructor

  Mutex spaces_mu_;  // taken before the others
  Mutex mend_mu_;    // taken before mu_
  Mutex mu_;
  std::vector<Extent> waiting_ KVSTOW_GUARDED_BY(mu_);  // to be freed
  uint64_t waiting_bytes_ KVSTOW_GUARDED_BY(mu_) = 0;
  std::vector<Commit> failed_ KVSTOW_GUARDED_BY(mu_);
  bool settling_ KVSTOW_GUARDED_BY(mu_) = false;
  CondVar settled_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_DISK_ROCKS_DATABASE_H_
