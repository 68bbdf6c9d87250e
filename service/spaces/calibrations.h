// The calibrations that the server holds: those of the files in one folder, found by the hash of
// their bytes. docs/OPERATIONS.md says how an operator puts them there.
//
// Workers may send more (Add): these are written into the folder, as ID.kvcal, before anything uses
// them. Without a folder they live as long as the server.
//
// Every regular file of the folder is read, whatever its name; one that is no calibration is warned
// about and left alone. Files are read at start, and again when something is asked for that is not
// here: a new file needs no restart. What was read stays in memory, also when its file goes, since
// pages name it.
//
// A folder of the server's own has mode 0700 and its files 0600, whatever the umask says; one that
// is looser is tightened by Load. An operator's folder keeps its mode.
//
// Thread-safe. CodecOf and Load read files and Add writes one, so they block.
#ifndef KVSTOW_SERVICE_SPACES_CALIBRATIONS_H_
#define KVSTOW_SERVICE_SPACES_CALIBRATIONS_H_

#include <memory>
#include <set>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/codec.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

class Calibrations {
 public:
  static constexpr size_t kMaxBlobBytes = size_t{256} << 20;  // of one that is sent
  static constexpr size_t kMaxSentBytes = size_t{1} << 30;    // of all that were sent to a server

  static constexpr int kMaxSending = 2;  // at a time

  // Without a folder of their own ("") they are with the pages that need them, in a folder that the
  // first blob that is sent makes; without a disk either, in memory alone.
  explicit Calibrations(const std::string& folder, const std::string& disk_path = "")
      : folder_(folder.empty() && !disk_path.empty() ? disk_path + "/calibrations" : folder),
        may_lack_(folder.empty()) {}

  // Reads the files that were not read yet. NOT_FOUND, PERMISSION_DENIED: the folder.
  absl::Status Load();

  // Counts one more that is being received; false while there are kMaxSending. EndSending when it
  // is here or given up.
  bool BeginSending();
  void EndSending();

  // Takes one that was sent; one that is here already is OK. Calibration::Parse's errors,
  // but INVALID_ARGUMENT for DATA_LOSS, RESOURCE_EXHAUSTED beyond the limits above, UNAVAILABLE
  // when the folder cannot be written.
  struct Added {
    CalibrationId id{};
    bool already_there = false;
  };
  absl::StatusOr<Added> Add(std::span<const uint8_t> blob);

  // What pages are decoded with.
  const CalibrationStore& store() const { return store_; }

  // The codec of a recipe, which names its calibrations in full (what codes its pages, and the
  // statistics of queries that its policy reads): a space must not depend on what else is loaded
  // later. FAILED_PRECONDITION says what to do when the calibration is not here.
  absl::StatusOr<std::shared_ptr<const Codec>> CodecOf(const Recipe& recipe, const KvSpec& spec);

 private:
  absl::StatusOr<std::shared_ptr<const Codec>> CodecOfLoaded(const Recipe& recipe,
                                                             const KvSpec& spec) const;

  absl::Status Write(const CalibrationId& id, std::span<const uint8_t> blob) const;

  const std::string folder_;
  const bool may_lack_;
  CalibrationStore store_;
  Mutex mu_;                                           // one reader of the folder at a time
  std::set<std::string> read_ KVSTOW_GUARDED_BY(mu_);  // name, size and time of each
  int sending_ KVSTOW_GUARDED_BY(mu_) = 0;
  size_t sent_bytes_ KVSTOW_GUARDED_BY(mu_) = 0;
};

// A codec that is not here: it names its recipe and refuses every page with `why`.
std::shared_ptr<const Codec> MakeMissingCodec(const Recipe& recipe, const KvSpec& spec,
                                              absl::Status why);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_SPACES_CALIBRATIONS_H_
