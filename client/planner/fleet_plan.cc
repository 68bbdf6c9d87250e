#include "client/planner/fleet_plan.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvstow::planner {
namespace {

constexpr double kGib = 1 << 30;

// A node serves all loads, each with a share of its memory.
FleetOptions AtRandom(const Hardware& hardware, const Fleet& fleet, uint64_t block_bytes) {
  return {.nodes = fleet.nodes,
          .routing = Routing::kRandom,
          .node_blocks = hardware.bytes() / fleet.loads / block_bytes,
          .remote_blocks = fleet.remote_bytes / fleet.loads / block_bytes};
}
FleetOptions ByAffinity(const Hardware& hardware, const Fleet& fleet, uint64_t block_bytes) {
  return {.nodes = fleet.nodes / fleet.loads,
          .routing = Routing::kAffinity,
          .node_blocks = hardware.bytes() / block_bytes,
          .remote_blocks = fleet.remote_bytes / fleet.loads / block_bytes};
}
bool TellsOfRandom(const Load& load, const Fleet& fleet, const FleetOptions& options) {
  const double prompt = static_cast<double>(load.curve.references()) /
                        std::max<double>(1, static_cast<double>(load.requests));
  return options.nodes <= Fleet::kMostNodes &&
         (fleet.loads == 1 ||
          static_cast<double>(options.node_blocks) >= Fleet::kLeastPrompts * prompt);
}

absl::Status CheckNodes(const Load& load, const Fleet& fleet, const FleetOptions& random) {
  if (fleet.nodes % fleet.loads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--loads ", fleet.loads, " does not divide --nodes ", fleet.nodes,
                     ": give a number of nodes that is a multiple of it"));
  }
  if (fleet.nodes / fleet.loads > Fleet::kMostNodes) {
    return absl::InvalidArgumentError(absl::StrCat("--nodes ", fleet.nodes, " are more than ",
                                                   Fleet::kMostNodes,
                                                   " for each load: give more --loads"));
  }
  if (fleet.routing == Routing::kRandom && !TellsOfRandom(load, fleet, random)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--routing random: at most ", Fleet::kMostNodes,
                     " nodes are replayed, and a load's share of a node must hold ",
                     Fleet::kLeastPrompts, " prompts: give fewer --nodes and --loads"));
  }
  return absl::OkStatus();
}

absl::Status CheckSizes(const Hardware& hardware, const Fleet& fleet, uint64_t block_bytes) {
  if (hardware.bytes() == 0) {
    return absl::InvalidArgumentError("--nodes needs what each node has: give --ram or --disk");
  }
  if (hardware.bytes() < block_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--nodes: the tiers of a node do not hold one block of ", block_bytes,
                     " bytes: give more --ram"));
  }
  if (fleet.remote_bytes > 0 && fleet.remote_bytes / fleet.loads < block_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("--remote does not hold one block of ",
                                                   block_bytes, " bytes for each load: give more"));
  }
  return absl::OkStatus();
}

uint64_t Whole(double need, double have) {
  return have > 0 ? static_cast<uint64_t>(std::ceil(need / have)) : 0;
}

// Returns what happens to one load by the routing that was asked for.
FleetResult Replay(const Trace& trace, const FleetOptions& by_affinity,
                   const std::optional<FleetOptions>& at_random, Routing asked, FleetOutcome& out) {
  const PolicyInfo& lru = **FindEvictionPolicy("lru");
  FleetResult result = SimulateFleet(trace, lru, by_affinity);
  out.affinity_rate = result.local_rate();
  uint32_t nodes = by_affinity.nodes;
  if (at_random.has_value()) {
    const FleetResult random = SimulateFleet(trace, lru, *at_random);
    out.random_rate = random.local_rate();
    if (asked == Routing::kRandom) {
      result = random;
      nodes = at_random->nodes;
    }
  }
  out.local_rate = result.local_rate();
  out.remote_rate = result.remote_rate();
  out.miss_rate = result.miss_rate();
  out.pooled_rate = PooledHitRate(trace, lru, by_affinity.nodes, by_affinity.node_blocks);
  out.busiest_node = nodes * result.Share(result.busiest_references);
  return result;
}

void AddTraffic(const Load& load, double block_bytes, const FleetResult& result,
                const Hardware& hardware, const Fleet& fleet, FleetOutcome& out) {
  if (load.span_s <= 0) return;
  const double rate = fleet.loads / load.span_s;
  out.read_bytes_per_s = static_cast<double>(result.remote_hits) * block_bytes * rate;
  out.written_bytes_per_s = static_cast<double>(result.sent) * block_bytes * rate;
  out.commands_per_s = static_cast<double>(result.Commands(fleet.values)) * rate;
  const double remote = out.read_bytes_per_s + out.written_bytes_per_s;
  out.node_remote_bytes_per_s = remote / fleet.nodes;
  out.node_worker_bytes_per_s = static_cast<double>(result.local_hits + result.remote_hits) *
                                block_bytes * rate / fleet.nodes;
  const double speed =
      fleet.remote_bytes_per_s > 0 ? fleet.remote_bytes_per_s : hardware.link_bytes_per_s;
  out.remote_overloaded = speed > 0 && out.node_remote_bytes_per_s * out.busiest_node > speed;
}

