// The calibrations that the server holds: those of the files in one folder, found by the hash of
// their bytes. docs/OPERATIONS.md says how an operator puts them there.
//
// Every regular file of the folder is read, whatever its name; one that is no calibration is warned
// about and left alone. Files are read at start, and again when something is asked for that is not
// here: a new file needs no restart. What was read stays in memory, also when its file goes, since
// pages name it.
//
// Thread-safe. CodecOf and Load read files, so they block.
#ifndef KVSTOW_SERVICE_CALIBRATIONS_H_
#define KVSTOW_SERVICE_CALIBRATIONS_H_

#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/calibration.h"
#include "kernels/codec.h"
#include "kernels/recipe.h"

namespace kvstow {

class Calibrations {
 public:
  explicit Calibrations(std::string folder) : folder_(std::move(folder)) {}  // "" = none

  // Reads the files that were not read yet. NOT_FOUND, PERMISSION_DENIED: the folder.
  absl::Status Load();

  // What pages are decoded with.
  const CalibrationStore& store() const { return store_; }

  // The codec of a recipe, which names its calibration in full: a space must not depend on what
  // else is loaded later. FAILED_PRECONDITION says what to do when the calibration is not here.
  absl::StatusOr<std::shared_ptr<const Codec>> CodecOf(const Recipe& recipe, const KvSpec& spec);

 private:
  absl::StatusOr<std::shared_ptr<const Codec>> CodecOfLoaded(const Recipe& recipe,
                                                             const KvSpec& spec) const;

  const std::string folder_;
  CalibrationStore store_;
  Mutex mu_;                                           // one reader of the folder at a time
  std::set<std::string> read_ KVSTOW_GUARDED_BY(mu_);  // name, size and time of each
};

// A codec that is not here: it names its recipe and refuses every page with `why`.
std::shared_ptr<const Codec> MakeMissingCodec(const Recipe& recipe, const KvSpec& spec,
                                              absl::Status why);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_CALIBRATIONS_H_
