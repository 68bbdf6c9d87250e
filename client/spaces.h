// The options with which a worker opens a space, and the information that it gets back.
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

// The form in which pages cross the network. Encoded: as they are stored; the client codes and
// decodes them, with fewer bytes and its own CPU time. Auto: the way that brings more raw bytes a
// second, by measurement (payload_choice.h).
enum class Payload : uint8_t { kRaw = 0, kEncoded = 1, kAuto = 2 };

enum class Fidelity : uint8_t { kUnspecified = 0, kExact = 1, kDense = 2, kSparse = 3 };
absl::string_view FidelityName(Fidelity f);

struct SpaceOptions {
  std::string name;
  KvSpec spec;
  std::string recipe;  // "" = the server's default
  Fidelity fidelity = Fidelity::kUnspecified;
  // The pages belong to one session: a sparse recipe may drop tokens by what queries looked at.
  // Absent: the space's own value, or false for a new one.
  std::optional<bool> is_private = {};
  std::optional<Payload> payload = {};  // absent: as the client's options say
  // The calibration (from SendCalibration) with the statistics of queries that the recipe's policy
  // reads. "": the space's own, or those that the server has if only one fits.
  std::string queries = {};
  // The model norms its keys (QK-norm: Gemma 3, Qwen 3). A recipe `auto` goes by it.
  bool normed_keys = false;
};

struct SpaceInfo {
  std::string name, recipe, pipeline, fingerprint;  // fingerprint: 16 bytes
  KvSpec spec;
  Fidelity fidelity = Fidelity::kUnspecified;
  bool is_private = false;
  bool created = false;
  bool wants_statistics = false;  // of its model: see Client::SendStatistics
  uint32_t levels = 1;
  uint32_t layers_per_run = 1;  // for GetLayersAsync: an eighth of the layers, or whole segments
  // OK when puts go as wanted. Else the reason why they go raw instead of encoded: a calibration is
  // not loaded here, or the recipe cannot do it.
  absl::Status put_encoded;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_SPACES_H_
