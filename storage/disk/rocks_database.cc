#include "storage/disk/rocks_database.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "storage/disk/rocks_files.h"
#include "storage/disk/rocks_logs.h"
#include "storage/record.h"

namespace kvstow {
namespace {

std::span<const uint8_t> ToBytes(const rocksdb::Slice& s) {
  return {reinterpret_cast<const uint8_t*>(s.data()), s.size()};
}

}  // namespace

// The changes of one call: the batch, and the batch that undoes it when it fails. A removal is not
// undone: it is written again.
struct Database::Commit {
  struct Value {
    Family family;
    std::string key;
    std::optional<std::string> value;  // none = the key is not there, or its value is damaged
  };

  rocksdb::WriteBatch batch;
  std::vector<Value> if_failed;
  std::vector<Extent> free_if_failed;  // when that is written
  std::vector<Extent> replaced;        // free when the batch is written
};

absl::StatusOr<std::shared_ptr<Database>> Database::Open(const std::string& folder,
                                                         const RocksOptions& options,
                                                         std::shared_ptr<rocksdb::FileSystem> files,
                                                         rocksdb::Status& rocks) {
  const auto logs = std::make_shared<LogWatch>();
  std::unique_ptr<rocksdb::Env> env = rocksdb::NewCompositeEnv(WatchLogs(std::move(files), logs));
  const bool direct_io = DirectIoWorks(options.path);
  rocksdb::DBOptions db_options = DatabaseOptions(env.get(), direct_io);
  db_options.info_log = WatchInfoLog(folder, db_options, logs);
  rocksdb::DB* db = nullptr;
  std::vector<rocksdb::ColumnFamilyHandle*> families;
  rocks = rocksdb::DB::Open(db_options, folder, Families(options.budget_bytes), &families, &db);
  KVSTOW_RETURN_IF_ERROR(FromRocks(rocks, folder));
  std::shared_ptr<Database> out(
      new Database(folder, std::move(env), logs, db, std::move(families), options.keys));
  const std::string segments = absl::StrCat(folder, "/segments");
  auto bodies = SegmentStore::Open(segments, options.make_files(segments, direct_io),
                                   options.budget_bytes, out->vault_);
  absl::Status recovered = bodies.status();
  if (bodies.ok()) {
    out->segments_ = *std::move(bodies);
    recovered = out->Recover();
  }
  if (recovered.ok()) return out;
  return absl::Status(recovered.code(),
                      absl::StrCat(recovered.message(), "; check the disk and start again"));
}

Database::Database(std::string folder, std::unique_ptr<rocksdb::Env> env,
                   std::shared_ptr<LogWatch> logs, rocksdb::DB* db,
                   std::vector<rocksdb::ColumnFamilyHandle*> families,
                   std::shared_ptr<DataKeys> keys)
    : folder_(std::move(folder)),
      env_(std::move(env)),
      logs_(std::move(logs)),
      db_(db),
      families_(std::move(families)),
      vault_(std::move(keys)) {
  // Values carry digests of ours, so that a damaged one costs itself and not its whole block:
  // blocks are read unchecked. Those that lead to values are then not checked either, so they are
  // here.
  const rocksdb::Status s = db_->VerifyChecksum();
  if (!s.ok()) Log().error("{}: {}; reading with checksums from here on", folder_, s.ToString());
  verify_blocks_ = !s.ok();
}

Database::~Database() {
  // Syncs, so that the next opening need not read back the last writes.
  if (segments_ != nullptr && segments_->synced() < segments_->last_commit()) {
    if (const absl::Status s = Sync(); !s.ok()) Log().warn("closing: {}", s.ToString());
  }
  for (rocksdb::ColumnFamilyHandle* family : families_) db_->DestroyColumnFamilyHandle(family);
  const rocksdb::Status s = db_->Close();
  if (!s.ok()) Log().warn("closing {}: {}", folder_, s.ToString());
}

uint64_t Database::damaged_logs() const { return logs_->damaged(); }

absl::StatusOr<std::string> Database::Get(Family family, const std::string& key) {
  rocksdb::ReadOptions options;
  options.verify_checksums = verify_blocks_;
  std::string value;
  KVSTOW_RETURN_IF_ERROR(FromRocks(db_->Get(options, families_[family], key, &value), folder_));
  return value;
}

absl::Status Database::Scan(
    Family family,
    const std::function<void(std::span<const uint8_t>, std::span<const uint8_t>)>& each) {
  rocksdb::ReadOptions options;
  options.verify_checksums = false;  // as in the constructor
  options.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(options, families_[family]));
  for (it->SeekToFirst(); it->Valid(); it->Next()) each(ToBytes(it->key()), ToBytes(it->value()));
  return FromRocks(it->status(), folder_);
}

