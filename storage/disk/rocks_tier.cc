#include "storage/disk/rocks_tier.h"

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/status.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/private_folder.h"
#include "base/status_macros.h"
#include "storage/disk/rocks_database.h"
#include "storage/disk/rocks_files.h"
#include "storage/disk/segment_format.h"
#include "storage/record.h"

namespace kvstow {
namespace {

namespace fs = std::filesystem;

// No number that was ever given is larger; a damaged key may look so.
constexpr uint64_t kMaxNumber = uint64_t{1} << 60;

class RocksTier final : public Tier {
 public:
  explicit RocksTier(std::shared_ptr<Database> db) : db_(std::move(db)) {}

  std::string name() const override { return absl::StrCat("rocksdb:", db_->folder()); }
  bool holds_bytes() const override { return true; }
  absl::Status Write(std::span<const SegmentBody> bodies) override {
    return db_->Put(nullptr, bodies, Ack::kProcess);
  }
  bool verifies() const override { return true; }
  std::vector<absl::StatusOr<SharedBytes>> Read(
      std::span<const ExpectedSegment> expected) override {
    return db_->Read(expected);
  }
  absl::Status Erase(std::span<const SegmentId> ids) override { return db_->EraseBodies(ids); }

 private:
  const std::shared_ptr<Database> db_;
};

class RocksCatalog final : public Catalog {
 public:
  explicit RocksCatalog(std::shared_ptr<Database> db) : db_(std::move(db)) {}

  absl::Status PutPage(const PageRecord& record, std::span<const SegmentBody> bodies,
                       Ack ack) override {
    return db_->Put(&record, bodies, ack);
  }
  // Every commit goes through the log, so `ack` makes no difference here.
  absl::Status TruncatePage(const PageRecord& record, size_t had, Ack) override {
    return db_->Cut(record.number, &record, record.facts.size(), had);
  }
  absl::Status ErasePage(PageNumber number, size_t segments) override {
    return db_->Cut(number, nullptr, 0, segments);
  }
  absl::Status PutSpace(const SpaceRecord& space) override { return db_->PutSpace(space); }
  absl::Status EraseSpace(SpaceId id) override { return db_->EraseSpace(id); }

  absl::StatusOr<Loaded> Load() override {
    Loaded out;
    uint64_t max_space = 0;
    LoadFamily(
        kSpaces, [&](auto bytes) { return db_->vault().ParseSpace(bytes); },
        [](const SpaceRecord& s) { return uint64_t{s.id}; }, out.spaces, max_space, out);
    LoadFamily(
        kPages, [&](auto bytes) { return db_->vault().ParsePage(bytes); },
        [](const PageRecord& p) { return p.number; }, out.pages, out.max_page, out);
    out.max_space = static_cast<SpaceId>(std::max<uint64_t>(max_space, db_->last_erased_space()));
    out.damaged_logs = db_->damaged_logs();
    if (out.locked > 0) {
      Log().error(
          "{}: {} records are sealed with keys that are not here; they are misses, and stay "
          "as they are until the right master key is back",
          db_->folder(), out.locked);
    }
    if (out.in_clear > 0) {
      Log().warn("{}: {} records were written before there were keys, and stay in clear",
                 db_->folder(), out.in_clear);
    }
    return out;
  }

  absl::Status Sync() override { return db_->Sync(); }

 private:
  template <typename Record, typename Parse, typename NumberOf>
  void LoadFamily(Family family, Parse parse, NumberOf number_of, std::vector<Record>& out,
                  uint64_t& max, Loaded& loaded) {
    const auto add = [&](std::span<const uint8_t> key, std::span<const uint8_t> value) {
      const uint64_t number = NumberInKey(key);
      if (number <= kMaxNumber) max = std::max(max, number);
      absl::StatusOr<Record> record = parse(value);
      // A record filed under another's number is as wrong as a damaged one.
      if (record.ok() && number_of(*record) == number) {
        loaded.in_clear += db_->vault().seals() && !IsSealedRecord(value) ? 1 : 0;
        out.push_back(*std::move(record));
        return;
      }
      if (absl::IsUnavailable(record.status())) {
        ++loaded.locked;
        return;
      }
      ++loaded.damaged;
      Log().warn("{}: {} {} is left alone: {}", db_->folder(), kFamilyNames[family], number,
                 record.ok() ? "it names another number" : record.status().ToString());
    };
    const absl::Status scanned = db_->Scan(family, add);
    if (scanned.ok()) return;
    ++loaded.damaged;
    Log().error("reading {} stopped early: {}", kFamilyNames[family], scanned.ToString());
  }

