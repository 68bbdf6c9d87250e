#include "service/spaces/calibrations.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/aead.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/private_folder.h"
#include "base/status_macros.h"
#include "kernels/calibration/model_stats.h"
#include "kernels/codec/calibrate.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/importance/policy.h"
#include "kernels/importance/query_needs.h"
#include "kernels/methods/run_codec.h"

namespace kvstow {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kUnfinished = ".kvcal.tmp";  // a file that is being written

class MissingCodec final : public Codec {
 public:
  MissingCodec(Recipe recipe, KvSpec spec, absl::Status why)
      : recipe_(std::move(recipe)), spec_(std::move(spec)), why_(std::move(why)) {}

  const Recipe& recipe() const override { return recipe_; }
  const KvSpec& spec() const override { return spec_; }
  bool exact() const override { return false; }
  uint32_t levels() const override { return 1; }
  absl::StatusOr<EncodedPage> Encode(const PageToEncode&) const override { return why_; }

 private:
  const Recipe recipe_;
  const KvSpec spec_;
  const absl::Status why_;
};

absl::Status FolderError(const std::string& folder, const std::error_code& error) {
  const std::string text =
      absl::StrCat("calibrations: ", folder, ": ", error.message(),
                   ": name a folder that can be read, with files of `kvstow codec calibrate`");
  return error == std::errc::permission_denied ? absl::PermissionDeniedError(text)
                                               : absl::NotFoundError(text);
}

absl::StatusOr<std::string> ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in.good() && !in.eof()) return absl::PermissionDeniedError("it cannot be read");
  return bytes;
}

std::string PathIn(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

CalibrationId IdOf(std::span<const uint8_t> blob) {
  const Sha256Digest digest = Sha256(blob);
  CalibrationId out;
  std::copy_n(digest.begin(), out.size(), out.begin());
  return out;
}

// Tables of other servers stay so long at least: where there are too many, they would else come and
// go all the time.
constexpr auto kLeastStay = std::chrono::hours(1);

template <typename Files>
uint64_t BytesOf(const Files& files) {
  uint64_t bytes = 0;
  for (const auto& [id, file] : files) bytes += file.bytes;
  return bytes;
}

// Returns those that must go, the oldest first, so that the others have at most `most` bytes. Files
// that were written after `before` stay, and so does what has no file.
template <typename Files>
std::set<CalibrationId> Oldest(const Files& files, uint64_t most, fs::file_time_type before) {
  std::vector<std::pair<fs::file_time_type, CalibrationId>> by_age;
  for (const auto& [id, file] : files) {
    std::error_code error;
    const fs::file_time_type written = fs::last_write_time(file.path, error);
    if (!error && written <= before) by_age.emplace_back(written, id);
  }
  std::ranges::sort(by_age);
  std::set<CalibrationId> out;
  uint64_t left = BytesOf(files);
  for (const auto& [written, id] : by_age) {
    if (left <= most) break;
    left -= files.at(id).bytes;
    out.insert(id);
  }
  return out;
}

uint64_t RandomNumber() {  // never 0
  uint64_t out = 0;
  while (out == 0) RandomBytes({reinterpret_cast<uint8_t*>(&out), sizeof(out)});
  return out;
}

}  // namespace

absl::Status Calibrations::Load() {
  if (folder_.empty()) return absl::OkStatus();
  MutexLock lock(mu_);
  std::error_code error;
  if (may_lack_) {
    if (!fs::exists(folder_, error)) return absl::OkStatus();
    const std::error_code open = TightenFolder(folder_);
    if (open) Log().warn("others may read in {}: {}", folder_, open.message());
  }
  std::vector<File> found, fitted;
  error = ReadFolder(folder_, found);
  std::error_code ignored;
  if (!error && fs::exists(FittedFolder(), ignored)) ReadFolder(FittedFolder(), fitted);
  for (const File& file : found) {
    Log().info("calibration {} from {}", HexOf(file.calibration->id()), file.path);
    const bool tells_of_pages = file.calibration->fit_note().has_value();
    if (file.place.number != 0 || tells_of_pages) foreign_[file.calibration->id()] = file;
  }
  for (File& file : fitted) {
    const CalibrationId id = file.calibration->id();
    if (file.calibration->fit_note().has_value()) fitted_[id] = std::move(file);
  }
  return error ? FolderError(folder_, error) : absl::OkStatus();
}

