// Hit rates of a load at sizes in bytes, for each recipe, to print and draw.
//
// Values and free functions; thread-safe.
#ifndef KVSTOW_CLIENT_PLANNER_SIZE_CURVE_H_
#define KVSTOW_CLIENT_PLANNER_SIZE_CURVE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/planner/recipe_size.h"
#include "client/planner/reuse_curve.h"

namespace kvstow::planner {

struct SizeCurve {
  std::string recipe;
  uint64_t block_bytes = 0;   // stored, of all ranks
  std::vector<double> rates;  // at each of SizeCurves::sizes
  uint64_t all_bytes = 0;     // more bytes than these gain nothing
};

struct SizeCurves {
  std::vector<uint64_t> sizes;  // rising
  std::vector<SizeCurve> recipes;
  double infinite = 0;
};

// Sizes are powers of two around what the load can use, and `more`.
SizeCurves CurvesOf(const Load& load, uint64_t raw_bytes_per_token,
                    std::span<const RecipeSize> recipes, std::span<const uint64_t> more);

double HitRateAt(const Load& load, const SizeCurve& curve, uint64_t bytes);
// Returns the least size that reaches `rate`; nothing when none does.
std::optional<uint64_t> SizeFor(const Load& load, const SizeCurve& curve, double rate);

// Draws one character of height 1 to 8 for each value, relative to the largest.
std::string Sparkline(std::span<const double> values);

// Draws the curves, with sizes on a logarithmic axis, as a whole SVG document.
std::string CurvesSvg(const SizeCurves& curves, const std::string& title);

}  // namespace kvstow::planner

#endif  // KVSTOW_CLIENT_PLANNER_SIZE_CURVE_H_