void AddRedis(const Fleet& fleet, FleetOutcome& out) {
  const RedisNode& redis = fleet.redis;
  const double usable = static_cast<double>(redis.memory_bytes) * redis.fill;
  out.redis_for_memory = Whole(out.remote_bytes, usable);
  out.redis_for_bytes = Whole(out.read_bytes_per_s + out.written_bytes_per_s, redis.bytes_per_s);
  out.redis_for_commands = Whole(out.commands_per_s, redis.commands_per_s);
  if (fleet.remote_bytes == Fleet::kEndless) return;
  out.redis_for_all = Whole(static_cast<double>(fleet.remote_bytes), usable);
}

void AddTimes(const Load& load, uint64_t raw, const RecipeSize& recipe, const Hardware& hardware,
              const Fleet& fleet, FleetOutcome& out) {
  const auto* const fastest = std::ranges::find_if(
      hardware.tiers, [](const Hardware::Tier& tier) { return tier.bytes > 0; });
  const double local = SecondsToFetch(hardware, fastest->bytes_per_s, raw, recipe);
  const bool told = fastest != &hardware.tiers[Hardware::kDisk] || fastest->bytes_per_s > 0;
  if (told && local > 0) out.local_s = load.prompt_tokens * local;
  double speed =
      fleet.remote_bytes_per_s > 0 ? fleet.remote_bytes_per_s : hardware.link_bytes_per_s;
  if (fleet.remote_bytes == 0 || speed <= 0) return;
  const double redis = static_cast<double>(out.redis_nodes()) * fleet.redis.bytes_per_s;
  if (redis > 0) speed = std::min(speed, redis);
  out.remote_s = load.prompt_tokens * SecondsToFetch(hardware, speed, raw, recipe);
}

void AddCost(const Load& load, const Hardware& hardware, const Fleet& fleet, FleetOutcome& out) {
  double cost = 0;
  for (const Hardware::Tier& tier : hardware.tiers) {
    if (tier.bytes > 0 && tier.price_per_gib <= 0) return;
    cost += fleet.nodes * (static_cast<double>(tier.bytes) / kGib) * tier.price_per_gib;
  }
  if (fleet.remote_bytes > 0 && fleet.remote_price_per_gib <= 0) return;
  // Redis memory comes in whole nodes.
  cost += static_cast<double>(out.redis_nodes()) *
          (static_cast<double>(fleet.redis.memory_bytes) / kGib) * fleet.remote_price_per_gib;
  out.cost = cost;
  const double hits = (out.local_rate + out.remote_rate) *
                      static_cast<double>(load.curve.references()) * fleet.loads;
  if (load.span_s > 0 && hits > 0) out.cost_per_hit = cost / (hits / load.span_s);
}

}  // namespace

uint64_t FleetOutcome::redis_nodes() const {
  return std::max({redis_for_memory, redis_for_bytes, redis_for_commands});
}

absl::StatusOr<FleetOutcome> PredictFleet(const Trace& trace, const Load& load,
                                          uint64_t raw_bytes_per_token, const RecipeSize& recipe,
                                          const Hardware& hardware, const Fleet& fleet) {
  const uint64_t block_bytes =
      std::max<uint64_t>(1, recipe.StoredBytes(raw_bytes_per_token) * load.block_tokens);
  const FleetOptions random = AtRandom(hardware, fleet, block_bytes);
  KVSTOW_RETURN_IF_ERROR(CheckSizes(hardware, fleet, block_bytes));
  KVSTOW_RETURN_IF_ERROR(CheckNodes(load, fleet, random));
  std::optional<FleetOptions> at_random;
  if (TellsOfRandom(load, fleet, random)) at_random = random;
  FleetOutcome out;
  const FleetResult result =
      Replay(trace, ByAffinity(hardware, fleet, block_bytes), at_random, fleet.routing, out);
  out.remote_pages = result.most_remote_blocks * fleet.loads;
  out.remote_bytes = static_cast<double>(out.remote_pages) * static_cast<double>(block_bytes);
  AddTraffic(load, static_cast<double>(block_bytes), result, hardware, fleet, out);
  AddRedis(fleet, out);
  AddTimes(load, raw_bytes_per_token, recipe, hardware, fleet, out);
  AddCost(load, hardware, fleet, out);
  return out;
}

}  // namespace kvstow::planner
