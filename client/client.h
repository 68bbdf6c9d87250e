// The client library: an inference worker links it to keep its KV pages in kvstow.
//
//   std::unique_ptr<Client> client = Client::Connect({.address = "127.0.0.1:7380"});
//   KVSTOW_ASSIGN_OR_RETURN(const SpaceInfo space, client->OpenSpace(
//       {.name = "smollm2", .spec = spec, .recipe = "int8"}));
//   const std::vector<std::string> keys = PageKeys({}, tokens, spec.page_tokens);  // key_chain.h
//   const PrefixHit hit = client->Lookup("smollm2", keys);  // a dead server: no pages
//   client->GetAsync("smollm2", hit.lease, pages, [](std::vector<GetResult> results) { ... });
//
// It never throws, never blocks past a deadline and never brings its worker down: a server that is
// dead, slow or restarting is a miss. It retries UNAVAILABLE, and refusals that say when to come
// back (grpc-retry-pushback-ms), with back-off, a few times and never past the call's deadline. It
// retries nothing else. The connection comes back by itself. Connect() does not wait for the
// server.
//
// Where the address names several servers, one of them serves at a time. A call that finds it dead
// or draining goes on at the next one, within its deadline, and so do later calls. The client comes
// back to a more preferred server when that one serves again. It opens spaces there by itself. A
// lease is its server's: another one is not told of it, and its pages may go. Put, get and look up
// twice is what once is, so all calls of this file are safe to make again.
//
// A forked child has no clients. Every call there fails at once with UNAVAILABLE, on the calling
// thread, and sends nothing on the parent's connections. Callbacks of open calls run in the parent.
// The child cannot make clients of its own: gRPC 1.51 does not survive a fork. Fork before the
// first Connect(), or exec.
//
// Thread-safe. The caller owns the buffers that it hands in; they must live until the callback has
// run. A callback runs once, on a thread of the library, and must not block. The destructor cancels
// open calls and waits for callbacks; it must not run in one.
//
// The client identifies a space by more than its name: it remembers the fingerprint of the space
// that it opened, and every call carries it. After a restart of the server it opens the space again
// by itself. When another model has the name by then, pages are kNotCompatible, with a message that
// says what differs. The client opens an unopened space by its name at its first use, as it is
// then.
//
// Pages travel raw or encoded, as the client or a space says. Encoded pages have the same bytes
// that the server would make. Pages with attention columns go raw where coding reads the columns.
//
// Pages in buffers of NewBuffer() do not travel at all where the server is on this host: the server
// codes them into and out of memory that it shares.
//
// Pages may lie in the memory of a GPU (ClientOptions::gpu), in blocks of whatever allocator. The
// client copies them within the GPU to and from memory that a server on the same GPU shares, else
// through the host. It waits for an event, not for a worker's stream (pages.h). GetAsync, PutAsync
// and GetProgressiveAsync, and their sugar, take such pages; the others refuse them.
//
// The client checks a page before it is a hit. The reply must name the requested key, and the bytes
// must match their digest: the writer's for an exact page that comes whole, those of an encoded
// page, else one that the server made. After a reply with another key, the client gives the
// connection up. It asks once more for a page whose digest differs; then the page is CORRUPT. For
// bytes that the server writes to a GPU, the client checks only the key and the list of kept
// tokens.
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
#include "client/client_options.h"
#include "client/layer_put.h"
#include "client/page_buffer.h"
#include "client/pages.h"
#include "client/spaces.h"
#include "kernels/page/page.h"

namespace kvstow {

struct PrefixHit {
  uint32_t pages = 0;  // leading keys that are stored
  uint64_t tokens = 0;
  uint64_t lease = 0;
  std::vector<std::string> tiers;  // of each page
  absl::Status status;             // why there is nothing, when the call itself failed
};

class Client {
 public:
  // Does not wait for the server. The first call reports invalid options.
  static std::unique_ptr<Client> Connect(ClientOptions options);
  ~Client();

  absl::StatusOr<SpaceInfo> OpenSpace(const SpaceOptions& options);
  // Returns the space as it is. Fails with NOT_FOUND when there is none, and with
  // FAILED_PRECONDITION when this client opened another one of that name.
  absl::StatusOr<SpaceInfo> FindSpace(absl::string_view name);
  // Returns whether this client has opened another space under that name since. Calls that name the
  // space then mean the other one.
  bool IsStale(const SpaceInfo& space) const;
  // Forgets a space and all of its pages, for everyone. Returns the number of the pages. Fails with
  // UNAVAILABLE when its bytes on a disk are not erased yet; the server tries on.
  absl::StatusOr<uint64_t> DropSpace(absl::string_view space);

  // Gives the server a calibration blob (kernels/calibration/calibration.h) for recipes that need
  // one. `kvstow codec calibrate` writes blobs; QueryCalibration
  // (kernels/importance/query_tables.h) makes them of a worker's queries. Returns its name, 16
  // bytes. Call it before OpenSpace; sending a blob again is harmless.
  absl::StatusOr<std::string> SendCalibration(std::span<const uint8_t> blob);

