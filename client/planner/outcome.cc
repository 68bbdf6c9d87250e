#include "client/planner/outcome.h"

#include <algorithm>

namespace kvstow::planner {
namespace {

constexpr double kGib = 1 << 30;
constexpr double kDay = 86400;

void AddTimes(const Load& load, uint64_t raw, const RecipeSize& recipe, const Hardware& hardware,
              Outcome& out) {
  if (hardware.prefill_tokens_per_s <= 0) return;
  const double compute = 1 / hardware.prefill_tokens_per_s;
  out.cold_s = load.prompt_tokens * compute;
  double warm = (1 - out.hit_rate) * compute;
  for (size_t t = 0; t < Hardware::kTiers; ++t) {
    if (hardware.tiers[t].bytes == 0) continue;
    if (t == Hardware::kDisk && hardware.tiers[t].bytes_per_s <= 0) return;
    const double fetch = SecondsToFetch(hardware, hardware.tiers[t].bytes_per_s, raw, recipe);
    if (fetch <= 0) return;
    if (!out.hit_s.has_value()) out.hit_s = load.prompt_tokens * fetch;
    warm += out.tiers[t].hit_rate * fetch;
  }
  if (hardware.bytes() > 0) out.warm_s = load.prompt_tokens * warm;
}

void AddTraffic(const Load& load, double block_bytes, const Hardware& hardware, Outcome& out) {
  if (load.span_s <= 0) return;
  const double offered = static_cast<double>(load.curve.references()) * block_bytes / load.span_s;
  const auto over = [](double need, double have) { return have > 0 && need > have; };
  for (size_t t = 0; t < Hardware::kTiers; ++t) {
    Outcome::Tier& tier = out.tiers[t];
    tier.read_bytes_per_s = tier.hit_rate * offered;
    tier.overloaded = over(tier.read_bytes_per_s, hardware.tiers[t].bytes_per_s);
    out.link_bytes_per_s += tier.read_bytes_per_s;
  }
  out.link_overloaded = over(out.link_bytes_per_s, hardware.link_bytes_per_s);
  out.stored_bytes_per_s = (1 - out.hit_rate) * offered;
  if (hardware.tiers[Hardware::kDisk].bytes == 0) return;
  out.disk_bytes_per_day = out.stored_bytes_per_s * hardware.write_amplification * kDay;
  if (hardware.disk_life_bytes > 0 && *out.disk_bytes_per_day > 0) {
    out.disk_life_years =
        static_cast<double>(hardware.disk_life_bytes) / *out.disk_bytes_per_day / 365;
  }
}

void AddCost(const Hardware& hardware, Outcome& out) {
  double cost = 0;
  for (const Hardware::Tier& tier : hardware.tiers) {
    if (tier.bytes > 0 && tier.price_per_gib <= 0) return;  // of a part only it would mislead
    cost += static_cast<double>(tier.bytes) / kGib * tier.price_per_gib;
  }
  if (hardware.bytes() > 0) out.cost = cost;
}

// 1, 1.5, 2, 3, 4, 6 ... GiB, to the first that holds `all_bytes`.
std::vector<uint64_t> Steps(uint64_t all_bytes) {
  std::vector<uint64_t> steps;
  for (uint64_t size = uint64_t{1} << 30;; size *= 2) {
    for (const uint64_t step : {size, size / 2 * 3}) {
      steps.push_back(step);
      if (step >= all_bytes || step >= uint64_t{1} << 60) return steps;
    }
  }
}

bool Meets(const Outcome& outcome, const Goal& goal) {
  return outcome.hit_rate >= goal.hit_rate && !outcome.overloaded() && outcome.cost.has_value() &&
         (goal.first_token_s <= 0 || outcome.warm_s.value_or(1e300) <= goal.first_token_s);
}

// Sizes are places in `steps`; 0 of the disk is none.
class Search {
 public:
  Search(const Load& load, uint64_t raw, std::span<const RecipeSize> recipes,
         const Hardware& hardware)
      : load_(load), raw_(raw), recipes_(recipes), hardware_(hardware) {
    uint64_t all_bytes = 1;
    for (const RecipeSize& r : recipes) {
      all_bytes = std::max(all_bytes,
                           r.StoredBytes(raw) * load.block_tokens * load.curve.LargestDistance());
    }
    ram_ = Steps(all_bytes);
    disk_ = {0};
    if (hardware.tiers[Hardware::kDisk].price_per_gib > 0) {
      disk_.insert(disk_.end(), ram_.begin(), ram_.end());
    }
    hardware_.tiers[Hardware::kGpu] = {};
  }

  Setting At(size_t recipe, size_t ram, size_t disk) {
    hardware_.tiers[Hardware::kRam].bytes = ram_[ram];
    hardware_.tiers[Hardware::kDisk].bytes = disk_[disk];
    return {recipe, ram_[ram], disk_[disk], Predict(load_, raw_, recipes_[recipe], hardware_)};
  }