std::error_code Calibrations::ReadFolder(const std::string& folder, std::vector<File>& found) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;  // a file that goes meanwhile is no error
    if (!it->is_regular_file(gone)) continue;
    const std::string path = it->path().string();
    if (absl::EndsWith(path, kUnfinished)) continue;
    const auto time = it->last_write_time(gone).time_since_epoch().count();
    if (!read_.insert(absl::StrCat(path, "\n", it->file_size(gone), "\n", time)).second) continue;
    auto file = ReadOne(path);
    if (file.ok()) {
      found.push_back(*std::move(file));
    } else {
      Log().warn("{} is left alone: {}", path, std::string(file.status().message()));
    }
  }
  return error;
}

absl::StatusOr<Calibrations::File> Calibrations::ReadOne(const std::string& path) {
  KVSTOW_ASSIGN_OR_RETURN(std::string bytes, ReadFile(path));
  const bool sealed = IsSealedTables(AsBytes(bytes));
  const auto whose = PlaceOfTables(0, AsBytes(bytes));
  const auto opened = Open(path, std::move(bytes));
  const auto added = opened.ok() ? store_.Add(opened->blob.span()) : opened.status();
  if (added.ok()) {
    paths_[(*added)->id()] = path;
    return File{*added, path, opened->blob.size(), opened->place};
  }
  const bool locked = whose.ok() && absl::IsUnavailable(added.status());
  if (locked) locked_[path] = whose->tenant;
  if (locked) ++unread_.locked;
  if (!locked && (sealed || !opened.ok())) ++unread_.damaged;
  if (opened.ok()) return added.status();
  return absl::Status(
      added.status().code(),
      absl::StrCat(added.status().message(), "; pages that need it are misses",
                   locked ? ": bring its key back and restart" : ": put a good copy in its place"));
}

absl::StatusOr<OpenedTables> Calibrations::Open(const std::string& path, std::string bytes) const {
  const fs::path file(path);
  const bool fitted = !folder_.empty() && file.parent_path() == fs::path(folder_) / "fitted";
  if (!IsSealedTables(AsBytes(bytes))) {
    if (fitted && keys_ != nullptr && keys_->seals() && !keys_->reads_clear()) {
      return absl::DataLossError("it is in clear, where all tables were sealed");
    }
    return OpenedTables{.place = {}, .blob = SharedBytes::Take(std::move(bytes))};
  }
  if (keys_ == nullptr) {
    return absl::UnavailableError("it is sealed, and without a disk-path there are no data keys");
  }
  KVSTOW_ASSIGN_OR_RETURN(const uint64_t number, TablesNumberOf(file.filename().string()));
  KVSTOW_ASSIGN_OR_RETURN(OpenedTables out, OpenTables(*keys_, number, std::move(bytes)));
  if (fitted == (out.place.space != 0)) return out;
  return absl::DataLossError("sealed tables in another folder than they were written to");
}

absl::StatusOr<SharedBytes> Calibrations::Blob(const CalibrationId& id) {
  std::string path;
  {
    MutexLock lock(mu_);
    if (const auto it = blobs_.find(id); it != blobs_.end()) return it->second;
    if (const auto it = paths_.find(id); it != paths_.end()) path = it->second;
  }
  absl::StatusOr<std::string> bytes = absl::NotFoundError("");
  if (!path.empty()) bytes = ReadFile(path);
  if (bytes.ok()) {
    auto opened = Open(path, *std::move(bytes));
    const Sha256Digest digest = opened.ok() ? Sha256(opened->blob.span()) : Sha256Digest{};
    if (std::equal(id.begin(), id.end(), digest.begin())) return std::move(opened->blob);
  }
  return absl::NotFoundError(
      absl::StrCat("calibration ", HexOf(id), " has no file here any more: ", path));
}

