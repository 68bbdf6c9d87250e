// The flags for the form in which pages cross the network, for the verbs that put and get them.
#ifndef KVSTOW_CLIENT_CLI_PAYLOAD_FLAGS_H_
#define KVSTOW_CLIENT_CLI_PAYLOAD_FLAGS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/cli.h"
#include "client/client.h"

namespace kvstow::cli {

struct PayloadFlags {
  std::string payload = "raw";
  std::vector<std::string> calibrations;  // files
};

// Adds --payload and --calibration.
void AddPayloadFlags(const Verb& verb, PayloadFlags& flags);

// Returns a client. Errors name the calibration's file.
absl::StatusOr<std::unique_ptr<Client>> ConnectWith(const ServerFlags& server,
                                                    const PayloadFlags& flags);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_PAYLOAD_FLAGS_H_