// A body that is in its value.
absl::StatusOr<SharedBytes> Database::OpenSmall(const ExpectedSegment& expected,
                                                const SegmentPlace& place, std::string value) {
  const size_t start = value.size() - place.length;
  if (!place.sealed()) {
    KVSTOW_RETURN_IF_ERROR(vault_.MayBeClear());
    return Verified(SharedBytes::Take(std::move(value)).Slice(start, place.length), expected.facts);
  }
  const SealPlace sealed{.space = expected.space,
                         .page = expected.id.page,
                         .index = expected.id.index,
                         .digest = expected.facts.digest};
  KVSTOW_ASSIGN_OR_RETURN(Opening opening, vault_.Open(sealed, place.seal));
  KVSTOW_ASSIGN_OR_RETURN(std::string body,
                          OpenWhole(std::move(opening), AsBytes(value).subspan(start)));
  return SharedBytes::Take(std::move(body));
}

std::vector<absl::StatusOr<SharedBytes>> Database::Read(std::span<const ExpectedSegment> expected) {
  std::vector<absl::StatusOr<SharedBytes>> out(expected.size(), SharedBytes());
  std::vector<SegmentStore::Wanted> wanted;
  std::vector<size_t> at;
  for (size_t i = 0; i < expected.size(); ++i) {
    const ExpectedSegment& one = expected[i];
    const std::string key = SegmentKey(one.id);
    absl::StatusOr<std::string> bytes = Get(kSegments, key);
    if (!bytes.ok()) {
      out[i] = bytes.status();
      continue;
    }
    const auto value = ParseSegmentValue(AsBytes(key), AsBytes(*bytes));
    if (!value.ok()) {
      out[i] = value.status();
    } else if (value->place.length != one.facts.bytes) {
      out[i] = absl::DataLossError("a segment of another length");
    } else if (value->place.file != 0) {
      wanted.push_back({one.id, value->place, one.space, one.facts.digest});
      at.push_back(i);
    } else {
      out[i] = OpenSmall(one, value->place, *std::move(bytes));
    }
  }
  auto bodies = segments_->Read(wanted);
  for (size_t k = 0; k < at.size(); ++k) out[at[k]] = std::move(bodies[k]);
  return out;
}

absl::Status Database::Put(Commit& commit, Family family, std::string key,
                           const std::string& value) {
  commit.batch.Put(families_[family], key, value);
  return Remember(commit, family, std::move(key));
}

// What cannot be read goes all the same. The blocks of its body are free after a restart.
void Database::Delete(Commit& commit, Family family, std::string key) {
  commit.batch.Delete(families_[family], key);
  Remember(commit, family, std::move(key)).IgnoreError();
}

absl::Status Database::Remember(Commit& commit, Family family, std::string key) {
  auto bytes = Get(family, key);
  if (bytes.ok() && family == kSegments) {
    const auto value = ParseSegmentValue(AsBytes(key), AsBytes(*bytes));
    if (value.ok() && value->place.file != 0) commit.replaced.push_back(value->place.extent());
  }
  absl::Status read = bytes.status();
  // A damaged value is lost either way.
  if (absl::IsNotFound(read) || absl::IsDataLoss(read)) read = absl::OkStatus();
  std::optional<std::string> value;
  if (bytes.ok()) value = *std::move(bytes);
  commit.if_failed.push_back({family, std::move(key), std::move(value)});
  return read;
}