absl::Status Calibrations::Write(const std::string& name, std::span<const uint8_t> bytes,
                                 const std::string& folder) const {
  const std::string path = PathIn(folder, name), unfinished = path + ".tmp";
  std::error_code error;
  if (may_lack_) error = MakePrivateFolder(folder_);
  if (!error && folder != folder_) error = MakePrivateFolder(folder);
  const auto failed = [&](absl::string_view what) {
    std::error_code ignored;
    fs::remove(unfinished, ignored);
    return absl::UnavailableError(
        absl::StrCat("calibrations: ", folder, " cannot be written: ", what,
                     ": make it writable for the server, or put the file there yourself"));
  };
  if (error) return failed(error.message());
  FILE* const file = std::fopen(unfinished.c_str(), "wb");
  bool written = file != nullptr && fchmod(fileno(file), kPrivateFile) == 0 &&
                 std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size() &&
                 std::fflush(file) == 0 && fsync(fileno(file)) == 0;
  const int why = errno;
  if (file != nullptr) std::fclose(file);
  if (!written) return failed(std::strerror(why));
  fs::rename(unfinished, path, error);
  if (error) return failed(error.message());
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  written = descriptor >= 0 && fsync(descriptor) == 0;
  if (descriptor >= 0) close(descriptor);
  return written ? absl::OkStatus() : failed("it cannot be synced");
}

bool Calibrations::BeginSending() {
  MutexLock lock(mu_);
  if (sending_ == kMaxSending) return false;
  ++sending_;
  return true;
}

void Calibrations::EndSending() {
  MutexLock lock(mu_);
  --sending_;
}

absl::StatusOr<Calibrations::Added> Calibrations::Add(std::span<const uint8_t> blob) {
  return AddSent(blob, nullptr);
}

absl::StatusOr<Calibrations::Added> Calibrations::AddOf(const std::string& tenant,
                                                        std::span<const uint8_t> blob) {
  const FitOwner owner{.tenant = tenant};
  return AddSent(blob, &owner);
}

absl::StatusOr<Calibrations::Added> Calibrations::AddSent(std::span<const uint8_t> blob,
                                                          const FitOwner* owner) {
  if (owner == nullptr && blob.size() > kMaxBlobBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a calibration of ", blob.size(), " bytes; one that is sent has at most ", kMaxBlobBytes,
        ": an operator may put the file into the server's folder of calibrations"));
  }
  const auto calibration = ParseCalibration(blob);
  if (absl::IsDataLoss(calibration.status())) {  // nothing of ours was lost
    return absl::InvalidArgumentError(calibration.status().message());
  }
  KVSTOW_RETURN_IF_ERROR(calibration.status());
  Added out{.id = (*calibration)->id()};
  MutexLock lock(mu_);
  out.already_there = store_.Find(out.id) != nullptr;
  if (out.already_there) return out;
  if (!(*calibration)->fit_note().has_value()) owner = nullptr;  // it tells of no pages
  if (owner != nullptr) {
    // All of them together have as much as one more space would, and the oldest make room.
    KVSTOW_RETURN_IF_ERROR(CheckRoomForTables(FitName{}, blob.size()));
    const uint64_t most = RoomHeld(FitName{}) - blob.size();
    const auto before = fs::file_time_type::clock::now() - kLeastStay;
    const auto gone = Oldest(foreign_, most, before);
    EraseIf(foreign_, [&](const File& file) { return gone.contains(file.calibration->id()); });
    if (BytesOf(foreign_) > most) {
      return absl::ResourceExhaustedError(
          absl::StrCat("tables of ", blob.size(), " bytes that another server fitted: others of ",
                       BytesOf(foreign_), " bytes came within an hour, of ", most + blob.size()));
    }
  } else if (blob.size() > kMaxSentBytes - sent_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "calibrations of ", sent_bytes_, " bytes were sent since the server started, of ",
        kMaxSentBytes, ": an operator may put the file into its folder of calibrations"));
  }
  KVSTOW_ASSIGN_OR_RETURN(File file, Keep(out.id, blob, folder_, owner));
  if (owner != nullptr) {
    foreign_[out.id] = std::move(file);
  } else {
    sent_bytes_ += blob.size();
  }
  Log().info("calibration {} was sent, {} bytes", HexOf(out.id), blob.size());
  return out;
}

