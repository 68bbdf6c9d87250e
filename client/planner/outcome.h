// Models the gain of a load from given hardware: hit rate by tier, time to first token, traffic,
// wear, cost.
//
// The formulas follow. b and r are the stored and raw bytes of a token, h is the hit rate, h_t is
// the part that tier t adds, B is the blocks of the load in bytes, s is its seconds:
//
//   h_t          the hits of an LRU as large as tiers 1..t, less those of one as large as 1..t-1
//                (tiers do not hold a page twice)
//   fetch_t      max(b / link, b / bandwidth_t, r / decode) seconds a token: link, tier and decoder
//                work at the same time, and the slowest decides; decode is the recipe's own speed
//                where it is known
//   first token  prompt x ((1 - h) / prefill + sum of h_t fetch_t), for the mean prompt, without
//                queues and the first decoding step
//   break-even   b x prefill: on a slower link, computing is faster than fetching
//   reads_t      h_t B / s; the link carries their sum
//   writes       (1 - h) B / s: every block that was not there is stored, and reaches the disk
//                once; the disk writes it `write_amplification` times
//
// Zero in Hardware means unknown: it is no limit, and figures that depend on it are empty. Memory
// of unknown speed counts as faster than the link. A disk never does: times that need it are empty.
//
// Values and free functions; thread-safe.
#ifndef KVSTOW_CLIENT_PLANNER_OUTCOME_H_
#define KVSTOW_CLIENT_PLANNER_OUTCOME_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/planner/recipe_size.h"
#include "client/planner/reuse_curve.h"

namespace kvstow::planner {

struct Hardware {
  struct Tier {
    uint64_t bytes = 0;
    double bytes_per_s = 0;
    double price_per_gib = 0;
  };
  enum { kGpu, kRam, kDisk, kTiers };  // fastest first
  Tier tiers[kTiers];
  double prefill_tokens_per_s = 0;
  double link_bytes_per_s = 0;
  double decode_bytes_per_s = 0;   // raw bytes, for recipes without a speed of their own
  uint64_t disk_life_bytes = 0;    // bytes that the disk may take in its life
  double write_amplification = 1;  // bytes that the disk writes for one of ours
  uint64_t bytes() const { return tiers[kGpu].bytes + tiers[kRam].bytes + tiers[kDisk].bytes; }
};
absl::string_view TierName(size_t tier);  // "gpu", "ram", "disk"

// The seconds that a token takes to the worker in each part of its way; 0 where nothing limits it.
struct FetchTime {
  double link_s = 0, tier_s = 0, decode_s = 0;
  double seconds() const;           // fetch_t above: the slowest part
  absl::string_view limit() const;  // its name: "link", "tier" or "decoder"; "" when all are 0
};
// `tier_bytes_per_s` is what the tier reads; 0 = unknown.
FetchTime TimeToFetch(const Hardware& hardware, double tier_bytes_per_s,
                      uint64_t raw_bytes_per_token, const RecipeSize& recipe);
// Returns the seconds of it all.
double SecondsToFetch(const Hardware& hardware, double tier_bytes_per_s,
                      uint64_t raw_bytes_per_token, const RecipeSize& recipe);

struct Outcome {
  struct Tier {
    double hit_rate = 0;
    double read_bytes_per_s = 0;
    bool overloaded = false;  // the load asks for more than its bandwidth
  };
  double hit_rate = 0;
  Tier tiers[Hardware::kTiers];
  double link_bytes_per_s = 0;
  bool link_overloaded = false;
  double stored_bytes_per_s = 0;  // new bytes
  // Time to first token: without a cache; the mean with it; of a prompt that is all in the fastest
  // tier. The last two are empty when nothing tells the speed of fetching from a tier.
  std::optional<double> cold_s, warm_s, hit_s;
  std::optional<double> break_even_bytes_per_s;
  std::optional<double> disk_bytes_per_day, disk_life_years;
  std::optional<double> cost;
  bool overloaded() const;
};

// Returns the bandwidth below which fetching a token's stored bytes takes longer than computing the
// token. Empty without a prefill speed.
std::optional<double> BreakEvenLink(const RecipeSize& recipe, uint64_t raw_bytes_per_token,
                                    const Hardware& hardware);

Outcome Predict(const Load& load, uint64_t raw_bytes_per_token, const RecipeSize& recipe,
                const Hardware& hardware);

struct Goal {
  double hit_rate = 0;       // at least; 0 = any
  double first_token_s = 0;  // mean, at most; 0 = any
};

struct Setting {
  size_t recipe = 0;
  uint64_t ram_bytes = 0, disk_bytes = 0;
  Outcome outcome;
};

// The cheapest setting without an overload that meets the goal, and its neighbours. Sizes go in
// steps of 1, 1.5, 2, 3, 4, 6 ... GiB.
struct Advice {
  Setting cheapest;
  std::vector<Setting> steps;  // the same with one step of RAM or disk more and less
};
// Searches recipes and sizes. Considers the disk when it has a price. Returns nothing when no
// setting meets the goal. Fails with INVALID_ARGUMENT when RAM has no price, and when the goal has
// a time but the prefill speed, the link or the speed of a disk with a price is unknown.
absl::StatusOr<std::optional<Advice>> Advise(const Load& load, uint64_t raw_bytes_per_token,
                                             std::span<const RecipeSize> recipes,
                                             const Hardware& hardware, const Goal& goal);

}  // namespace kvstow::planner

#endif  // KVSTOW_CLIENT_PLANNER_OUTCOME_H_
