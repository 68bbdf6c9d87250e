// AdminOperator: the work of the calls of kvstow.v1.Admin.
//
// It takes a request and gives a response and a status, without gRPC, so tests can run it alone.
// The transport has checked that the caller is an admin: these calls see every tenant's spaces.
// Calls that may touch the disk (`blocking` below) belong on a worker thread; the others answer
// from RAM. Thread-safe. Responses are empty when they are handed in.
#ifndef KVSTOW_SERVICE_OPERATORS_ADMIN_OPERATOR_H_
#define KVSTOW_SERVICE_OPERATORS_ADMIN_OPERATOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "kvstow/v1/admin.pb.h"
#include "service/ops/metrics.h"
#include "service/pages/page_reader.h"
#include "service/spaces/spaces.h"
#include "storage/store/tiered_store.h"

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

class AdminOperator {
 public:
  // `snapshot` returns the gauges of this moment.
  AdminOperator(TieredStore& store, Spaces& spaces, PageReader& reader, const Metrics& metrics,
                std::function<MetricsSnapshot()> snapshot, ServerFacts facts)
      : store_(store),
        spaces_(spaces),
        reader_(reader),
        metrics_(metrics),
        snapshot_(std::move(snapshot)),
        facts_(std::move(facts)) {}

  absl::Status Status(const v1::StatusRequest& in, v1::StatusResponse& out);
  absl::Status SamplePages(const v1::SamplePagesRequest& in, v1::SamplePagesResponse& out);
  absl::Status Ages(const v1::AgesRequest& in, v1::AgesResponse& out);  // blocking
  absl::Status Activity(const v1::ActivityRequest& in, v1::ActivityResponse& out);
  absl::Status Evict(const v1::EvictRequest& in, v1::EvictResponse& out);              // blocking
  absl::Status SetBudget(const v1::SetBudgetRequest& in, v1::SetBudgetResponse& out);  // blocking
  absl::Status Flush(const v1::FlushRequest& in, v1::FlushResponse& out);              // blocking
  // Tells `progress` now and then, and once at the end with `done`. Stops when that returns false.
  // Blocking.
  absl::Status Verify(const v1::VerifyRequest& in,
                      const std::function<bool(const v1::VerifyProgress&)>& progress);

  // The server calls this when it begins and when it ends to serve.
  void SetReady(bool ready, Duration from_start);
  // Says whether the server takes everything: see Drain.
  void SetServing(bool serving) { ready_ = serving; }
  bool ready() const { return ready_; }

 private:
  v1::TierUsage UsageOf(TierId tier);

  TieredStore& store_;
  Spaces& spaces_;
  PageReader& reader_;
  const Metrics& metrics_;
  const std::function<MetricsSnapshot()> snapshot_;
  const ServerFacts facts_;
  std::atomic<bool> ready_ = false;
  std::atomic<uint64_t> ready_ms_ = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPERATORS_ADMIN_OPERATOR_H_
