// The options of a client (client.h).
//
// Values.
#ifndef KVSTOW_CLIENT_CLIENT_OPTIONS_H_
#define KVSTOW_CLIENT_CLIENT_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "client/spaces.h"

namespace kvstow {

class CalibrationStore;  // kernels/calibration/calibration.h
class Device;            // kernels/device/device.h
class DeviceSharing;     // kernels/device/device_sharing.h

// TLS of a client: files in PEM, which are read anew when they change. The server's certificate
// must name the host of the address. A UNIX socket has no TLS, whatever stands here.
struct TlsOptions {
  std::string ca = {};           // whom it trusts; "" = no TLS
  std::string certificate = {};  // of its own, for a server that asks for one; "" = none
  std::string key = {};          // of that certificate, without a passphrase
  std::string server_name = {};  // that the server must have in place of the host; "" = the host
};

// The server that calls of a client go to now.
struct ServingNode {
  std::string address;
  uint64_t changes = 0;  // how often another server took over
};

struct ClientOptions {
  // HOST:PORT or unix:PATH; or several with commas between, of which one serves at a time. The
  // client prefers a UNIX socket, then an address of its own host, then the others in their order.
  // It goes to the next one when a server is dead or drains, and comes back when that one serves
  // again. dns:///NAME:PORT stands for every address that NAME has (docs/OPERATIONS.md, "Several
  // servers").
  std::string address = "127.0.0.1:7380";
  TlsOptions tls = {};  // for gRPC and direct connections
  // The identity of this client, where a server asks: a bearer token, or a file with one, which is
  // read again when it changes. Sent with every call, and never over a network in the clear.
  std::string token = {}, token_file = {};
  // Returns the W3C traceparent of the span that calls, or "". Runs in the thread that calls. The
  // server's log of slow and failing calls names the trace; streams and connections of pages have
  // none. Null = no traces.
  std::function<std::string()> traceparent = nullptr;
  std::chrono::milliseconds timeout{10'000};  // deadline of a call, with all its attempts
  int attempts = 6;                           // in a row without progress: about 1.5 s of waits
  uint64_t chunk_bytes = 1 << 20;             // payload of one message, at most 4 MiB
  uint64_t get_window_bytes = 32 << 20;       // payload that may be under way to us
  Payload payload = Payload::kRaw;            // for spaces without one of their own
  uint64_t shared_bytes = 256 << 20;          // at most, of buffers shared with a server; 0 = none
  size_t direct_connections = 8;              // beside gRPC, for pages, at most; 0 = none
  // The GPU that pages may lie on: OpenCudaSharing (kernels/device/device_sharing.h). Null = none.
  std::shared_ptr<DeviceSharing> gpu;
  uint64_t gpu_shared_bytes = 64 << 20;  // at most, of its memory: pages under way; 0 = none
  // The same GPU (OpenCudaDevice, kernels/device/device.h). It codes its own pages that go encoded,
  // where its codecs can. Null = the CPU codes them.
  std::shared_ptr<Device> gpu_device;
  // Calibrations for encoded pages. When a page needs another one, the pages of its space come raw
  // from then on. Null = none.
  std::shared_ptr<const CalibrationStore> calibrations;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CLIENT_OPTIONS_H_
