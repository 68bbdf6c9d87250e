// KvOperator: the work of the unary calls of kvstow.v1.KvCache.
//
// It takes a caller and a request and gives a response and a status, without gRPC, so tests can run
// it alone. The transport has checked that the caller's role may make the call. A caller meets the
// spaces of its tenant alone, and those that are shared with it: NOT_FOUND and a miss say no more
// of another tenant's than of none. Only an operator (an admin without a tenant) sees all of them.
// Calls that may touch the disk (`blocking` below) belong on a worker thread; the others answer
// from RAM. Thread-safe. Responses are empty when they are handed in.
#ifndef KVSTOW_SERVICE_OPERATORS_KV_OPERATOR_H_
#define KVSTOW_SERVICE_OPERATORS_KV_OPERATOR_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "kvstow/v1/kv_cache.pb.h"
#include "service/access/caller.h"
#include "service/operators/lookup_wire.h"
#include "service/ops/metrics.h"
#include "service/pages/attention_reports.h"
#include "service/remote/remote_tier.h"
#include "service/spaces/spaces.h"
#include "storage/store/tiered_store.h"
#include "storage/trace/live_reuse.h"

namespace kvstow {

class KvOperator {
 public:
  // `fits`: the server fits cold forms, so that it has a use for statistics of models.
  KvOperator(TieredStore& store, Spaces& spaces, Calibrations& calibrations, bool fits,
             AttentionReports& reports, Metrics& metrics, RemoteTier& remote)
      : store_(store),
        spaces_(spaces),
        calibrations_(calibrations),
        fits_(fits),
        reports_(reports),
        metrics_(metrics),
        remote_(remote) {}

  absl::Status OpenSpace(const Caller& caller, const v1::OpenSpaceRequest& in,
                         v1::OpenSpaceResponse& out);  // blocking
  // `first` names the space; `blob` is what all messages brought.
  absl::Status SendStatistics(const Caller& caller, const v1::SendStatisticsRequest& first,
                              const std::string& blob,
                              v1::SendStatisticsResponse& out);  // blocking
  // `ids` is called when the call was slow or failed, to log it.
  absl::StatusOr<PrefixMatch> Lookup(const Caller& caller, const LookupQuery& query,
                                     absl::FunctionRef<CallIds()> ids = CallLog::NoIds);
  // Adds to a Lookup's answer the pages that follow in the remote tier, where there is one. `done`
  // may run within the call; the query may go after the call.
  void Extend(const Caller& caller, const LookupQuery& query, PrefixMatch match,
              std::function<void(const PrefixMatch&)> done);
  // Updates the statistics of use that Lookup left for after its answer. The caller runs it once it
  // has sent the answer.
  void CatchUp();
  absl::Status ReportAttention(const Caller& caller, const v1::ReportAttentionRequest& in,
                               v1::ReportAttentionResponse& out);  // blocking
  absl::Status Release(const Caller& caller, const v1::ReleaseRequest& in,
                       v1::ReleaseResponse& out);
  absl::Status Pin(const Caller& caller, const v1::PinRequest& in, v1::PinResponse& out);
  absl::Status Delete(const Caller& caller, const v1::DeleteRequest& in,
                      v1::DeleteResponse& out);  // blocking
  absl::Status DropSpace(const Caller& caller, const v1::DropSpaceRequest& in,
                         v1::DropSpaceResponse& out);  // blocking
  absl::Status Usage(const Caller& caller, const v1::UsageRequest& in, v1::UsageResponse& out);

  // Drops private spaces that hold no page and that nobody has named for so long, `most` at most.
  // `tenant` null = of all tenants. Returns their number. Blocking.
  size_t DropIdleSpaces(Duration idle, size_t most = SIZE_MAX, const std::string* tenant = nullptr);

 private:
  // The pages that a Lookup asked for, as LiveReuse knows them.
  struct Prompt {
    std::vector<uint64_t> pages;
    uint32_t raw_bytes;  // of each
    Time time;
  };

  absl::StatusOr<Spaces::Opened> OpenPublished(const Caller& caller, const std::string& name,
                                               absl::StatusOr<Spaces::Opened> not_there);
  bool BringCalibrations(const Caller& caller, const SpaceToOpen& request);
  absl::StatusOr<PrefixMatch> Find(const Caller& caller, const LookupQuery& query);
  void TellSpaces(const Caller& caller, StoreUsage& sum, v1::UsageResponse& out);
  absl::Status Drop(const Space& space);
  void RecordPrompts();

  TieredStore& store_;
  Spaces& spaces_;
  Calibrations& calibrations_;
  const bool fits_;
  AttentionReports& reports_;
  Metrics& metrics_;
  RemoteTier& remote_;
  LiveReuse reuse_;  // of the keys that Lookup was asked for
  Mutex recording_;  // keeps the order of recorded prompts; taken before mu_
  Mutex mu_;
  std::vector<Prompt> prompts_ KVSTOW_GUARDED_BY(mu_);  // not recorded yet
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPERATORS_KV_OPERATOR_H_
