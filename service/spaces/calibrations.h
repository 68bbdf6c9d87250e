// The calibrations that the server holds: those of the files in one folder, found by the hash of
// their bytes. docs/OPERATIONS.md says how an operator puts them there.
//
// Workers may send more (Add). The server writes these into the folder, as ID.kvcal, before
// anything uses them. Without a folder they live as long as the server.
//
// Load reads every regular file of the folder, whatever its name, except unfinished ones
// (*.kvcal.tmp). It warns about a file that is no calibration and leaves it alone. The server reads
// files at start, and again when a recipe needs a calibration that is not here: a new file needs no
// restart. Loaded calibrations stay in memory, also when their files go, since pages name them.
//
// What the server fitted by itself to a space (service/fitting) lies in the folder `fitted` below,
// and so do the statistics of the space's model. The server finds the last ones of each space again
// after a restart. They tell of the space's pages: with data keys they are sealed
// (sealed_tables.h), and so is what another server fitted. A file that does not open is left alone
// and counted. Pages that need it are misses then, and the space goes on without it.
//
// A folder of the server's own has mode 0700 and its files 0600, whatever the umask says; Load
// tightens looser modes. An operator's folder keeps its mode.
//
// Thread-safe. CodecOf and Load read files and Add writes one, so they block.
#ifndef KVSTOW_SERVICE_SPACES_CALIBRATIONS_H_
#define KVSTOW_SERVICE_SPACES_CALIBRATIONS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/shared_bytes.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/codec.h"
#include "kernels/recipe/recipe.h"
#include "service/spaces/sealed_tables.h"
#include "storage/seal/data_keys.h"
#include "storage/segment.h"

namespace kvstow {

// The space that a blob is for, and its tenant.
struct FitOwner {
  FitName name{};
  SpaceId space = 0;
  std::string tenant;
};

class Calibrations {
 public:
  static constexpr size_t kMaxBlobBytes = size_t{256} << 20;  // of one that is sent
  static constexpr size_t kMaxSentBytes = size_t{1} << 30;    // of all that were sent to a server
  static constexpr size_t kMaxTablesBytes = size_t{2} << 30;  // of one that a server fitted
  static constexpr size_t kMaxFittedBytes = size_t{8} << 30;  // of all that servers fitted

  static constexpr int kMaxSending = 2;  // at a time

  // An empty `folder` means the folder `calibrations` below `disk_path`, beside the pages that need
  // it; the first blob that is sent makes it. Without a disk either, calibrations live in memory
  // alone. `keys` seal what tells of a tenant's pages. Null: it may not be written at all, and
  // lives in memory. `most_fitted_bytes` are those of all that servers fitted.
  explicit Calibrations(const std::string& folder, const std::string& disk_path = "",
                        std::shared_ptr<DataKeys> keys = NoDataKeys(),
                        uint64_t most_fitted_bytes = kMaxFittedBytes)
      : folder_(folder.empty() && !disk_path.empty() ? disk_path + "/calibrations" : folder),
        may_lack_(folder.empty()),
        keys_(std::move(keys)),
        most_fitted_bytes_(most_fitted_bytes) {}

  // Reads the files that were not read yet. NOT_FOUND and PERMISSION_DENIED are about the folder.
  absl::Status Load();

  // Counts one more calibration that is being received; false while there are kMaxSending. The
  // caller runs EndSending when the calibration is here or given up.
  bool BeginSending();
  void EndSending();

  // Takes a calibration that was sent; one that is here already is OK. Fails with
  // Calibration::Parse's errors, but INVALID_ARGUMENT for DATA_LOSS; with RESOURCE_EXHAUSTED beyond
  // the limits above; with UNAVAILABLE when the folder cannot be written.
  struct Added {
    CalibrationId id{};
    bool already_there = false;
  };
  absl::StatusOr<Added> Add(std::span<const uint8_t> blob);
  // The same for one that another server has, for pages of the tenant. With a FitNote it tells of
  // them. UNAVAILABLE too while the tenant has no key.
  absl::StatusOr<Added> AddOf(const std::string& tenant, std::span<const uint8_t> blob);

  // Says whether what tells of the tenant's pages may be written. UNAVAILABLE: it has no key now.
  absl::Status CanKeep(const std::string& tenant) const;
  // Returns how many bytes of tables a space may add now. One has at most kMaxTablesBytes. Of
  // most_fitted_bytes, all spaces together, a space may take as many as it leaves free: so none
  // takes them all, and where one is alone it has half of them.
  uint64_t RoomFor(const FitName& space) const;
  // Takes a calibration with a FitNote that the server made. RESOURCE_EXHAUSTED: beyond RoomFor.
  // UNAVAILABLE as for AddOf.
  absl::StatusOr<CalibrationId> AddFitted(const FitOwner& owner, std::span<const uint8_t> blob);
  // The same for a form without tables: a note alone, in place of one before. It needs no room.
  absl::Status AddNote(const FitOwner& owner, const KvSpec& spec, const FitNote& note);
  // Returns what was fitted last to a space (FitNote::space); null: nothing was. Without section
  // `joint` it is a note alone.
  std::shared_ptr<const Calibration> LastFitted(const FitName& space) const;

  // Takes statistics of a space's model (model_stats.h), in place of those that the space had. OK
  // as well when it had these. INVALID_ARGUMENT: they are not such statistics, or of another shape
  // than the spec. Other errors are those of AddFitted.
  absl::StatusOr<Added> TakeStatistics(const FitOwner& owner, const KvSpec& spec,
                                       std::span<const uint8_t> blob);
  // Returns them; null: there are none.
  std::shared_ptr<const Calibration> StatisticsOf(const FitName& space) const;