absl::Status Database::Apply(Commit& commit, Ack ack) {
  if (const absl::Status s = Write(commit.batch, ack); !s.ok()) {
    // If RocksDB took it in although its log failed, nobody is to see it.
    Batch settled;
    AddSettled(commit, settled);
    db_->Write({}, &settled).PermitUncheckedError();
    MutexLock lock(mu_);
    failed_.push_back(std::move(commit));
    return s;
  }
  FreeLater(std::move(commit.replaced));
  return absl::OkStatus();
}

absl::StatusOr<SegmentStore::Written> Database::WriteBodies(
    std::span<const SegmentStore::Body> bodies, Ack ack) {
  auto written = segments_->Write(bodies);
  if (absl::IsResourceExhausted(written.status()) && FreeNow().ok()) {
    written = segments_->Write(bodies);
  }
  if (!written.ok() || ack != Ack::kDurable) return written;
  const absl::Status synced = segments_->Sync(written->commit);
  if (synced.ok()) return written;
  std::vector<Extent> extents;
  for (const SegmentPlace& place : written->places) extents.push_back(place.extent());
  segments_->Free(extents);
  return synced;
}

// The value of a body that is small enough to be in it.
absl::StatusOr<std::string> Database::SmallValue(const SegmentStore::Body& body,
                                                 const std::string& key, uint64_t commit) {
  SegmentPlace place{.commit = commit, .length = static_cast<uint32_t>(body.bytes.size())};
  KVSTOW_ASSIGN_OR_RETURN(std::optional<Sealing> sealing, vault_.Seal(body.seal_place()));
  if (!sealing.has_value()) return SerializeSegmentValue(key, place, body.bytes);
  const SealedValue value = SealWhole(*std::move(sealing), body.bytes);
  place.seal = value.seal;
  return SerializeSegmentValue(key, place, AsBytes(value.bytes));
}

absl::Status Database::Put(const PageRecord* record, std::span<const SegmentBody> bodies, Ack ack) {
  KVSTOW_RETURN_IF_ERROR(SettleFailed());
  std::vector<SegmentStore::Body> all, large;
  for (const SegmentBody& body : bodies) {
    const bool known = record != nullptr && body.id.index < record->facts.size();
    all.push_back({body.id, record == nullptr ? SpaceId{0} : record->name.space, body.bytes.span(),
                   known ? record->facts[body.id.index].digest : Xxh3(body.bytes.span())});
    if (body.bytes.size() >= kMinExtentBody) large.push_back(all.back());
  }
  KVSTOW_ASSIGN_OR_RETURN(const SegmentStore::Written written, WriteBodies(large, ack));
  Commit commit;
  for (const SegmentPlace& place : written.places) commit.free_if_failed.push_back(place.extent());
  absl::Status added = AddPage(commit, record, all, written);
  if (!added.ok()) {
    segments_->Free(commit.free_if_failed);
    return added;
  }
  AddSynced(commit.batch);
  KVSTOW_RETURN_IF_ERROR(Apply(commit, ack));
  if (segments_->ShouldSync()) {
    const absl::Status s = segments_->Sync(written.commit);
    if (!s.ok()) Log().warn("{}", s.ToString());  // this put did not promise it
  }
  return absl::OkStatus();
}

