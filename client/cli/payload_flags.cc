#include "client/cli/payload_flags.h"

#include "base/status_macros.h"
#include "client/cli/calibration_files.h"
#include "kernels/codec/calibration_store.h"

namespace kvstow::cli {

void AddPayloadFlags(const Verb& verb, PayloadFlags& flags) {
  verb.Option("--payload", flags.payload,
              "how pages cross the network. raw: the server codes them; encoded: they travel as "
              "they are stored and are coded here; auto: whichever measures faster")
      .OneOf({"raw", "encoded", "auto"})
      .ShowDefault();
  AddCalibrationFlag(verb, flags.calibrations);
}

absl::StatusOr<std::unique_ptr<Client>> ConnectWith(const ServerFlags& server,
                                                    const PayloadFlags& flags) {
  const auto calibrations = std::make_shared<CalibrationStore>();
  KVSTOW_RETURN_IF_ERROR(LoadCalibrations(flags.calibrations, *calibrations));
  ClientOptions options = OptionsOf(server);
  options.payload = flags.payload == "encoded" ? Payload::kEncoded
                    : flags.payload == "auto"  ? Payload::kAuto
                                               : Payload::kRaw;
  options.calibrations = calibrations;
  return Client::Connect(std::move(options));
}

}  // namespace kvstow::cli
