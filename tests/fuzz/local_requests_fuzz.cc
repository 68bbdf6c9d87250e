// Messages of a local session from anywhere: a session's memory, its slots and the store survive
// them, and every slot that is lent is within the memory.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/host_sharing.h"
#include "service/local_requests.h"
#include "storage/memory_tier.h"
#include "storage/noop_tier.h"

namespace {

using namespace kvstow;

// A server without sockets, with a space "s" of small exact pages.
class Parts {
 public:
  Parts() {
    TieredStoreParts parts;
    parts.tiers = {MakeNoopTier(), MakeMemoryTier(HostDevice()), MakeNoopTier()};
    parts.catalog = MakeNoopCatalog(*parts.tiers[2]);
    TieredStoreOptions options;
    options.budget_bytes = {0, uint64_t{1} << 20, 0};
    store_ = std::move(TieredStore::Open(options, std::move(parts)).value());
    reader_.emplace(*store_, calibrations_.store(), metrics_);
    reports_.emplace(*store_, attention_, metrics_);
    writer_.emplace(*store_, *reports_, metrics_, /*has_disk=*/false);
    KvSpec spec{.model = "fuzz", .layers = 2, .kv_heads = 1, .page_tokens = 4};
    spec.head_dim_k = spec.head_dim_v = 8;
    if (!spaces_.Open({.name = "s", .spec = spec, .recipe = "int8", .fidelity = {}}).ok()) {
      std::abort();
    }
  }
  LocalParts Local() { return {spaces_, *reader_, *writer_, metrics_, &gpu_}; }
  LocalGpu& gpu() { return gpu_; }

 private:
  Metrics metrics_{"fuzz"};
  const std::unique_ptr<DeviceSharing> sharing_ = MakeHostSharing("the fuzzer's GPU");
  LocalGpu gpu_{HostDevice(), *sharing_, uint64_t{1} << 20};
  Calibrations calibrations_{""};
  std::unique_ptr<TieredStore> store_;
  Spaces spaces_{{},
                 calibrations_,
                 [this] { return store_->NewSpaceId(); },
                 [this](const SpaceRecord& record) { return store_->SaveSpace(record); }};
  AttentionPool attention_{1 << 20};
  std::optional<PageReader> reader_;
  std::optional<AttentionReports> reports_;
  std::optional<PageWriter> writer_;
};

}  // namespace

// The input: messages, each behind its length in one byte.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Parts parts;
  LocalParts local = parts.Local();
  std::vector<uint8_t> memory(16 * 4096);
  static const auto gpu_memory = parts.gpu().Share(16 * 4096, "the fuzzer's GPU").value();
  LocalRequests requests(local, memory, gpu_memory);
  while (size > 0) {
    const size_t bytes = std::min<size_t>(data[0], size - 1);
    v1::LocalRequest request;
    if (!request.ParseFromArray(data + 1, static_cast<int>(bytes))) return 0;
    const absl::Status status = requests.Handle(request, [&](const v1::LocalReply& reply) {
      const bool lent = reply.has_slot() && reply.slot().has_slot();
      if (lent && (reply.slot().offset() > memory.size() ||
                   reply.slot().bytes() > memory.size() - reply.slot().offset())) {
        std::abort();
      }
      return absl::OkStatus();
    });
    if (!status.ok()) return 0;
    data += 1 + bytes;
    size -= 1 + bytes;
  }
  return 0;
}