// Adds the record and the values of the bodies. Fails when they cannot be sealed, or what is there
// cannot be read.
absl::Status Database::AddPage(Commit& commit, const PageRecord* record,
                               std::span<const SegmentStore::Body> bodies,
                               const SegmentStore::Written& written) {
  if (record != nullptr) {
    KVSTOW_ASSIGN_OR_RETURN(const std::string bytes, vault_.Serialize(*record));
    KVSTOW_RETURN_IF_ERROR(Put(commit, kPages, PageRecordKey(record->number), bytes));
  }
  auto place = written.places.begin();
  for (const SegmentStore::Body& body : bodies) {
    std::string key = SegmentKey(body.id);
    std::string value;
    if (body.bytes.size() < kMinExtentBody) {
      KVSTOW_ASSIGN_OR_RETURN(value, SmallValue(body, key, written.commit));
    } else {
      value = SerializeSegmentValue(key, *place++, {});
    }
    KVSTOW_RETURN_IF_ERROR(Put(commit, kSegments, std::move(key), value));
  }
  return absl::OkStatus();
}

absl::Status Database::Cut(PageNumber number, const PageRecord* record, size_t first, size_t end) {
  const absl::Status settled = SettleFailed();
  if (!settled.ok() && record == nullptr) return settled;
  Commit commit;
  std::string bytes;
  if (record != nullptr) {
    KVSTOW_ASSIGN_OR_RETURN(bytes, vault_.Serialize(*record));
    // The commit is not taken back, so what was there is not needed.
    Put(commit, kPages, PageRecordKey(number), bytes).IgnoreError();
  } else {
    Delete(commit, kPages, PageRecordKey(number));
  }
  for (size_t i = first; i < end; ++i) {
    Delete(commit, kSegments, SegmentKey({number, static_cast<uint16_t>(i)}));
  }
  ConfirmRemoval(commit);
  if (record != nullptr) commit.if_failed.front().value = bytes;
  if (settled.ok()) return Apply(commit, Ack::kProcess);
  // Nobody cuts the page there again: it is written with what failed before. What is there is not
  // known until then, so its blocks are free after a restart.
  commit.free_if_failed.clear();
  MutexLock lock(mu_);
  failed_.push_back(std::move(commit));
  return settled;
}

absl::Status Database::EraseBodies(std::span<const SegmentId> ids) {
  KVSTOW_RETURN_IF_ERROR(SettleFailed());
  Commit commit;
  for (const SegmentId& id : ids) Delete(commit, kSegments, SegmentKey(id));
  ConfirmRemoval(commit);
  return Apply(commit, Ack::kProcess);
}

void Database::ConfirmRemoval(Commit& commit) {
  for (Commit::Value& value : commit.if_failed) value.value.reset();
  commit.free_if_failed = commit.replaced;
}

absl::Status Database::Write(Batch& batch, Ack ack) {
  KVSTOW_RETURN_IF_ERROR(MendLogs());
  rocksdb::WriteOptions options;
  options.sync = ack == Ack::kDurable;
  KVSTOW_RETURN_IF_ERROR(FromRocks(db_->Write(options, &batch), folder_));
  return logs_->failure();
}

absl::Status Database::MendLogs() {
  if (logs_->failure().ok()) return absl::OkStatus();
  MutexLock lock(mend_mu_);
  if (logs_->failure().ok()) return absl::OkStatus();
  const uint64_t begun = logs_->begun();
  // A buffer that is not empty, so that a new log is begun.
  Batch batch;
  AddSynced(batch);
  KVSTOW_RETURN_IF_ERROR(FromRocks(db_->Write({}, &batch), folder_));
  KVSTOW_RETURN_IF_ERROR(FromRocks(db_->Flush({}, families_), folder_));
  logs_->Forget(begun);
  return logs_->failure();
}

// By a write, which waits in line with the others.
absl::Status Database::SyncLogs() {
  Batch batch;
  AddSynced(batch);
  return Write(batch, Ack::kDurable);
}

absl::Status Database::Sync() {
  KVSTOW_RETURN_IF_ERROR(SettleFailed());
  KVSTOW_RETURN_IF_ERROR(segments_->Sync(segments_->last_commit()));
  return FreeNow();
}

void Database::AddSynced(Batch& batch) {
  ByteWriter value;
  value.Put(segments_->synced());
  batch.Put(families_[kDefault], kSyncedKey, value.bytes());
}

