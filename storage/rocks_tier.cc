#include "storage/rocks_tier.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/listener.h>
#include <rocksdb/write_batch.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "storage/record.h"
#include "storage/rocks_options.h"

namespace kvstow {
namespace {

namespace fs = std::filesystem;

// No number that was ever given is larger; a damaged key may look so.
constexpr uint64_t kMaxNumber = uint64_t{1} << 60;

absl::Status ToStatus(const rocksdb::Status& s, const std::string& folder) {
  if (s.ok()) return absl::OkStatus();
  const std::string text = absl::StrCat(folder, ": ", s.ToString());
  if (s.IsNotFound() || s.IsPathNotFound()) return absl::NotFoundError(text);
  if (s.IsNoSpace() || s.subcode() == rocksdb::Status::kSpaceLimit) {
    return absl::ResourceExhaustedError(
        absl::StrCat(text, "; the disk is full: free space, writing resumes by itself"));
  }
  if (s.IsCorruption()) return absl::DataLossError(text);
  return absl::UnavailableError(text);
}

rocksdb::Slice ToSlice(std::span<const uint8_t> b) {
  return {reinterpret_cast<const char*>(b.data()), b.size()};
}
std::span<const uint8_t> ToBytes(const rocksdb::Slice& s) {
  return {reinterpret_cast<const uint8_t*>(s.data()), s.size()};
}

// Counts the logs that RocksDB began: it may begin one with each exchange of write buffers.
class LogWatch final : public rocksdb::EventListener {
 public:
  void OnMemTableSealed(const rocksdb::MemTableInfo&) override { ++begun_; }
  uint64_t begun() const { return begun_; }

 private:
  std::atomic<uint64_t> begun_{0};
};

// Lets `kept` grow to `value`.
void KeepLargest(std::atomic<uint64_t>& kept, uint64_t value) {
  uint64_t old = kept;
  while (old < value && !kept.compare_exchange_weak(old, value)) {
  }
}

// One open database. Thread-safe as RocksDB is.
class Database {
 public:
  Database(std::string folder, std::unique_ptr<rocksdb::Env> env,
           std::shared_ptr<LogWatch> log_watch, rocksdb::DB* db,
           std::vector<rocksdb::ColumnFamilyHandle*> families)
      : folder_(std::move(folder)),
        env_(std::move(env)),
        log_watch_(std::move(log_watch)),
        db_(db),
        families_(std::move(families)) {
    // Bodies carry a digest of ours, and RocksDB's is slow: it is left out when bodies are read.
    // The blocks that lead to a body are then not checked either, so they are checked once here.
    const rocksdb::Status s = db_->VerifyChecksum();
    if (!s.ok()) Log().error("{}: {}; reading with checksums from here on", folder_, s.ToString());
    value_reads_.verify_checksums = !s.ok();
  }
  ~Database() {
    for (rocksdb::ColumnFamilyHandle* family : families_) db_->DestroyColumnFamilyHandle(family);
    const rocksdb::Status s = db_->Close();
    if (!s.ok()) Log().warn("closing {}: {}", folder_, s.ToString());
  }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  const std::string& folder() const { return folder_; }
  rocksdb::ColumnFamilyHandle* family(Family f) const { return families_[f]; }

  absl::Status Write(rocksdb::WriteBatch& batch, Ack ack) {
    rocksdb::WriteOptions options;
    options.disableWAL = ack == Ack::kMemory;
    options.sync = ack == Ack::kDurable;
    KVSTOW_RETURN_IF_ERROR(ToStatus(db_->Write(options, &batch), folder_));
    if (options.disableWAL) ++unlogged_;
    if (ack == Ack::kProcess) return SyncOlderLogs();
    return absl::OkStatus();
  }

  absl::StatusOr<SharedBytes> Get(Family f, const std::string& key) {
    auto value = std::make_shared<rocksdb::PinnableSlice>();
    KVSTOW_RETURN_IF_ERROR(ToStatus(db_->Get(value_reads_, family(f), key, value.get()), folder_));
    // A small value may be pinned in the block cache, which must not outlive the database.
    if (value->size() < kMinBlobBytes) return SharedBytes::CopyOf(ToBytes(*value));
    const auto view = ToBytes(*value);
    return SharedBytes(std::move(value), view);
  }

  // Everything that was written before survives power loss after this.
  absl::Status Sync() {
    const uint64_t unlogged = unlogged_;
    if (flushed_ >= unlogged) return SyncLogs();
    KVSTOW_RETURN_IF_ERROR(ToStatus(db_->Flush(rocksdb::FlushOptions(), families_), folder_));
    KeepLargest(flushed_, unlogged);
    return absl::OkStatus();
  }

  std::unique_ptr<rocksdb::Iterator> Scan(Family f) {
    // Records carry a digest of ours: a damaged one costs itself, not its whole block.
    rocksdb::ReadOptions options;
    options.verify_checksums = false;
    options.fill_cache = false;
    return std::unique_ptr<rocksdb::Iterator>(db_->NewIterator(options, family(f)));
  }

