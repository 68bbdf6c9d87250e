// The server's counters, and the text that Prometheus reads.
//
// docs/OPERATIONS.md has names, labels and meanings. Counting is cheap and thread-safe. Usage of
// the store is not counted here; it comes from the store when the text is made.
#ifndef KVSTOW_SERVICE_OPS_METRICS_H_
#define KVSTOW_SERVICE_OPS_METRICS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "kvstow/v1/types.pb.h"
#include "service/access/access.h"
#include "service/ops/call_log.h"
#include "service/ops/history.h"
#include "service/ops/metric_row.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

enum class StreamKind { kPut, kGet };
enum class CodecWay { kEncode, kDecode };

// Gauges at one moment.
struct MetricsSnapshot {
  StoreUsage usage;
  StoreCounters counters;
  uint64_t index_budget = 0;
  uint64_t spaces = 0;
  uint64_t space_mismatches = 0;
  uint64_t staged_bytes = 0;
  uint64_t get_bytes = 0, put_bytes = 0, waiting_gets = 0;  // from Admission
  uint64_t local_sessions = 0, local_bytes = 0;             // of memory shared with workers
  uint64_t local_gpu_bytes = 0;                             // and of the GPU's
  uint64_t device_codec_bytes = 0;                          // of calibrations on the GPU
  uint64_t direct_connections = 0;
  uint64_t direct_refused = 0, local_refused = 0;     // connections, since the start
  uint64_t tls_broken_reloads = 0;                    // changes of the files that were not taken
  uint64_t attention_bytes = 0, attention_pages = 0;  // known attention of pages
  uint64_t put_queue = 0, get_queue = 0;              // pages that wait for a worker
  // Of KV events: blocks, batches, changes that were lost or wait, and answered replays.
  uint64_t events_stored = 0, events_removed = 0, events_cleared = 0, event_batches = 0;
  uint64_t events_lost = 0, event_queue = 0, event_replays = 0;
  Access::Counters access;
  // Of what is encrypted on disk: data keys that open, data keys that no master key unwraps.
  uint64_t data_keys = 0, locked_data_keys = 0;
  std::vector<MetricRow> fits;    // of cold forms of recipe `auto`
  std::vector<MetricRow> remote;  // of the remote tier; empty = there is none
  bool ready = false;
  struct Tenant {
    std::string name;
    StoreUsage usage;
    TierBytes guarantee{};
    uint64_t streams = 0, put_bytes = 0, get_bytes = 0, refused = 0;
  };
  std::vector<Tenant> tenants;
};

class Metrics {
 public:
  explicit Metrics(absl::string_view version);
  ~Metrics();

  void CountPut(v1::PageStatus status, uint64_t raw_bytes, uint64_t stored_bytes);
  // `tier` is that of the base level, for a HIT.
  void CountGet(v1::PageStatus status, absl::string_view tier, uint64_t payload_bytes);
  // Notes a page of Get or Put in calls(), which it began at that time. A miss is no failure.
  void NotePage(StreamKind kind, absl::string_view space, v1::PageStatus status, Time begin);
  void CountLocal(StreamKind kind);   // a page through shared memory; with CountPut, CountGet
  void CountDirect(StreamKind kind);  // or over a direct connection
  // Counts a page of CountLocal in memory of the GPU, and whether the GPU coded it.
  void CountLocalGpu(StreamKind kind, bool coded_there);
  // Counts a page of a calibrated recipe that was encoded or decoded, on a server with a GPU, and
  // whether the GPU did it.
  void CountDevice(CodecWay way, bool on_gpu);
  void CountReport(v1::PageStatus status);  // of attention
  void CountLookup(uint64_t asked_keys, uint64_t found_keys, uint64_t found_tokens);
  void CountRefusedCall(absl::string_view why);           // a label: docs/OPERATIONS.md
  void CountFailedHandshake(absl::string_view listener);  // of TLS: "direct" or "http"
  void CountEndedStream(absl::string_view why);  // because nothing moved on it; a short word
  void CountCorrupt();  // a page failed a check or its decoding, and was dropped
  // Counts a miss of a page that falls short of the request: "levels", or too much "error".
  void CountShortOf(absl::string_view what);
  void CountMissingCalibration();  // a miss, because the page's calibration is not here
  void CountReaped(uint64_t tickets);
  void ObserveEncode(Duration time, uint64_t raw_bytes);
  void ObserveDecode(Duration time, uint64_t raw_bytes);
  void ObserveCooling(Duration time);  // a page from its hot form to its cold one
  void AddStreams(StreamKind kind, int change);
  uint64_t open_streams(StreamKind kind) const;

  CallLog& calls() { return calls_; }
  const CallLog& calls() const { return calls_; }
  // The work of the last hours. Somebody calls Sample every second or so.
  const History& history() const { return history_; }
  void Sample(Time now);

  // Returns the work of the codecs so far, for Usage: raw bytes, and the microseconds that they
  // took.
  std::vector<std::pair<std::string, uint64_t>> CodecRows() const;
  // Returns the text exposition format.
  std::string Text(const MetricsSnapshot& snapshot) const;

 private:
  class Impl;
  CallLog calls_;
  History history_;
  std::unique_ptr<Impl> impl_;
};

// Returns name and value of each of the store's counters, for Usage and for the metrics.
std::vector<std::pair<std::string, uint64_t>> CounterRows(const StoreCounters& counters);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_METRICS_H_