void Database::FreeLater(std::vector<Extent> extents) {
  {
    MutexLock lock(mu_);
    for (const Extent& extent : extents) waiting_bytes_ += extent.bytes;
    waiting_.insert(waiting_.end(), extents.begin(), extents.end());
    if (waiting_bytes_ <= segments_->max_waiting_bytes()) return;
  }
  const absl::Status freed = FreeNow();
  if (!freed.ok()) Log().warn("removed segments still take their room: {}", freed.ToString());
}

absl::Status Database::FreeNow() {
  std::vector<Extent> extents;
  {
    MutexLock lock(mu_);
    extents.swap(waiting_);
    waiting_bytes_ = 0;
  }
  const absl::Status synced = SyncLogs();
  if (synced.ok()) {
    segments_->Free(extents);
    return synced;
  }
  MutexLock lock(mu_);
  for (const Extent& extent : extents) waiting_bytes_ += extent.bytes;
  waiting_.insert(waiting_.end(), extents.begin(), extents.end());
  return synced;
}

void Database::AddSettled(const Commit& commit, Batch& batch) {
  for (const Commit::Value& to : commit.if_failed) {
    if (to.value.has_value()) {
      batch.Put(families_[to.family], to.key, *to.value);
    } else {
      batch.Delete(families_[to.family], to.key);
    }
  }
}

absl::Status Database::SettleFailed() {
  std::vector<Commit> failed;
  {
    MutexLock lock(mu_);
    while (settling_) settled_.Wait(mu_);
    if (failed_.empty()) return absl::OkStatus();
    failed.swap(failed_);
    settling_ = true;
  }
  Batch batch;
  for (const Commit& commit : failed) AddSettled(commit, batch);
  const absl::Status settled = Write(batch, Ack::kDurable);
  if (settled.ok()) {
    for (const Commit& commit : failed) segments_->Free(commit.free_if_failed);
  }
  MutexLock lock(mu_);
  settling_ = false;
  settled_.NotifyAll();
  if (!settled.ok()) {
    // Before those that failed meanwhile: of two commits, the later one is settled last.
    failed_.insert(failed_.begin(), std::move_iterator(failed.begin()),
                   std::move_iterator(failed.end()));
  }
  return settled;
}

absl::Status Database::PutSpace(const SpaceRecord& space) {
  const absl::StatusOr<std::string> bytes = vault_.Serialize(space);
  if (absl::IsUnavailable(bytes.status())) {
    // Nor is any page of it: workers go on, with what memory holds.
    Log().warn("space {} is not saved: {}", space.id, bytes.status().ToString());
    return absl::OkStatus();
  }
  KVSTOW_RETURN_IF_ERROR(bytes.status());
  Batch batch;
  batch.Put(families_[kSpaces], SpaceRecordKey(space.id), *bytes);
  return Write(batch, Ack::kDurable);
}

absl::Status Database::EraseSpace(SpaceId id) {
  KVSTOW_RETURN_IF_ERROR(SettleFailed());
  // Its pages are gone for good before the space is: none comes back without it.
  KVSTOW_RETURN_IF_ERROR(SyncLogs());
  MutexLock lock(spaces_mu_);
  ByteWriter last;
  last.Put(std::max(id, last_erased_space()));
  Batch batch;
  batch.Delete(families_[kSpaces], SpaceRecordKey(id));
  batch.Put(families_[kDefault], kErasedSpaceKey, last.bytes());
  KVSTOW_RETURN_IF_ERROR(Write(batch, Ack::kDurable));
  vault_.ForgetSpace(id);
  if (segments_ != nullptr) segments_->ClearMemory();
  return absl::OkStatus();
}

SpaceId Database::last_erased_space() {
  const auto value = Get(kDefault, kErasedSpaceKey);
  return value.ok() ? ByteReader(AsBytes(*value)).Get<SpaceId>() : 0;
}

}  // namespace kvstow
