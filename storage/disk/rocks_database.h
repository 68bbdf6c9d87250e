// The database under the disk tier and the catalog: RocksDB for records, small bodies and the
// places of larger ones, and segment files for those. It keeps the two in step.
//
// A commit is a batch of records and values. Bodies are written first, then the batch: publish
// last. What survives a power cut: segment files are synced only for DURABLE, and after every
// 64 MiB, while RocksDB's log may survive further than that. So every value carries the number of
// its commit, and every batch the number up to which bodies were synced. Open reads back the bodies
// of later commits; from the first that is not whole, nothing of these is kept: what is lost are
// the last commits, never one in the middle, and no record stays without its bodies.
//
// A replaced or removed body's blocks are written again only after the removal was synced, so that
// a value that comes back finds its bytes. A commit that failed may still be in the log or be seen:
// it is written over with what was there before, before anything else is written. A removal that
// failed is not taken back: it is written again, before anything else is written.
//
// Thread-safe, but calls about one page must take turns. Errors are those of
// storage/disk/rocks_tier.h.
#ifndef KVSTOW_STORAGE_DISK_ROCKS_DATABASE_H_
#define KVSTOW_STORAGE_DISK_ROCKS_DATABASE_H_

#include <atomic>
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
  // Opens or makes it in `folder` with these files in place of the options'; `rocks` is what
  // RocksDB said to that.
  static absl::StatusOr<std::shared_ptr<Database>> Open(const std::string& folder,
                                                        const RocksOptions& options,
                                                        std::shared_ptr<rocksdb::FileSystem> files,
                                                        rocksdb::Status& rocks);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  const std::string& folder() const { return folder_; }
  // Logs of an earlier process that were damaged: what they held is gone.
  uint64_t damaged_logs() const;

  // One atomic step: `record` if it is not null, and `bodies`. Bodies of `record` have its digests.
  absl::Status Put(const PageRecord* record, std::span<const SegmentBody> bodies, Ack ack);
  // One atomic step: forgets segments [first, end) of the page, and replaces its record by
  // `record`, or if that is null and `first` is 0 forgets it. Survives kill -9. After an error the
  // page never comes back whole in this process, but it is gone only when this was asked again and
  // is OK.
  absl::Status Cut(PageNumber number, const PageRecord* record, size_t first, size_t end);
  // Forgets bodies alone. Survives kill -9.
  absl::Status EraseBodies(std::span<const SegmentId> ids);
  // Both survive power loss. What was erased before a space goes first.
  absl::Status PutSpace(const SpaceRecord& space);
  absl::Status EraseSpace(SpaceId id);
  SpaceId last_erased_space();  // the largest id; 0 = none was
  std::vector<absl::StatusOr<SharedBytes>> Read(std::span<const SegmentId> ids);
  // Everything that was written before survives power loss after this.
  absl::Status Sync();

  // Calls `each` for every key and value of a family, in order. The status is of the medium.
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
           rocksdb::DB* db, std::vector<rocksdb::ColumnFamilyHandle*> families);
  // What an earlier process left: which blocks are free, and what is to be forgotten.
  absl::Status Recover();
  // The first commit of `doubtful`, which are sorted by commit, that is not whole; 0 = all are.
  uint64_t FirstTorn(std::span<const Found> doubtful);
  // Forgets segments, and what of their pages stands behind them.
  absl::Status Forget(std::span<const Found> found);
  // Of two values that claim one block the later commit wrote it; the others are forgotten.
  void ForgetOverwritten(std::vector<Found>& found);

  absl::StatusOr<std::string> Get(Family family, const std::string& key);
  // Changes of one call, made by Put and Delete, which read what was there, and then applied.
  struct Commit;
  void Put(Commit& commit, Family family, std::string key, const std::string& value);
  void Delete(Commit& commit, Family family, std::string key);
  void Remember(Commit& commit, Family family, std::string key);
  void KeepRemoval(Commit& commit);  // when it fails, it is written again and not taken back
  absl::Status Apply(Commit& commit, Ack ack);
  // Fails when the batch is not sure to be kept; it may be seen all the same.
  absl::Status Write(Batch& batch, Ack ack);
  // After a log failed (storage/disk/rocks_logs.h).
  absl::Status MendLogs();
  // A power cut may take the unsynced end of a log and leave what is in the next one: a hole. So
  // nothing in a log is acknowledged before the logs before it are synced. (A write with `sync`
  // syncs them itself.)
  absl::Status SyncOlderLogs();
  absl::Status SyncLogs();
  // Adds up to which commit bodies are synced.
  void AddSynced(Batch& batch);
  // The extents are free once it is synced that nothing refers to them.
  void FreeLater(std::vector<Extent> extents);
  absl::Status FreeNow();
  // Writes over failed commits what is to be there.
  absl::Status SettleFailed();
  void AddSettled(const Commit& commit, Batch& batch);
  absl::StatusOr<SegmentStore::Written> WriteBodies(std::span<const SegmentStore::Body> bodies,
                                                    Ack ack);

  const std::string folder_;
  const std::unique_ptr<rocksdb::Env> env_;
  const std::shared_ptr<LogWatch> logs_;
  const std::unique_ptr<rocksdb::DB> db_;
  const std::vector<rocksdb::ColumnFamilyHandle*> families_;
  std::unique_ptr<SegmentStore> segments_;
  bool verify_blocks_ = false;            // see the constructor
  std::atomic<uint64_t> synced_logs_{0};  // logs_->begun() when logs were last synced

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