  // Returns the spaces to which something was fitted, or that have statistics.
  std::set<FitName> FittedSpaces() const;
  // Forgets what was fitted to these, their statistics too, and erases the files. Whoever goes by
  // the spaces that are open asks for FittedSpaces first: a space may be opened meanwhile.
  void EraseFitted(const std::set<FitName>& spaces);
  // Forgets what tells of the tenant's pages, and erases the files, those without a key too.
  void DropTenant(const std::string& tenant);

  // Files of what tells of pages that were not read since the server started.
  struct Unread {
    uint64_t locked = 0;   // their key is not here
    uint64_t damaged = 0;  // they were changed, moved or renamed, or are in clear where none may be
  };
  Unread unread() const;

  // Returns the bytes of a calibration that is here, as they came or as its file has them now.
  // NOT_FOUND: it is not here, or its file went.
  absl::StatusOr<SharedBytes> Blob(const CalibrationId& id);

  // The calibrations that decoding uses.
  const CalibrationStore& store() const { return store_; }

  // Returns the codec of a recipe. The codec's recipe names its calibrations in full (those that
  // code its pages, and the statistics of queries that its policy reads): a space must not depend
  // on what else is loaded later. FAILED_PRECONDITION says what to do when the calibration is not
  // here.
  absl::StatusOr<std::shared_ptr<const Codec>> CodecOf(const Recipe& recipe, const KvSpec& spec);

 private:
  absl::StatusOr<std::shared_ptr<const Codec>> CodecOfLoaded(const Recipe& recipe,
                                                             const KvSpec& spec) const;

  struct File {
    std::shared_ptr<const Calibration> calibration;
    std::string path;
    uint64_t bytes = 0;
    TablesPlace place;  // of sealed ones; number 0 = it is in clear
  };
  using Files = std::map<CalibrationId, File>;
  // Reads the files of a folder that were not read yet. Adds to `found` those that are
  // calibrations.
  std::error_code ReadFolder(const std::string& folder, std::vector<File>& found)
      KVSTOW_REQUIRES(mu_);
  // Reads one file, whose calibration is added to the store. Counts what tells of pages and does
  // not open.
  absl::StatusOr<File> ReadOne(const std::string& path) KVSTOW_REQUIRES(mu_);
  // Opens the bytes of a file that may be sealed. The place of one in clear has number 0.
  absl::StatusOr<OpenedTables> Open(const std::string& path, std::string bytes) const;
  uint64_t RoomHeld(const FitName& space) const KVSTOW_REQUIRES(mu_);  // RoomFor
  // RESOURCE_EXHAUSTED: so many bytes of tables are too many for a space.
  absl::Status CheckRoomForTables(const FitName& space, uint64_t bytes) const KVSTOW_REQUIRES(mu_);
  // As AddFitted, for a blob of this id that there is room for.
  absl::StatusOr<CalibrationId> KeepFor(const FitOwner& owner, const CalibrationId& id,
                                        std::span<const uint8_t> blob) KVSTOW_REQUIRES(mu_);
  // As Add. `owner` null: it is for all.
  absl::StatusOr<Added> AddSent(std::span<const uint8_t> blob, const FitOwner* owner);
  // Adds a blob that is not here yet, with its file in `folder`. An owner's is sealed.
  absl::StatusOr<File> Keep(const CalibrationId& id, std::span<const uint8_t> blob,
                            const std::string& folder, const FitOwner* owner) KVSTOW_REQUIRES(mu_);
  absl::StatusOr<DataKey> KeyFor(const std::string& tenant) const;
  absl::Status Write(const std::string& name, std::span<const uint8_t> bytes,
                     const std::string& folder) const;
  // Returns the last statistics of a space, or what was fitted to it last; null: there is none.
  std::shared_ptr<const Calibration> LastOf(const FitName& space, bool statistics) const
      KVSTOW_REQUIRES(mu_);
  // Forgets those of which `gone` is true, and erases their files.
  void EraseIf(Files& files, const std::function<bool(const File&)>& gone) KVSTOW_REQUIRES(mu_);
  bool seals() const { return keys_ == nullptr || keys_->seals(); }
  std::string FittedFolder() const {
    return folder_.empty() || keys_ == nullptr ? "" : folder_ + "/fitted";
  }

  const std::string folder_;
  const bool may_lack_;
  const std::shared_ptr<DataKeys> keys_;
  const uint64_t most_fitted_bytes_;
  CalibrationStore store_;
  mutable Mutex mu_;                                   // one reader of the folder at a time
  std::set<std::string> read_ KVSTOW_GUARDED_BY(mu_);  // name, size and time of each
  std::map<CalibrationId, std::string> paths_ KVSTOW_GUARDED_BY(mu_);  // of files
  std::map<CalibrationId, SharedBytes> blobs_ KVSTOW_GUARDED_BY(mu_);  // of those without a file
  Files fitted_ KVSTOW_GUARDED_BY(mu_);
  Files foreign_ KVSTOW_GUARDED_BY(mu_);  // that other servers fitted, as far as it is known whose
  std::map<std::string, std::string> locked_ KVSTOW_GUARDED_BY(mu_);  // tenants of files by path
  Unread unread_ KVSTOW_GUARDED_BY(mu_);
  int sending_ KVSTOW_GUARDED_BY(mu_) = 0;
  size_t sent_bytes_ KVSTOW_GUARDED_BY(mu_) = 0;
};

// Returns a codec that stands for a missing one: it names its recipe and refuses every page with
// `why`.
std::shared_ptr<const Codec> MakeMissingCodec(const Recipe& recipe, const KvSpec& spec,
                                              absl::Status why);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_SPACES_CALIBRATIONS_H_