  // Gives the server statistics of the model of a space of recipe `auto`: what StatsCalibration
  // (kernels/calibration/model_stats.h) makes. The server then fits the space's cold form by them.
  // FAILED_PRECONDITION: the space is another one, or nothing uses them.
  absl::Status SendStatistics(absl::string_view space, std::span<const uint8_t> blob);

  PrefixHit Lookup(absl::string_view space, std::span<const std::string> keys, bool lease = true);
  absl::Status Release(uint64_t lease);

  // Returns memory for pages to put and to get, shared with the server where possible
  // (page_buffer.h). Never null. May block for the timeout in each step: asking the server, opening
  // a session, allocating.
  std::unique_ptr<PageBuffer> NewBuffer(size_t bytes);

  // The core: everything else is sugar over these. They give one result for each page, in order.
  using PutDone = kvstow::PutDone;  // pages.h, as are all callbacks
  using GetDone = kvstow::GetDone;
  void PutAsync(absl::string_view space, std::vector<PagePut> pages, PutDone done);
  void GetAsync(absl::string_view space, uint64_t lease, std::vector<PageGet> pages, GetDone done);

  // Works like GetAsync, but the layers of all pages come in runs, in order, so that a worker can
  // start with the first ones. The library calls `on_layers` for each run, once every page has the
  // run's bytes in `out` or is a miss. It passes the run's layers and the results so far, which
  // last as long as the call. After the last run it calls `done` with what the runs of a page have
  // in common: a miss if any run was one or brought other content, and the worst of levels, error
  // and kept tokens. Until `done`, a hit rests on the digests of its runs; an exact page that then
  // differs from its raw digest is CORRUPT.
  //
  // `out` must have exactly the bytes of the page (or of the requested tokens), and must not change
  // until `done`. The call sets first_layer and layer_count itself. `layers_per_run` 0 takes
  // space.layers_per_run. A run costs a request for each page. The server reads segments that a run
  // cuts again for the next one; where pages go encoded or segments hold layers coded together, it
  // sends and decodes them again too.
  using LayersDone = kvstow::LayersDone;
  void GetLayersAsync(const SpaceInfo& space, uint64_t lease, std::vector<PageGet> pages,
                      uint32_t layers_per_run, LayersDone on_layers, GetDone done);

  // Works like GetAsync, but the base level of all pages comes first, whatever their bounds. The
  // library calls `on_base` with the base results. `on_base` may read the buffers: they do not
  // change until it returns, nor after `done` is called. The library then asks for the whole of
  // each page of which more is stored, and `done` gets the final results: the base where that was
  // all. A page that is gone or replaced by then is a miss. The call pays where pages have levels
  // and go encoded (the base comes twice), or come from a disk.
  using BaseDone = kvstow::BaseDone;
  void GetProgressiveAsync(absl::string_view space, uint64_t lease, std::vector<PageGet> pages,
                           BaseDone on_base, GetDone done);

  // Works like PutAsync for pages that are still being computed. Their layers travel as the worker
  // reports them filled (layer_put.h), raw, and without columns. Up to 8 pages travel at once; more
  // pages follow when those are whole. The deadline runs from this call. Never null.
  std::unique_ptr<LayerPut> PutLayers(const SpaceInfo& space, std::vector<PagePut> pages,
                                      PutDone done);

  std::future<std::vector<PutResult>> Put(absl::string_view space, std::vector<PagePut> pages);
  std::future<std::vector<GetResult>> Get(absl::string_view space, uint64_t lease,
                                          std::vector<PageGet> pages);

  // Works like Get, but brings the summary of the keys (kernels/importance/key_summary.h) of each
  // page, or of its requested layers and tokens. `out` has SummaryBytes(spec, layers) bytes, for
  // ReadSummary. The summary bounds the logits of the page as a Get with the same levels brings it.
  std::future<std::vector<GetResult>> GetSummaries(absl::string_view space, uint64_t lease,
                                                   std::vector<PageGet> pages);

  // Reports late attention, for the order in which pages lose bytes. Returns one result for each
  // report, in order. Refuses a column of more than 4 MiB, which does not fit into a call: it can
  // go with a put.
  absl::StatusOr<std::vector<ReportResult>> ReportAttention(absl::string_view space,
                                                            std::span<const PageReport> reports);
  absl::StatusOr<std::vector<PageOutcome>> Delete(absl::string_view space,
                                                  std::span<const std::string> keys,
                                                  bool force = false);
  absl::StatusOr<std::vector<PageOutcome>> Pin(absl::string_view space,
                                               std::span<const std::string> keys, bool pinned);

  // Returns the server that serves now, where the options name several.
  ServingNode serving() const;

  // Makes any other call of kvstow.v1, for the command line: serialized request in, serialized
  // response out. `method` is for example "/kvstow.v1.Admin/Status".
  absl::StatusOr<std::string> Call(absl::string_view method, absl::string_view request);
  // Does the same for a method that answers with a stream; never retries. `on_message` runs while
  // the caller waits, one call at a time.
  absl::Status CallStreaming(absl::string_view method, absl::string_view request,
                             std::function<void(absl::string_view)> on_message);

 private:
  class Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CLIENT_H_
