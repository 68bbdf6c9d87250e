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
// after a restart.
//
// A folder of the server's own has mode 0700 and its files 0600, whatever the umask says; Load
// tightens looser modes. An operator's folder keeps its mode.
//
// Thread-safe. CodecOf and Load read files and Add writes one, so they block.
#ifndef KVSTOW_SERVICE_SPACES_CALIBRATIONS_H_
#define KVSTOW_SERVICE_SPACES_CALIBRATIONS_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/shared_bytes.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/codec.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

class Calibrations {
 public:
  static constexpr size_t kMaxBlobBytes = size_t{256} << 20;  // of one that is sent
  static constexpr size_t kMaxSentBytes = size_t{1} << 30;    // of all that were sent to a server
  static constexpr size_t kMaxFittedBytes = size_t{2} << 30;  // of all that is for one space

  static constexpr int kMaxSending = 2;  // at a time

  // An empty `folder` means the folder `calibrations` below `disk_path`, beside the pages that need
  // it; the first blob that is sent makes it. Without a disk either, calibrations live in memory
  // alone.
  explicit Calibrations(const std::string& folder, const std::string& disk_path = "")
      : folder_(folder.empty() && !disk_path.empty() ? disk_path + "/calibrations" : folder),
        may_lack_(folder.empty()) {}

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

  // Takes a calibration with a FitNote that the server made. RESOURCE_EXHAUSTED: beyond
  // kMaxBlobBytes, or with kMaxFittedBytes of all. UNAVAILABLE as for Add.
  absl::StatusOr<CalibrationId> AddFitted(std::span<const uint8_t> blob);
  // Returns the last one of a space (FitNote::space); null: there is none.
  std::shared_ptr<const Calibration> LastFitted(const FitName& space) const;

  // Takes statistics of a space's model (model_stats.h), in place of those that the space had. OK
  // as well when it had these. INVALID_ARGUMENT: they are not such statistics, or of another shape
  // than the spec. Other errors are those of AddFitted.
  absl::StatusOr<Added> TakeStatistics(const FitName& space, const KvSpec& spec,
                                       std::span<const uint8_t> blob);
  // Returns them; null: there are none.
  std::shared_ptr<const Calibration> StatisticsOf(const FitName& space) const;

  // Forgets what was fitted to all other spaces, their statistics too, and erases the files.
  void KeepFitted(const std::set<FitName>& spaces);

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
  };
  // Reads the files of a folder that were not read yet. Adds to `found` those that are
  // calibrations.
  std::error_code ReadFolder(const std::string& folder, std::vector<File>& found)
      KVSTOW_REQUIRES(mu_);
  // Adds a blob that is not here yet, with its file in `folder`.
  absl::Status Keep(const CalibrationId& id, std::span<const uint8_t> blob,
                    const std::string& folder) KVSTOW_REQUIRES(mu_);
  absl::Status Write(const CalibrationId& id, std::span<const uint8_t> blob,
                     const std::string& folder) const;
  // Returns the last blob of a space that has this section; null: there is none.
  std::shared_ptr<const Calibration> LastOf(const FitName& space, absl::string_view section) const
      KVSTOW_REQUIRES(mu_);
  using Fitted = std::map<CalibrationId, File>;
  Fitted::iterator EraseFitted(Fitted::iterator it) KVSTOW_REQUIRES(mu_);
  std::string FittedFolder() const { return folder_.empty() ? "" : folder_ + "/fitted"; }

  const std::string folder_;
  const bool may_lack_;
  CalibrationStore store_;
  mutable Mutex mu_;                                   // one reader of the folder at a time
  std::set<std::string> read_ KVSTOW_GUARDED_BY(mu_);  // name, size and time of each
  std::map<CalibrationId, std::string> paths_ KVSTOW_GUARDED_BY(mu_);  // of files
  std::map<CalibrationId, SharedBytes> blobs_ KVSTOW_GUARDED_BY(mu_);  // of those without a file
  Fitted fitted_ KVSTOW_GUARDED_BY(mu_);
  int sending_ KVSTOW_GUARDED_BY(mu_) = 0;
  size_t sent_bytes_ KVSTOW_GUARDED_BY(mu_) = 0;
};

// Returns a codec that stands for a missing one: it names its recipe and refuses every page with
// `why`.
std::shared_ptr<const Codec> MakeMissingCodec(const Recipe& recipe, const KvSpec& spec,
                                              absl::Status why);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_SPACES_CALIBRATIONS_H_