absl::StatusOr<DataKey> Calibrations::KeyFor(const std::string& tenant) const {
  auto key = keys_->KeyToSeal(tenant);
  if (key.ok()) return key;
  return absl::Status(
      key.status().code(),
      absl::StrCat("calibrations: tables tell of pages and are written only under a key: ",
                   key.status().message()));
}

absl::Status Calibrations::CanKeep(const std::string& tenant) const {
  const bool sealed_file = keys_ != nullptr && keys_->seals() && !folder_.empty();
  return sealed_file ? KeyFor(tenant).status() : absl::OkStatus();
}

absl::StatusOr<Calibrations::File> Calibrations::Keep(const CalibrationId& id,
                                                      std::span<const uint8_t> blob,
                                                      const std::string& folder,
                                                      const FitOwner* owner) {
  File out{.calibration = nullptr, .path = "", .bytes = blob.size(), .place = {}};
  if (owner != nullptr) out.place = {.tenant = owner->tenant, .space = owner->space};
  if (!folder.empty() && (owner == nullptr || !seals())) {
    const std::string name = absl::StrCat(HexOf(id), ".kvcal");
    KVSTOW_RETURN_IF_ERROR(Write(name, blob, folder));
    out.path = PathIn(folder, name);
  } else if (!folder.empty() && keys_ != nullptr) {
    KVSTOW_ASSIGN_OR_RETURN(const DataKey key, KeyFor(owner->tenant));
    out.place.number = RandomNumber();
    const std::string name = TablesFileName(out.place.number);
    KVSTOW_RETURN_IF_ERROR(Write(name, AsBytes(SealTables(key, out.place, blob)), folder));
    out.path = PathIn(folder, name);
  }
  KVSTOW_ASSIGN_OR_RETURN(out.calibration, store_.Add(blob));
  if (out.path.empty()) {
    blobs_[id] = SharedBytes::CopyOf(blob);
  } else {
    paths_[id] = out.path;
  }
  return out;
}

uint64_t Calibrations::RoomHeld(const FitName& space) const {
  uint64_t own = 0;
  for (const auto& [id, file] : fitted_) {
    if (file.calibration->fit_note()->space == space) own += file.bytes;
  }
  const uint64_t left = most_fitted_bytes_ - std::min(BytesOf(fitted_), most_fitted_bytes_);
  return std::min<uint64_t>(kMaxTablesBytes, left > own ? (left - own) / 2 : 0);
}

uint64_t Calibrations::RoomFor(const FitName& space) const {
  MutexLock lock(mu_);
  return RoomHeld(space);
}

absl::Status Calibrations::CheckRoomForTables(const FitName& space, uint64_t bytes) const {
  const uint64_t room = RoomHeld(space);
  if (bytes <= room) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a fitted calibration of ", bytes, " bytes; its space may add ", room, ", of ",
                   most_fitted_bytes_, " that all spaces have: drop spaces that nobody needs"));
}

absl::StatusOr<CalibrationId> Calibrations::AddFitted(const FitOwner& owner,
                                                      std::span<const uint8_t> blob) {
  KVSTOW_ASSIGN_OR_RETURN(const auto made, ParseCalibration(blob));
  MutexLock lock(mu_);
  KVSTOW_RETURN_IF_ERROR(CheckRoomForTables(owner.name, blob.size()));
  return KeepFor(owner, made->id(), blob);
}

