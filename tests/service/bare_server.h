// A server without sockets, for tests and fuzzers of what is asked of it beside gRPC: memory for
// 1 MiB of pages, a space "s" of `int8` and a space "exact" of `raw`.
#ifndef KVSTOW_TESTS_SERVICE_BARE_SERVER_H_
#define KVSTOW_TESTS_SERVICE_BARE_SERVER_H_

#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/device/host_sharing.h"
#include "service/operators/kv_operator.h"
#include "service/transports/direct_requests.h"
#include "service/transports/local_requests.h"
#include "storage/tiers/memory_tier.h"
#include "storage/tiers/noop_tier.h"
#include "tests/service/fingerprints.h"
#include "tests/storage/tiers/faulty_tier.h"

namespace kvstow::testing {

class BareServer {
 public:
  // Pages of 4 tokens, 256 bytes.
  static KvSpec Spec() {
    KvSpec spec{.model = "bare", .revision = "1", .layers = 2, .kv_heads = 1, .page_tokens = 4};
    spec.head_dim_k = spec.head_dim_v = 8;
    return spec;
  }
  explicit BareServer(const AdmissionLimits& limits = {}) : admission_(limits, metrics_) {
    TieredStoreParts parts;
    parts.tiers = {MakeNoopTier(),
                   std::make_unique<FaultyTier>(MakeMemoryTier(HostDevice()), faults_),
                   MakeNoopTier()};
    parts.catalog = MakeNoopCatalog(*parts.tiers[2]);
    TieredStoreOptions options;
    options.budget_bytes = {0, uint64_t{1} << 20, 0};
    store_ = std::move(TieredStore::Open(options, std::move(parts)).value());
    reader_.emplace(*store_, calibrations_.store(), metrics_);
    reports_.emplace(*store_, attention_, metrics_);
    writer_.emplace(*store_, *reports_, metrics_, /*has_disk=*/false);
    puts_.emplace(PutParts{staging_, *writer_, admission_, metrics_});
    remote_.emplace(RemoteTier::Options{}, nullptr, nullptr, *store_, spaces_, calibrations_,
                    nullptr);
    op_.emplace(*store_, spaces_, calibrations_, /*fits=*/true, *reports_, metrics_, *remote_);
    for (const auto& [name, recipe] : {std::pair{"s", "int8"}, std::pair{"exact", "raw"}}) {
      const auto opened =
          spaces_.Open(Caller{}, {.name = name, .spec = Spec(), .recipe = recipe, .fidelity = {}});
      Fingerprints::All().Note(name, std::string(AsString(opened.value().space->fingerprint)));
    }
  }
  LocalParts Local() { return {spaces_, *puts_, *reader_, metrics_, admission_, &gpu_}; }
  DirectParts Direct() { return {spaces_, *puts_, *reader_, metrics_, admission_, *op_}; }
  Admission& admission() { return admission_; }
  LocalGpu& gpu() { return gpu_; }
  TieredStore& store() { return *store_; }
  Faults& faults() { return faults_; }  // of its memory
  const Staging& staging() const { return staging_; }

 private:
  Faults faults_;
  Metrics metrics_{"bare"};
  Admission admission_;
  const std::unique_ptr<DeviceSharing> sharing_ = MakeHostSharing("a GPU");
  LocalGpu gpu_{HostDevice(), *sharing_, uint64_t{1} << 20};
  Calibrations calibrations_{""};
  std::unique_ptr<TieredStore> store_;
  Spaces spaces_{{},
                 calibrations_,
                 [this] { return store_->residency().NewSpaceId(); },
                 [this](const SpaceRecord& record) { return store_->SaveSpace(record); }};
  Staging staging_{{}};
  AttentionPool attention_{1 << 20};
  std::optional<PageReader> reader_;
  std::optional<AttentionReports> reports_;
  std::optional<PageWriter> writer_;
  std::optional<PutParts> puts_;
  std::optional<RemoteTier> remote_;  // there is none
  std::optional<KvOperator> op_;
};

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_SERVICE_BARE_SERVER_H_
