// What a load gains from given hardware: hit rate by tier, time to first token, traffic, wear,
// cost.
//
// All of it is modelled, by these formulas; b and r are stored and raw bytes of a token, h the hit
// rate, h_t what tier t adds, B the blocks of the load in bytes, s its seconds:
//
//   h_t          what an LRU as large as tiers 1..t hits more than one as large as 1..t-1 (tiers do
//                not hold a page twice)
//   fetch_t      max(b / link, b / bandwidth_t, r / decode) seconds a token: link, tier and decoder
//                work at the same time, the slowest tells; decode is the recipe's own speed where
//                it is known
//   first token  prompt x ((1 - h) / prefill + sum of h_t fetch_t), for the mean prompt; queues and
//                the first decoding step are not in it
//   break-even   b x prefill: on a slower link, computing is faster than fetching
//   reads_t      h_t B / s; the link carries their sum
//   writes       (1 - h) B / s: every block that was not there is stored, and reaches the disk
//                once; the disk writes it `write_amplification` times
//
// Zero in Hardware means not told: no limit, and what depends on it is empty.
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
  double decode_bytes_per_s = 0;   // of raw bytes, where a recipe does not say its own
  uint64_t disk_life_bytes = 0;    // that the disk may take in its life
  double write_amplification = 1;  // bytes written by the disk for one of ours
  uint64_t bytes() const { return tiers[kGpu].bytes + tiers[kRam].bytes + tiers[kDisk].bytes; }
};
absl::string_view TierName(size_t tier);  // "gpu", "ram", "disk"

struct Outcome {
  struct Tier {
    double hit_rate = 0;
    double read_bytes_per_s = 0;
    bool overloaded = false;  // asked for more than its bandwidth
  };
  double hit_rate = 0;
  Tier tiers[Hardware::kTiers];
  double link_bytes_per_s = 0;
  bool link_overloaded = false;
  double stored_bytes_per_s = 0;  // new bytes
  // First token: with no cache; the mean with it; of a prompt that is all in the fastest tier. The
  // last two are empty when nothing tells how fast a tier is fetched from.
  std::optional<double> cold_s, warm_s, hit_s;
  std::optional<double> break_even_bytes_per_s;
  std::optional<double> disk_bytes_per_day, disk_life_years;
  std::optional<double> cost;
  bool overloaded() const;
};

// Below it, fetching a token's stored bytes takes longer than computing it. Empty without a prefill
// speed.
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

// The cheapest setting without an overload that meets the goal, over recipes and sizes in steps of
// 1, 1.5, 2, 3, 4, 6 ... GiB; then the same with one step of RAM or disk more and less. The disk is
// considered when it has a price. Empty when nothing meets it.
struct Advice {
  Setting cheapest;
  std::vector<Setting> steps;
};
// INVALID_ARGUMENT when RAM has no price, or a time is wanted and the prefill speed or
// the link is not told.
absl::StatusOr<std::optional<Advice>> Advise(const Load& load, uint64_t raw_bytes_per_token,
                                             std::span<const RecipeSize> recipes,
                                             const Hardware& hardware, const Goal& goal);

}  // namespace kvstow::planner

#endif  // KVSTOW_CLIENT_PLANNER_OUTCOME_H_
