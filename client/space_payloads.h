// What a client knows of the spaces that it opened: which they are, and how to send and take their
// pages encoded: the codec that put uses, and how to choose.
//
// Thread-safe.
#ifndef KVSTOW_CLIENT_SPACE_PAYLOADS_H_
#define KVSTOW_CLIENT_SPACE_PAYLOADS_H_

#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "client/client.h"
#include "client/payload_choice.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/codec.h"
#include "kernels/device/device_codec.h"

namespace kvstow {

// A client's, or none.
const CalibrationStore& CalibrationsOf(const ClientOptions& options);

struct SpacePayload {
  std::string fingerprint;              // of the space as it was opened, 16 bytes; "": it was not
  SpaceOptions again;                   // what opens the same space once more
  std::shared_ptr<const Codec> codec;   // null: pages cannot be encoded here
  std::shared_ptr<DeviceCodec> on_gpu;  // of the same pages in the GPU's memory; null: codec does
  bool reads_columns = false;           // coding reads attention columns: pages with some go raw
  uint64_t page_bytes = kMaxPageBytes;  // raw, of a full page at most
  PayloadChoice put, get;

  SpacePayload(Payload wanted_put, Payload wanted_get) : put(wanted_put), get(wanted_get) {}
};

class SpacePayloads {
 public:
  explicit SpacePayloads(const ClientOptions& options) : options_(options) {}

  // Notes a space that was opened. Where pages are not to be put raw and this client cannot encode
  // them, they are put raw all the same: the status says why.
  absl::Status Add(const SpaceInfo& space, absl::string_view put_pipeline, Payload wanted,
                   SpaceOptions again);
  // Never null: a space that is not known is raw to put, and as the options say to get.
  std::shared_ptr<SpacePayload> Find(const std::string& space);

 private:
  const ClientOptions& options_;
  Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<SpacePayload>> spaces_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_SPACE_PAYLOADS_H_
