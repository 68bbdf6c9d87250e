#include "service/open_store.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/codec/ops.h"
#include "service/remote/redis_cluster.h"
#include "service/spaces/messages.h"
#include "service/spaces/space_recipe.h"
#include "storage/disk/rocks_tier.h"
#include "storage/tiers/memory_tier.h"
#include "storage/tiers/noop_tier.h"

namespace kvstow {
namespace {

// The GPU that the configuration asks for, or nothing with one line that says why.
absl::Status OpenGpu(const Config& config, OpenedStore& out) {
  if (config.device == "cpu") {
    for (const auto& [name, bytes] :
         {std::pair("gpu-bytes", config.gpu_bytes), {"local-gpu-bytes", config.local_gpu_bytes}}) {
      if (bytes == 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(name, " needs a GPU: leave it out with --device cpu, or use --device auto"));
    }
    return absl::OkStatus();
  }
  absl::string_view ordinal = config.device;
  int n = 0;
  const bool named = absl::ConsumePrefix(&ordinal, "cuda:") && absl::SimpleAtoi(ordinal, &n);
  auto gpu = OpenCudaDevice(n);
  if (gpu.ok()) out.gpu = *std::move(gpu);
  absl::Status opened = gpu.status();
  if (opened.ok() && config.local_gpu_bytes > 0) {
    auto sharing = OpenCudaSharing(n);
    if (sharing.ok()) out.sharing = *std::move(sharing);
    opened = sharing.status();
  }
  if (opened.ok()) return opened;
  if (named) {
    return absl::UnavailableError(absl::StrCat("device: ", config.device, ": ", opened.message(),
                                               "; --device auto serves without"));
  }
  Log().info("no {}: {}; serving without", out.gpu == nullptr ? "GPU" : "sharing of its memory",
             std::string(opened.message()));
  return absl::OkStatus();
}

// A disk that holds sealed data waits for its master key. A new one would only refuse all puts.
absl::Status CheckFirstKey(const Config& config, KeyRing& keys) {
  const KeyRing::Counts counts = keys.counts();
  if (counts.master_keys > 0 || counts.keys + counts.locked > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("master-key: ", config.master_key, " gives no key, and ", config.disk_path,
                   " has no data that waits for one: see the error above, and name a source that "
                   "gives a key"));
}

}  // namespace

absl::Status CheckRecipe(const std::string& text) {
  const auto recipe = SpaceRecipe::Parse(text);
  if (!recipe.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("recipe: ", recipe.status().message()));
  }
  for (const Recipe& form : {recipe->hot, recipe->cold.value_or(recipe->hot)}) {
    for (const Op& op : form.ops()) {
      if (IsOp(op.name)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "recipe: there is no '", op.name, "' here: `kvstow codec list` shows what there is"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<OpenedStore> OpenStore(const Config& config, StoreObserver& observer,
                                      TenantTable* tenants) {
  OpenedStore out;
  KVSTOW_RETURN_IF_ERROR(OpenGpu(config, out));
  if (!config.master_key.empty()) {
    KVSTOW_ASSIGN_OR_RETURN(out.masters, MasterKeys::Open(config.master_key));
  }
  TieredStoreOptions options;
  options.budget_bytes = {out.gpu != nullptr ? config.gpu_bytes : 0, config.host_bytes,
                          config.disk_bytes};
  options.target_bits = {0, config.host_bits, config.disk_bits};
  options.high_watermark = config.high_watermark;
  options.low_watermark = config.low_watermark;
  options.lease_ttl = config.lease_ttl;
  options.index_bytes = config.index_bytes;
  options.lease_limits = {config.max_leases, config.max_leased_pages};
  options.eviction_policy = config.eviction_policy;
  options.count_levels = &CountWholeLevels;
  options.observer = &observer;
  if (tenants != nullptr) {
    options.tenant_of = [tenants](const std::string& name) { return tenants->IdOf(name); };
  }

  TieredStoreParts parts;
  auto& [gpu_tier, host_tier, disk_tier] = parts.tiers;
  gpu_tier = options.budget_bytes[0] > 0 ? MakeMemoryTier(*out.gpu) : MakeNoopTier();
  host_tier = config.host_bytes > 0 ? MakeMemoryTier(HostDevice()) : MakeNoopTier();
  if (config.disk_path.empty()) {
    disk_tier = MakeNoopTier();
    parts.catalog = MakeNoopCatalog(*disk_tier);
  } else {
    RocksOptions disk_options{.path = config.disk_path, .budget_bytes = config.disk_bytes};
    if (out.masters != nullptr) {
      KVSTOW_ASSIGN_OR_RETURN(out.keys, KeyRing::Open(config.disk_path, out.masters));
      KVSTOW_RETURN_IF_ERROR(CheckFirstKey(config, *out.keys));
      disk_options.keys = out.keys;
    }
    auto disk = OpenRocksStore(disk_options);
    if (!disk.ok()) {
      return absl::Status(disk.status().code(),
                          absl::StrCat("disk-path: ", disk.status().message()));
    }
    disk_tier = std::move(disk->tier);
    parts.catalog = std::move(disk->catalog);
  }
  KVSTOW_ASSIGN_OR_RETURN(out.store, TieredStore::Open(options, std::move(parts)));
  return out;
}

absl::StatusOr<std::unique_ptr<RemoteStore>> OpenRemote(const Config& config) {
  if (config.remote.empty()) return nullptr;
  constexpr std::chrono::seconds kPatience{2};
  const RedisOptions options{.seeds = absl::StrSplit(config.remote, ',', absl::SkipEmpty()),
                             .user = config.remote_user,
                             .password_file = config.remote_password_file,
                             .tls = !config.remote_tls_ca.empty(),
                             .tls_files = {.ca = config.remote_tls_ca}};
  absl::Status good = CheckRedis(options, Clock::Real().Now() + kPatience);
  if (absl::IsInvalidArgument(good) || absl::IsFailedPrecondition(good)) {
    return absl::Status(good.code(), absl::StrCat("remote: ", good.message()));
  }
  if (!good.ok()) {
    Log().warn("remote: {}: pages there are misses until it answers", std::string(good.message()));
  }
  return OpenRedis(options);
}

}  // namespace kvstow