  std::optional<Advice> Run(const Goal& goal) {
    std::optional<Advice> best;
    size_t best_ram = 0, best_disk = 0;
    for (size_t recipe = 0; recipe < recipes_.size(); ++recipe) {
      for (size_t ram = 0; ram < ram_.size(); ++ram) {
        for (size_t disk = 0; disk < disk_.size(); ++disk) {
          const Setting setting = At(recipe, ram, disk);
          if (!Meets(setting.outcome, goal)) continue;
          if (best.has_value() && *best->cheapest.outcome.cost <= *setting.outcome.cost) continue;
          best = Advice{.cheapest = setting};
          best_ram = ram;
          best_disk = disk;
        }
      }
    }
    if (!best.has_value()) return best;
    const size_t recipe = best->cheapest.recipe;
    if (best_ram > 0) best->steps.push_back(At(recipe, best_ram - 1, best_disk));
    if (best_ram + 1 < ram_.size()) best->steps.push_back(At(recipe, best_ram + 1, best_disk));
    if (best_disk > 0) best->steps.push_back(At(recipe, best_ram, best_disk - 1));
    if (best_disk + 1 < disk_.size()) best->steps.push_back(At(recipe, best_ram, best_disk + 1));
    return best;
  }

 private:
  const Load& load_;
  const uint64_t raw_;
  const std::span<const RecipeSize> recipes_;
  Hardware hardware_;
  std::vector<uint64_t> ram_, disk_;
};

}  // namespace

absl::string_view TierName(size_t tier) {
  constexpr absl::string_view kNames[] = {"gpu", "ram", "disk"};
  return kNames[tier];
}

double FetchTime::seconds() const { return std::max({link_s, tier_s, decode_s}); }

absl::string_view FetchTime::limit() const {
  if (seconds() <= 0) return "";
  if (seconds() == link_s) return "link";
  return seconds() == tier_s ? "tier" : "decoder";
}

FetchTime TimeToFetch(const Hardware& hardware, double tier_bytes_per_s,
                      uint64_t raw_bytes_per_token, const RecipeSize& recipe) {
  const auto time = [](double bytes, double speed) { return speed > 0 ? bytes / speed : 0; };
  const double stored = static_cast<double>(recipe.StoredBytes(raw_bytes_per_token));
  const double decode =
      recipe.decode_bytes_per_s > 0 ? recipe.decode_bytes_per_s : hardware.decode_bytes_per_s;
  return {.link_s = time(stored, hardware.link_bytes_per_s),
          .tier_s = time(stored, tier_bytes_per_s),
          .decode_s = time(static_cast<double>(raw_bytes_per_token), decode)};
}

double SecondsToFetch(const Hardware& hardware, double tier_bytes_per_s,
                      uint64_t raw_bytes_per_token, const RecipeSize& recipe) {
  return TimeToFetch(hardware, tier_bytes_per_s, raw_bytes_per_token, recipe).seconds();
}

bool Outcome::overloaded() const {
  return link_overloaded || std::any_of(std::begin(tiers), std::end(tiers),
                                        [](const Tier& t) { return t.overloaded; });
}

std::optional<double> BreakEvenLink(const RecipeSize& recipe, uint64_t raw_bytes_per_token,
                                    const Hardware& hardware) {
  if (hardware.prefill_tokens_per_s <= 0) return std::nullopt;
  return static_cast<double>(recipe.StoredBytes(raw_bytes_per_token)) *
         hardware.prefill_tokens_per_s;
}

Outcome Predict(const Load& load, uint64_t raw_bytes_per_token, const RecipeSize& recipe,
                const Hardware& hardware) {
  const uint64_t stored = recipe.StoredBytes(raw_bytes_per_token);
  const uint64_t block_bytes = std::max<uint64_t>(1, stored * load.block_tokens);
  Outcome out;
  uint64_t bytes = 0;
  for (size_t t = 0; t < Hardware::kTiers; ++t) {
    bytes += hardware.tiers[t].bytes;
    const double rate = load.curve.HitRate(bytes / block_bytes);
    out.tiers[t].hit_rate = rate - out.hit_rate;
    out.hit_rate = rate;
  }
  out.break_even_bytes_per_s = BreakEvenLink(recipe, raw_bytes_per_token, hardware);
  AddTimes(load, raw_bytes_per_token, recipe, hardware, out);
  AddTraffic(load, static_cast<double>(block_bytes), hardware, out);
  AddCost(hardware, out);
  return out;
}

absl::StatusOr<std::optional<Advice>> Advise(const Load& load, uint64_t raw_bytes_per_token,
                                             std::span<const RecipeSize> recipes,
                                             const Hardware& hardware, const Goal& goal) {
  if (hardware.tiers[Hardware::kRam].price_per_gib <= 0) {
    return absl::InvalidArgumentError(
        "the cheapest setting needs a price of RAM: give --ram-price");
  }
  if (goal.first_token_s > 0 && hardware.prefill_tokens_per_s <= 0) {
    return absl::InvalidArgumentError("a time to first token needs the prefill speed");
  }
  if (goal.first_token_s > 0 && hardware.link_bytes_per_s <= 0) {
    return absl::InvalidArgumentError("a time to first token needs the bandwidth of the link");
  }
  const Hardware::Tier& disk = hardware.tiers[Hardware::kDisk];
  if (goal.first_token_s > 0 && disk.price_per_gib > 0 && disk.bytes_per_s <= 0) {
    return absl::InvalidArgumentError(
        "a time to first token needs the bandwidth of the disk: give --disk-bandwidth, or leave "
        "--disk-price out");
  }
  return Search(load, raw_bytes_per_token, recipes, hardware).Run(goal);
}

}  // namespace kvstow::planner