 private:
  // A power cut may take the unsynced end of a log and leave what is in the next one: a hole. So
  // nothing in a log is acknowledged before the logs before it are synced. (A write with `sync`
  // syncs them itself.)
  absl::Status SyncOlderLogs() {
    const uint64_t begun = log_watch_->begun();
    if (synced_ >= begun) return absl::OkStatus();
    KVSTOW_RETURN_IF_ERROR(SyncLogs());
    KeepLargest(synced_, begun);
    return absl::OkStatus();
  }
  // By an empty write, which waits in line with the others: DB::SyncWAL does not, and asserts when
  // a write to the log failed a moment ago.
  absl::Status SyncLogs() {
    rocksdb::WriteOptions options;
    options.sync = true;
    rocksdb::WriteBatch nothing;
    return ToStatus(db_->Write(options, &nothing), folder_);
  }

  const std::string folder_;
  const std::unique_ptr<rocksdb::Env> env_;  // null = the default one
  const std::shared_ptr<LogWatch> log_watch_;
  const std::unique_ptr<rocksdb::DB> db_;
  const std::vector<rocksdb::ColumnFamilyHandle*> families_;
  rocksdb::ReadOptions value_reads_;
  std::atomic<uint64_t> unlogged_{0};  // writes past the log,
  std::atomic<uint64_t> flushed_{0};   // and how many of them are in files
  std::atomic<uint64_t> synced_{0};    // log_watch_->begun() when logs were last synced
};

class RocksTier final : public Tier {
 public:
  explicit RocksTier(std::shared_ptr<Database> db) : db_(std::move(db)) {}

  std::string name() const override { return absl::StrCat("rocksdb:", db_->folder()); }
  bool holds_bytes() const override { return true; }

  absl::Status Write(std::span<const SegmentBody> bodies) override {
    rocksdb::WriteBatch batch;
    for (const SegmentBody& body : bodies) {
      batch.Put(db_->family(kSegments), SegmentKey(body.id), ToSlice(body.bytes.span()));
    }
    return db_->Write(batch, Ack::kProcess);
  }

  std::vector<absl::StatusOr<SharedBytes>> Read(std::span<const SegmentId> ids) override {
    std::vector<absl::StatusOr<SharedBytes>> out;
    out.reserve(ids.size());
    for (const SegmentId& id : ids) out.push_back(db_->Get(kSegments, SegmentKey(id)));
    return out;
  }

  absl::Status Erase(std::span<const SegmentId> ids) override {
    rocksdb::WriteBatch batch;
    for (const SegmentId& id : ids) batch.Delete(db_->family(kSegments), SegmentKey(id));
    return db_->Write(batch, Ack::kProcess);
  }

 private:
  const std::shared_ptr<Database> db_;
};

class RocksCatalog final : public Catalog {
 public:
  explicit RocksCatalog(std::shared_ptr<Database> db) : db_(std::move(db)) {}

  absl::Status PutPage(const PageRecord& record, std::span<const SegmentBody> bodies,
                       Ack ack) override {
    size_t bytes = record.header.size() + 4096;
    for (const SegmentBody& body : bodies) bytes += body.bytes.size() + 64;
    rocksdb::WriteBatch batch(bytes);
    batch.Put(db_->family(kPages), PageRecordKey(record.number), SerializePageRecord(record));
    for (const SegmentBody& body : bodies) {
      batch.Put(db_->family(kSegments), SegmentKey(body.id), ToSlice(body.bytes.span()));
    }
    return db_->Write(batch, ack);
  }

  absl::Status TruncatePage(const PageRecord& record, size_t had, Ack ack) override {
    rocksdb::WriteBatch batch;
    batch.Put(db_->family(kPages), PageRecordKey(record.number), SerializePageRecord(record));
    DeleteBodies(batch, record.number, record.facts.size(), had);
    // Past the log if the bodies were: a logged record would come back without them.
    return db_->Write(batch, std::min(ack, Ack::kProcess));
  }

  absl::Status ErasePage(PageNumber number, size_t segments) override {
    rocksdb::WriteBatch batch;
    batch.Delete(db_->family(kPages), PageRecordKey(number));
    DeleteBodies(batch, number, 0, segments);
    return db_->Write(batch, Ack::kProcess);
  }

  absl::Status PutSpace(const SpaceRecord& space) override {
    rocksdb::WriteBatch batch;
    batch.Put(db_->family(kSpaces), SpaceRecordKey(space.id), SerializeSpaceRecord(space));
    return db_->Write(batch, Ack::kDurable);
  }

  absl::StatusOr<Loaded> Load() override {
    Loaded out;
    uint64_t max_space = 0;
    LoadFamily(
        kSpaces, ParseSpaceRecord, [](const SpaceRecord& s) { return uint64_t{s.id}; }, out.spaces,
        max_space, out.damaged);
    LoadFamily(
        kPages, ParsePageRecord, [](const PageRecord& p) { return p.number; }, out.pages,
        out.max_page, out.damaged);
    out.max_space = static_cast<SpaceId>(max_space);
    return out;
  }