absl::StatusOr<CalibrationId> Calibrations::KeepFor(const FitOwner& owner, const CalibrationId& id,
                                                    std::span<const uint8_t> blob) {
  if (!fitted_.contains(id)) {
    KVSTOW_ASSIGN_OR_RETURN(File file, Keep(id, blob, FittedFolder(), &owner));
    fitted_[id] = std::move(file);
    // What other servers fitted takes the rest.
    const auto gone = Oldest(foreign_, RoomHeld(FitName{}), fs::file_time_type::max());
    EraseIf(foreign_, [&](const File& other) { return gone.contains(other.calibration->id()); });
  }
  return id;
}

absl::Status Calibrations::AddNote(const FitOwner& owner, const KvSpec& spec, const FitNote& note) {
  const std::string nothing = SerializeCalibration(ShapeFor(spec, 1), {});
  KVSTOW_ASSIGN_OR_RETURN(const std::string blob, WithFitNote(AsBytes(nothing), note));
  MutexLock lock(mu_);
  // It takes some hundred bytes, and a space has one: it needs no room.
  KVSTOW_ASSIGN_OR_RETURN(const CalibrationId id,
                          KeepFor(owner, IdOf(AsBytes(blob)), AsBytes(blob)));
  EraseIf(fitted_, [&](const File& file) {
    const Calibration& other = *file.calibration;
    const bool alone = !other.Has(kJointSection) && !other.Has(kStatsSection);
    return alone && other.fit_note()->space == owner.name && other.id() != id;
  });
  return absl::OkStatus();
}

std::shared_ptr<const Calibration> Calibrations::LastOf(const FitName& space,
                                                        bool statistics) const {
  std::shared_ptr<const Calibration> last;
  for (const auto& [id, file] : fitted_) {
    const FitNote& note = *file.calibration->fit_note();
    if (note.space != space || file.calibration->Has(kStatsSection) != statistics) continue;
    if (last == nullptr || last->fit_note()->number < note.number) last = file.calibration;
  }
  return last;
}

std::shared_ptr<const Calibration> Calibrations::LastFitted(const FitName& space) const {
  MutexLock lock(mu_);
  return LastOf(space, /*statistics=*/false);
}

std::shared_ptr<const Calibration> Calibrations::StatisticsOf(const FitName& space) const {
  MutexLock lock(mu_);
  return LastOf(space, /*statistics=*/true);
}

absl::StatusOr<Calibrations::Added> Calibrations::TakeStatistics(const FitOwner& owner,
                                                                 const KvSpec& spec,
                                                                 std::span<const uint8_t> blob) {
  const auto stats = ParseModelStats(blob, spec);
  if (!stats.ok()) return absl::InvalidArgumentError(stats.status().message());
  KVSTOW_ASSIGN_OR_RETURN(const std::string alone, StatsCalibration(spec, *stats));
  // One call at a time: each replaces those that it found, and no others.
  MutexLock lock(mu_);
  const auto before = LastOf(owner.name, /*statistics=*/true);
  const uint64_t number = before == nullptr ? 0 : before->fit_note()->number;
  const auto noted = [&](uint64_t n) { return WithFitNote(AsBytes(alone), {owner.name, n, ""}); };
  if (before != nullptr) {
    KVSTOW_ASSIGN_OR_RETURN(const std::string again, noted(number));
    if (before->id() == IdOf(AsBytes(again))) return Added{before->id(), true};
  }
  KVSTOW_ASSIGN_OR_RETURN(const std::string now, noted(number + 1));
  KVSTOW_RETURN_IF_ERROR(CheckRoomForTables(owner.name, now.size()));
  KVSTOW_ASSIGN_OR_RETURN(const CalibrationId id, KeepFor(owner, IdOf(AsBytes(now)), AsBytes(now)));
  EraseIf(fitted_, [&](const File& file) {
    const Calibration& other = *file.calibration;
    return other.fit_note()->space == owner.name && other.Has(kStatsSection) && other.id() != id;
  });
  return Added{id, false};
}