  const std::shared_ptr<Database> db_;
};

absl::Status MakeFolder(const std::string& path) {
  std::error_code error = MakePrivateFolder(path);
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

// Moves a database out of the way as FOLDER.KIND-N, so that nothing of it is lost.
absl::Status SetAside(const std::string& folder, const std::string& kind) {
  for (int n = 1; n < 1000; ++n) {
    const std::string aside = absl::StrCat(folder, ".", kind, "-", n);
    std::error_code error;
    if (fs::exists(aside, error)) continue;
    fs::rename(folder, aside, error);
    if (error) return absl::UnavailableError(absl::StrCat(aside, ": ", error.message()));
    Log().error("{} was moved to {}; starting with an empty one", folder, aside);
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("there are too many ", folder, ".", kind, "-N: remove some"));
}

bool IsInUse(const std::string& folder) {
  rocksdb::FileLock* lock = nullptr;
  rocksdb::Env* const env = rocksdb::Env::Default();
  if (!env->LockFile(absl::StrCat(folder, "/LOCK"), &lock).ok()) return true;
  env->UnlockFile(lock);
  return false;
}

// Returns the version of the database in a folder.
enum class Format { kOurs, kOther, kUnknown };

// Unknown is what power loss leaves of a FORMAT that was not synced: a part of ours, with or
// without zeros behind it.
Format FormatOf(const std::string& folder) {
  const std::string name = absl::StrCat(folder, "/FORMAT");
  std::error_code error;
  if (!fs::exists(name, error)) return Format::kOther;  // a database of version 1 has none
  std::ifstream in(name, std::ios::binary);
  std::string format{std::istreambuf_iterator<char>(in), {}};
  if (format == kDatabaseFormat) return Format::kOurs;
  format.resize(format.find_last_not_of('\0') + 1);
  return absl::StartsWith(kDatabaseFormat, format) ? Format::kUnknown : Format::kOther;
}

// Sees to it that what is in `folder` is nothing or a database of this format, which FORMAT says
// before there is a database. Of one whose FORMAT is unknown it says so when it opened well.
absl::StatusOr<std::shared_ptr<Database>> OpenDatabase(const std::string& folder,
                                                       const RocksOptions& options,
                                                       rocksdb::Status& rocks) {
  const std::shared_ptr<rocksdb::FileSystem> files = PrivateFiles(
      options.file_system != nullptr ? options.file_system : rocksdb::FileSystem::Default());
  const std::string current = absl::StrCat(folder, "/CURRENT");
  std::error_code error;
  if (fs::exists(current, error) && FormatOf(folder) == Format::kOther && !IsInUse(folder)) {
    Log().error("{} is of another version of kvstow", folder);
    KVSTOW_RETURN_IF_ERROR(SetAside(folder, "version"));
  }
  KVSTOW_RETURN_IF_ERROR(MakeFolder(folder));
  const auto write_format = [&] {
    return WriteWholeFile(*files, folder, "FORMAT", kDatabaseFormat);
  };
  const bool there = fs::exists(current, error);
  if (!there) KVSTOW_RETURN_IF_ERROR(write_format());
  auto db = Database::Open(folder, options, files, rocks);
  if (there && db.ok() && FormatOf(folder) == Format::kUnknown) {
    Log().warn("{}/FORMAT was cut short; the database is of this version", folder);
    if (const absl::Status s = write_format(); !s.ok()) Log().warn("{}", s.ToString());
  }
  return db;
}

// Of what earlier processes left, too.
void TightenFolders(const std::string& path) {
  std::error_code error;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name != "db" && !absl::StartsWith(name, "db.")) continue;
    const std::error_code open = TightenFolder(it->path().string());
    if (open) Log().warn("others may read in {}: {}", it->path().string(), open.message());
  }
}

}  // namespace

absl::StatusOr<RocksStore> OpenRocksStore(const RocksOptions& options) {
  KVSTOW_RETURN_IF_ERROR(MakeFolder(options.path));
  TightenFolders(options.path);
  const std::string folder = absl::StrCat(options.path, "/db");
  rocksdb::Status rocks;
  auto db = OpenDatabase(folder, options, rocks);
  if (rocks.IsCorruption() || rocks.IsPathNotFound()) {
    Log().error("{} is damaged: {}", folder, rocks.ToString());
    KVSTOW_RETURN_IF_ERROR(SetAside(folder, "damaged"));
    db = OpenDatabase(folder, options, rocks);
  }
  if (rocks.IsIOError() && absl::StrContains(rocks.ToString(), "Permission denied")) {
    return absl::PermissionDeniedError(absl::StrCat(folder, ": ", rocks.ToString()));
  }
  if (rocks.IsIOError() && absl::StrContains(rocks.ToString(), "/LOCK")) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " is in use: another process holds ", folder,
                     "/LOCK; stop it or give another folder (", rocks.ToString(), ")"));
  }
  if (!db.ok()) return std::move(db).status();
  return RocksStore{.tier = std::make_unique<RocksTier>(*db),
                    .catalog = std::make_unique<RocksCatalog>(*db)};
}

}  // namespace kvstow
