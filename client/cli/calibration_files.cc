#include "client/cli/calibration_files.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/case/mapped_file.h"

namespace kvstow::cli {

void AddCalibrationFlag(const Verb& verb, std::vector<std::string>& files) {
  verb.Option("--calibration", files,
              "file that `kvstow codec calibrate` wrote, for recipes that need one; may be "
              "given more than once")
      .TypeName("FILE")
      .OneValueEach();
}

absl::Status LoadCalibrations(const std::vector<std::string>& files, CalibrationStore& out) {
  for (const std::string& path : files) {
    KVSTOW_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
    const absl::Status status = out.Add(file.bytes()).status();
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvstow::cli
