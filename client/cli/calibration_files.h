// Loads calibrations from files, for the verbs that decode here.
#ifndef KVSTOW_CLIENT_CLI_CALIBRATION_FILES_H_
#define KVSTOW_CLIENT_CLI_CALIBRATION_FILES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/cli.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/calibration_store.h"

namespace kvstow::cli {

// Adds --calibration FILE, which may be repeated.
void AddCalibrationFlag(const Verb& verb, std::vector<std::string>& files);

// Errors name the file.
absl::Status LoadCalibrations(const std::vector<std::string>& files, CalibrationStore& out);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_CALIBRATION_FILES_H_