  absl::Status Sync() override { return db_->Sync(); }

 private:
  void DeleteBodies(rocksdb::WriteBatch& batch, PageNumber number, size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) {
      batch.Delete(db_->family(kSegments), SegmentKey({number, static_cast<uint16_t>(i)}));
    }
  }

  template <typename Record, typename NumberOf>
  void LoadFamily(Family family, absl::StatusOr<Record> (*parse)(std::span<const uint8_t>),
                  NumberOf number_of, std::vector<Record>& out, uint64_t& max, uint64_t& damaged) {
    const auto it = db_->Scan(family);
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      const uint64_t number = NumberInKey(ToBytes(it->key()));
      if (number <= kMaxNumber) max = std::max(max, number);
      auto record = parse(ToBytes(it->value()));
      // A record filed under another's number is as wrong as a damaged one.
      if (record.ok() && number_of(*record) == number) {
        out.push_back(*std::move(record));
        continue;
      }
      ++damaged;
      Log().warn("{}: {} {} is left alone: {}", db_->folder(), kFamilyNames[family], number,
                 record.ok() ? "it names another number" : record.status().ToString());
    }
    if (it->status().ok()) return;
    ++damaged;
    Log().error("{}: reading {} stopped early: {}", db_->folder(), kFamilyNames[family],
                it->status().ToString());
  }

  const std::shared_ptr<Database> db_;
};

absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error && access(path.c_str(), R_OK | W_OK | X_OK) != 0) {
    error = std::error_code(errno, std::generic_category());
  }
  if (!error) return absl::OkStatus();
  const std::string text = absl::StrCat("disk folder ", path, ": ", error.message(),
                                        "; give a folder that can be read and written");
  if (error == std::errc::permission_denied) return absl::PermissionDeniedError(text);
  if (error == std::errc::no_space_on_device) return absl::ResourceExhaustedError(text);
  return absl::UnavailableError(text);
}

// Moves a damaged database out of the way, so that nothing of it is lost.
absl::Status SetAside(const std::string& folder) {
  for (int n = 1; n < 1000; ++n) {
    const std::string aside = absl::StrCat(folder, ".damaged-", n);
    std::error_code error;
    if (fs::exists(aside, error)) continue;
    fs::rename(folder, aside, error);
    if (error) return absl::UnavailableError(absl::StrCat(aside, ": ", error.message()));
    Log().error("{} is damaged and was moved to {}; starting with an empty one", folder, aside);
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("there are too many ", folder, ".damaged-N: remove some"));
}

rocksdb::Status OpenDatabase(const std::string& folder, const RocksOptions& options,
                             std::shared_ptr<Database>& out) {
  std::unique_ptr<rocksdb::Env> env;
  if (options.file_system != nullptr) env = rocksdb::NewCompositeEnv(options.file_system);
  rocksdb::DBOptions db_options =
      DatabaseOptions(env ? env.get() : rocksdb::Env::Default(), DirectIoWorks(options.path));
  const auto log_watch = std::make_shared<LogWatch>();
  db_options.listeners.push_back(log_watch);
  rocksdb::DB* db = nullptr;
  std::vector<rocksdb::ColumnFamilyHandle*> families;
  const rocksdb::Status s =
      rocksdb::DB::Open(db_options, folder, Families(options.budget_bytes), &families, &db);
  if (s.ok()) {
    out = std::make_shared<Database>(folder, std::move(env), log_watch, db, std::move(families));
  }
  return s;
}

}  // namespace

absl::StatusOr<RocksStore> OpenRocksStore(const RocksOptions& options) {
  KVSTOW_RETURN_IF_ERROR(MakeFolder(options.path));
  const std::string folder = absl::StrCat(options.path, "/db");
  std::shared_ptr<Database> db;
  rocksdb::Status s = OpenDatabase(folder, options, db);
  if (s.IsCorruption() || s.IsPathNotFound()) {
    Log().error("{} does not open: {}", folder, s.ToString());
    KVSTOW_RETURN_IF_ERROR(SetAside(folder));
    s = OpenDatabase(folder, options, db);
  }
  if (s.IsIOError() && absl::StrContains(s.ToString(), "Permission denied")) {
    return absl::PermissionDeniedError(absl::StrCat(folder, ": ", s.ToString()));
  }
  if (s.IsIOError() && absl::StrContains(s.ToString(), "/LOCK")) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " is in use: another process holds ", folder,
                     "/LOCK; stop it or give another folder (", s.ToString(), ")"));
  }
  KVSTOW_RETURN_IF_ERROR(ToStatus(s, folder));
  return RocksStore{.tier = std::make_unique<RocksTier>(db),
                    .catalog = std::make_unique<RocksCatalog>(db)};
}

}  // namespace kvstow
