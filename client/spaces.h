// Spaces as a worker opens them, and what it learns of them.
//
// Values.
#ifndef KVSTOW_CLIENT_SPACES_H_
#define KVSTOW_CLIENT_SPACES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/page/page.h"

namespace kvstow {

// How pages cross the network. Encoded: as they are stored, coded and decoded here: fewer bytes,
// our CPU time. Auto: whichever brings more raw bytes a second, by measurement (payload_choice.h).
enum class Payload : uint8_t { kRaw = 0, kEncoded = 1, kAuto = 2 };

enum class Fidelity : uint8_t { kUnspecified = 0, kExact = 1, kDense = 2, kSparse = 3 };
absl::string_view FidelityName(Fidelity f);

struct SpaceOptions {
  std::string name;
  KvSpec spec;
  std::string recipe;  // "" = the server's default
  Fidelity fidelity = Fidelity::kUnspecified;
  // The pages are one session's own: a sparse recipe may drop tokens by what queries looked at.
  // Absent: the space's own, or not.
  std::optional<bool> is_private = {};
  std::optional<Payload> payload = {};  // absent: as the client's options say
  // The calibration (of SendCalibration) with the statistics of queries that the recipe's policy
  // reads. "": the space's own, or those that the server has if only one fits.
  std::string queries = {};
};

struct SpaceInfo {
  std::string name, recipe, pipeline, fingerprint;  // fingerprint: 16 bytes
  KvSpec spec;
  Fidelity fidelity = Fidelity::kUnspecified;
  bool is_private = false;
  bool created = false;
  uint32_t levels = 1;
  uint32_t layers_per_run = 1;  // for GetLayersAsync: an eighth of the layers, or whole segments
  // Why pages are put raw although they were to go encoded: a calibration that is not loaded here,
  // a recipe that cannot. OK: they are put as wanted.
  absl::Status put_encoded;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_SPACES_H_
