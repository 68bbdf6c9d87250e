// KvOperator: the work of the unary calls of kvstow.v1.KvCache and Admin.
//
// It takes a request and gives a response and a status, without gRPC, so tests can run it alone.
// Calls that may touch the disk (`blocking` below) belong on a worker thread; the others answer
// from RAM. Thread-safe. Responses are empty when they are handed in.
#ifndef KVSTOW_SERVICE_OPERATORS_KV_OPERATOR_H_
#define KVSTOW_SERVICE_OPERATORS_KV_OPERATOR_H_

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "kvstow/v1/admin.pb.h"
#include "kvstow/v1/kv_cache.pb.h"
#include "service/operators/lookup_wire.h"
#include "service/ops/metrics.h"
#include "service/pages/attention_reports.h"
#include "service/pages/page_reader.h"
#include "service/spaces/spaces.h"
#include "storage/store/tiered_store.h"
#include "storage/trace/live_reuse.h"

namespace kvstow {

inline constexpr uint32_t kMaxSampledPages = 16384;  // their keys fit into a message
inline constexpr size_t kMaxAgedPages = 8192;        // pages that Ages looks into

// The part of Status that does not change while the server runs.
struct ServerFacts {
  std::string version;
  std::string device;
  std::vector<std::pair<std::string, std::string>> libraries, config;
  Time started;
};

class KvOperator {
 public:
  KvOperator(TieredStore& store, Spaces& spaces, PageReader& reader, AttentionReports& reports,
             Metrics& metrics, ServerFacts facts);

  absl::Status OpenSpace(const v1::OpenSpaceRequest& in, v1::OpenSpaceResponse& out);  // blocking
  absl::StatusOr<PrefixMatch> Lookup(const LookupQuery& query);
  // Updates the statistics of use that Lookup left for after its answer. The caller runs it once it
  // has sent the answer.
  void CatchUp();
  absl::Status ReportAttention(const v1::ReportAttentionRequest& in,
                               v1::ReportAttentionResponse& out);  // blocking
  absl::Status Release(const v1::ReleaseRequest& in, v1::ReleaseResponse& out);
  absl::Status Pin(const v1::PinRequest& in, v1::PinResponse& out);
  absl::Status Delete(const v1::DeleteRequest& in, v1::DeleteResponse& out);           // blocking
  absl::Status DropSpace(const v1::DropSpaceRequest& in, v1::DropSpaceResponse& out);  // blocking
  absl::Status Usage(const v1::UsageRequest& in, v1::UsageResponse& out);

  absl::Status Status(const v1::StatusRequest& in, v1::StatusResponse& out);
  absl::Status SamplePages(const v1::SamplePagesRequest& in, v1::SamplePagesResponse& out);
  absl::Status Ages(const v1::AgesRequest& in, v1::AgesResponse& out);                 // blocking
  absl::Status Evict(const v1::EvictRequest& in, v1::EvictResponse& out);              // blocking
  absl::Status SetBudget(const v1::SetBudgetRequest& in, v1::SetBudgetResponse& out);  // blocking
  absl::Status Flush(const v1::FlushRequest& in, v1::FlushResponse& out);              // blocking
  // Tells `progress` now and then, and once at the end with `done`. Stops when that returns false.
  // Blocking.
  absl::Status Verify(const v1::VerifyRequest& in,
                      const std::function<bool(const v1::VerifyProgress&)>& progress);

  // Drops private spaces that hold no page and that nobody has named for so long, `most` at most.
  // Returns their number. Blocking.
  size_t DropIdleSpaces(Duration idle, size_t most = SIZE_MAX);

  // The server calls this when it begins and when it ends to serve.
  void SetReady(bool ready, Duration from_start);
  bool ready() const { return ready_; }

 private:
  // The pages that a Lookup asked for, as LiveReuse knows them.
  struct Prompt {
    std::vector<uint64_t> pages;
    uint32_t raw_bytes;  // of each
    Time time;
  };

  absl::Status Drop(const Space& space);
  v1::TierUsage UsageOf(TierId tier);
  void RecordPrompts();

  TieredStore& store_;
  Spaces& spaces_;
  PageReader& reader_;
  AttentionReports& reports_;
  Metrics& metrics_;
  LiveReuse reuse_;  // of the keys that Lookup was asked for
  Mutex recording_;  // keeps the order of recorded prompts; taken before mu_
  Mutex mu_;
  std::vector<Prompt> prompts_ KVSTOW_GUARDED_BY(mu_);  // not recorded yet
  const ServerFacts facts_;
  std::atomic<bool> ready_ = false;
  std::atomic<uint64_t> ready_ms_ = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPERATORS_KV_OPERATOR_H_
