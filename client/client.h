// The client library: what an inference worker links to keep its KV pages in kvstow.
//
//   std::unique_ptr<Client> client = Client::Connect({.address = "127.0.0.1:7380"});
//   KVSTOW_ASSIGN_OR_RETURN(const SpaceInfo space, client->OpenSpace(
//       {.name = "smollm2", .spec = spec, .recipe = "int8"}));
//   const std::vector<std::string> keys = PageKeys({}, tokens, spec.page_tokens);  // key_chain.h
//   const PrefixHit hit = client->Lookup("smollm2", keys);  // a dead server: no pages
//   client->GetAsync("smollm2", hit.lease, pages, [](std::vector<GetResult> results) { ... });
//
// It never throws, never blocks past a deadline and never brings its worker down: a server that is
// dead, slow or restarting is a miss. UNAVAILABLE is tried again, with back-off, a few times and
// never past the call's deadline; nothing else is. The connection comes back by itself. Connect()
// does not wait for the server.
//
// A forked child has no clients: every call fails there at once with UNAVAILABLE, on the calling
// thread, and nothing is said on the parent's connections. Callbacks of calls that were open are
// the parent's. The child cannot make clients of its own: gRPC 1.51 does not survive a fork. Fork
// before the first Connect(), or exec.
//
// Thread-safe. Buffers that are handed in are the caller's and must live until the callback has
// run; a callback runs once, on a thread of the library, and must not block. The destructor cancels
// what is open and waits for callbacks; it must not run in one.
//
// A space is meant, never its name alone: the client remembers the fingerprint of what it opened,
// and every call carries it. After a restart of the server it opens the space again by itself. When
// another model has the name by then, pages are kNotCompatible, with a message that says what
// differs. A space that was not opened is opened by its name at its first use, as it is then.
//
// Pages travel raw or encoded, as the client or a space says. Encoded, they are the same bytes that
// the server would make. Pages go raw all the same with attention columns where coding reads them.
//
// Pages in buffers of NewBuffer() do not travel at all where the server is on this host: they are
// coded into and out of memory that it shares.
//
// Pages may lie in the memory of a GPU (ClientOptions::gpu), in blocks of whatever allocator. They
// are copied within it to and from memory that a server on the same GPU shares, else through the
// host; a worker's stream is not waited for, but by an event (pages.h). GetAsync, PutAsync and
// GetProgressiveAsync, and what is sugar over them, take such pages; the others refuse them.
//
// What is read is checked before it is a hit: the reply must name the key that was asked for, and
// the bytes must have their digest (the writer's for an exact page that comes whole, those of an
// encoded page, else one that the server made). Another key gives the connection up. A page whose
// digest differs is asked for once more, and is CORRUPT then. On a GPU keys alone are checked.
#ifndef KVSTOW_CLIENT_CLIENT_H_
#define KVSTOW_CLIENT_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/shared_bytes.h"
#include "client/layer_put.h"
#include "client/page_buffer.h"
#include "client/pages.h"
#include "client/spaces.h"
#include "kernels/page/page.h"

namespace kvstow {

class CalibrationStore;  // kernels/calibration/calibration.h
class Device;            // kernels/device/device.h
class DeviceSharing;     // kernels/device/device_sharing.h

struct ClientOptions {
  std::string address = "127.0.0.1:7380";     // HOST:PORT or unix:PATH
  std::chrono::milliseconds timeout{10'000};  // deadline of a call, with all its attempts
  int attempts = 6;                           // in a row that got nowhere: about 1.5 s of waits
  uint64_t chunk_bytes = 1 << 20;             // payload of one message, at most 4 MiB
  uint64_t get_window_bytes = 32 << 20;       // payload that may be under way to us
  Payload payload = Payload::kRaw;            // of spaces that do not say their own
  uint64_t shared_bytes = 256 << 20;          // at most, of buffers shared with a server; 0 = none
  size_t direct_connections = 8;              // beside gRPC, for pages, at most; 0 = none
  // The GPU that pages may lie on: OpenCudaSharing (kernels/device/device_sharing.h). Null = none.
  std::shared_ptr<DeviceSharing> gpu;
  uint64_t gpu_shared_bytes = 64 << 20;  // at most, of its memory: pages under way; 0 = none
  // The same GPU once more (OpenCudaDevice, kernels/device/device.h): it codes those of its pages
  // that go encoded, where its codecs can. Null = the CPU codes them.
  std::shared_ptr<Device> gpu_device;
  // What encoded pages may need; a page that needs another calibration is a miss. Null = none.
  std::shared_ptr<const CalibrationStore> calibrations;
};

struct PrefixHit {
  uint32_t pages = 0;  // leading keys that are stored
  uint64_t tokens = 0;
  uint64_t lease = 0;
  std::vector<std::string> tiers;  // of each page
  absl::Status status;             // why there is nothing, when the call itself failed
};

class Client {
 public:
  // INVALID options are reported by the first call. Does not wait for the server.
  static std::unique_ptr<Client> Connect(ClientOptions options);
  ~Client();

  absl::StatusOr<SpaceInfo> OpenSpace(const SpaceOptions& options);
  // The space as it is; NOT_FOUND. FAILED_PRECONDITION: this client opened another one of that
  // name.
  absl::StatusOr<SpaceInfo> FindSpace(absl::string_view name);
  // Forgets a space and all of its pages, for everyone; answers how many they were. UNAVAILABLE:
  // its bytes on a disk are not erased yet, and the server tries on.
  absl::StatusOr<uint64_t> DropSpace(absl::string_view space);