std::set<FitName> Calibrations::FittedSpaces() const {
  MutexLock lock(mu_);
  std::set<FitName> out;
  for (const auto& [id, file] : fitted_) out.insert(file.calibration->fit_note()->space);
  return out;
}

void Calibrations::EraseFitted(const std::set<FitName>& spaces) {
  if (spaces.empty()) return;
  MutexLock lock(mu_);
  EraseIf(fitted_,
          [&](const File& file) { return spaces.contains(file.calibration->fit_note()->space); });
}

void Calibrations::DropTenant(const std::string& tenant) {
  MutexLock lock(mu_);
  // A file in clear does not name its tenant. EraseFitted erases it with its space.
  const auto of_tenant = [&](const File& file) {
    return file.place.tenant == tenant && (file.place.number != 0 || file.path.empty());
  };
  EraseIf(fitted_, of_tenant);
  EraseIf(foreign_, of_tenant);
  std::erase_if(locked_, [&](const auto& file) {
    std::error_code ignored;
    if (file.second == tenant) fs::remove(file.first, ignored);
    return file.second == tenant;
  });
}

Calibrations::Unread Calibrations::unread() const {
  MutexLock lock(mu_);
  return unread_;
}

void Calibrations::EraseIf(Files& files, const std::function<bool(const File&)>& gone) {
  for (auto it = files.begin(); it != files.end();) {
    if (!gone(it->second)) {
      ++it;
      continue;
    }
    std::error_code ignored;
    if (!it->second.path.empty()) fs::remove(it->second.path, ignored);
    paths_.erase(it->first);
    blobs_.erase(it->first);
    store_.Remove(it->first);
    it = files.erase(it);
  }
}

// A recipe that does not name its calibration in full takes the one that fits.
absl::StatusOr<std::shared_ptr<const Codec>> Calibrations::CodecOfLoaded(const Recipe& recipe,
                                                                         const KvSpec& spec) const {
  KVSTOW_RETURN_IF_ERROR(Validate(spec));
  KVSTOW_ASSIGN_OR_RETURN(const auto need, CalibrationNeeds(recipe));
  KVSTOW_ASSIGN_OR_RETURN(const auto queries, QueryNeeds(recipe));
  Recipe named = recipe;
  if (need.has_value()) {
    KVSTOW_ASSIGN_OR_RETURN(const auto calibration, store_.Choose(spec, *need));
    KVSTOW_ASSIGN_OR_RETURN(named, NameCalibration(named, HexOf(calibration->id())));
  }
  if (queries.has_value()) {
    KVSTOW_ASSIGN_OR_RETURN(const auto calibration, store_.Choose(spec, *queries));
    KVSTOW_ASSIGN_OR_RETURN(named, NameQueries(named, HexOf(calibration->id())));
  }
  return MakeCodec(named, spec, store_);
}

absl::StatusOr<std::shared_ptr<const Codec>> Calibrations::CodecOf(const Recipe& recipe,
                                                                   const KvSpec& spec) {
  auto codec = CodecOfLoaded(recipe, spec);
  if (!absl::IsFailedPrecondition(codec.status())) return codec;
  const absl::Status loaded = Load();
  if (loaded.ok()) codec = CodecOfLoaded(recipe, spec);
  if (!absl::IsFailedPrecondition(codec.status())) return codec;
  return absl::FailedPreconditionError(
      absl::StrCat("recipe '", recipe.text(), "': ", codec.status().message(), " and ",
                   "send its file with `kvstow codec send`, or ",
                   folder_.empty() ? "start the server with --calibrations FOLDER, where it is"
                                   : absl::StrCat("put it into the server's folder ", folder_),
                   loaded.ok() ? "" : absl::StrCat(" (", loaded.message(), ")")));
}

std::shared_ptr<const Codec> MakeMissingCodec(const Recipe& recipe, const KvSpec& spec,
                                              absl::Status why) {
  return std::make_shared<MissingCodec>(recipe, spec, std::move(why));
}

}  // namespace kvstow
