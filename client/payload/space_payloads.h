// A client's knowledge of the spaces that it opened: which they are, the codec that put uses, to
// send and take their pages encoded, and the choice between raw and encoded.
//
// Thread-safe.
#ifndef KVSTOW_CLIENT_PAYLOAD_SPACE_PAYLOADS_H_
#define KVSTOW_CLIENT_PAYLOAD_SPACE_PAYLOADS_H_

#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "client/client_options.h"
#include "client/payload/payload_choice.h"
#include "client/spaces.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/codec.h"
#include "kernels/device/device_codec.h"

namespace kvstow {

// Returns the calibrations of the options, or an empty store.
const CalibrationStore& CalibrationsOf(const ClientOptions& options);

struct SpacePayload {
  std::string fingerprint;              // of the opened space, 16 bytes; "" = not opened
  SpaceOptions again;                   // opens the same space once more
  std::shared_ptr<const Codec> codec;   // null: pages cannot be encoded here
  std::shared_ptr<DeviceCodec> on_gpu;  // for pages in the GPU's memory; null: codec does them
  bool reads_columns = false;           // coding reads attention columns: pages with some go raw
  uint64_t page_bytes = kMaxPageBytes;  // raw bytes of a full page, at most
  PayloadChoice put, get;

  SpacePayload(Payload wanted_put, Payload wanted_get) : put(wanted_put), get(wanted_get) {}
};

class SpacePayloads {
 public:
  explicit SpacePayloads(const ClientOptions& options) : options_(options) {}

  // Notes an opened space. When `wanted` is not raw and this client cannot encode the pages, it
  // puts them raw all the same: the status says why.
  absl::Status Add(const SpaceInfo& space, absl::string_view put_pipeline, Payload wanted,
                   SpaceOptions again);
  // Never returns null. For an unknown space, puts go raw, and gets go as the options say.
  std::shared_ptr<SpacePayload> Find(const std::string& space);

 private:
  const ClientOptions& options_;
  Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<SpacePayload>> spaces_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_PAYLOAD_SPACE_PAYLOADS_H_