  // Gives the server a calibration blob (kernels/calibration/calibration.h) for recipes that need
  // one: what `kvstow codec calibrate` writes, or QueryCalibration
  // (kernels/importance/query_tables.h) makes of a worker's queries. Its name, 16 bytes; sending it
  // again is harmless. Before OpenSpace.
  absl::StatusOr<std::string> SendCalibration(std::span<const uint8_t> blob);

  PrefixHit Lookup(absl::string_view space, std::span<const std::string> keys, bool lease = true);
  absl::Status Release(uint64_t lease);

  // Memory for pages to put and to get, shared with the server where that can be (page_buffer.h).
  // Never null. Blocks at most the timeout.
  std::unique_ptr<PageBuffer> NewBuffer(size_t bytes);

  // The core: everything else is sugar over these. One result for each page, in order.
  using PutDone = std::function<void(std::vector<PutResult>)>;
  using GetDone = std::function<void(std::vector<GetResult>)>;
  void PutAsync(absl::string_view space, std::vector<PagePut> pages, PutDone done);
  void GetAsync(absl::string_view space, uint64_t lease, std::vector<PageGet> pages, GetDone done);

  // As GetAsync, but the layers of all pages come in runs, in order, so that a worker can start
  // with the first ones. For each run, `on_layers` is called with its layers once every page has
  // their bytes in `out`, or missed, and with the results so far, which last as long as the call;
  // after the last run, `done` with what the runs of a page have in common: a miss if any run was
  // one or brought other content, and of levels, error and kept tokens the worst. Until `done` a
  // hit is one by the digests of its runs; an exact page that then differs from its raw digest is
  // CORRUPT.
  //
  // `out` must have exactly the bytes of the page (or of the tokens asked for), and stay as it is
  // until `done`; first_layer and layer_count are the call's to set. `layers_per_run` 0:
  // space.layers_per_run. A run costs a request for each page, and segments that it cuts are read
  // again for the next; where they go encoded or hold layers coded together, sent and decoded too.
  using LayersDone = std::function<void(LayerRange layers, std::span<const GetResult> so_far)>;
  void GetLayersAsync(const SpaceInfo& space, uint64_t lease, std::vector<PageGet> pages,
                      uint32_t layers_per_run, LayersDone on_layers, GetDone done);

  // As GetAsync, but the base level of all pages comes first, whatever bounds they have: `on_base`
  // is called with what it is, and may take it from the buffers, which stay as they are until it
  // returns and again from `done` on. Pages of which more is stored are then asked for whole, and
  // `done` has what each page is at last: the base where that was all. A page that is gone by then
  // is a miss, and so is one that was replaced. Worth it where pages have levels and go encoded
  // (the base comes twice), or come from a disk.
  using BaseDone = std::function<void(std::span<const GetResult> base)>;
  void GetProgressiveAsync(absl::string_view space, uint64_t lease, std::vector<PageGet> pages,
                           BaseDone on_base, GetDone done);

  // As PutAsync, of pages that are still being computed: their layers travel as they are said to be
  // filled (layer_put.h), raw, and without columns. Up to 8 pages travel at once; of more, the
  // others follow when those are whole. The deadline runs from this call. Never null.
  std::unique_ptr<LayerPut> PutLayers(const SpaceInfo& space, std::vector<PagePut> pages,
                                      PutDone done);

  std::future<std::vector<PutResult>> Put(absl::string_view space, std::vector<PagePut> pages);
  std::future<std::vector<GetResult>> Get(absl::string_view space, uint64_t lease,
                                          std::vector<PageGet> pages);

  // As Get, but of each page, or of the layers and tokens of it that are asked for, the summary of
  // its keys comes (kernels/importance/key_summary.h): into `out` of SummaryBytes(spec, layers)
  // bytes, for ReadSummary. It bounds the logits of the page as a Get with the same levels brings
  // it.
  std::future<std::vector<GetResult>> GetSummaries(absl::string_view space, uint64_t lease,
                                                   std::vector<PageGet> pages);

  // Late attention, for the order in which pages lose bytes; one result for each report, in order.
  // A column of more than 4 MiB does not fit into a call and is refused here: it can go with a put.
  absl::StatusOr<std::vector<ReportResult>> ReportAttention(absl::string_view space,
                                                            std::span<const PageReport> reports);
  absl::StatusOr<std::vector<PageOutcome>> Delete(absl::string_view space,
                                                  std::span<const std::string> keys,
                                                  bool force = false);
  absl::StatusOr<std::vector<PageOutcome>> Pin(absl::string_view space,
                                               std::span<const std::string> keys, bool pinned);

  // Any other call of kvstow.v1, for the command line: serialized request in, serialized response
  // out. `method` is for example "/kvstow.v1.Admin/Status".
  absl::StatusOr<std::string> Call(absl::string_view method, absl::string_view request);
  // The same for a method that answers with a stream; not tried again. `on_message` runs on the
  // calling thread's behalf, one call at a time.
  absl::Status CallStreaming(absl::string_view method, absl::string_view request,
                             std::function<void(absl::string_view)> on_message);

 private:
  class Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CLIENT_H_
