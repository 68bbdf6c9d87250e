#include "kernels/methods/page_tables.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "base/status_macros.h"
#include "kernels/entropy/small_integers.h"

namespace kvstow {
namespace {

constexpr float kUnits = 256;  // of a bit

float BitsOfShare(uint32_t frequency) {
  return static_cast<float>(kRansBits) - std::log2(static_cast<float>(frequency));
}

// Returns the bits of a magnitude where it is coded first, without a sign.
float BaseBits(const LevelTables& tables, int row, uint32_t magnitude) {
  const auto [table, raw_bits] = SplitPlaneRow(std::clamp(row, 0, kPlaneMaxRow));
  const auto& frequencies = tables.base[table];
  const uint32_t escape = EscapeOf(frequencies);
  const uint32_t high = magnitude >> raw_bits, symbol = std::min(high, escape);
  float bits = BitsOfShare(frequencies[symbol]) + static_cast<float>(raw_bits);
  if (high >= escape) {
    const int width = std::bit_width(high - escape);
    bits += static_cast<float>(kEscapeWidthBits) + static_cast<float>(std::max(width - 1, 0));
  }
  return bits;
}

// Returns the bits of the refinement from magnitude >> 1 to `magnitude`, by the coarser row.
float RefinementBits(const LevelTables& tables, int row, uint32_t magnitude) {
  const uint32_t context = std::min<uint32_t>(magnitude >> 1, kPlaneContexts - 1);
  const uint32_t zero = tables.zero[std::clamp(row, 0, kPlaneRows - 1)][context];
  return BitsOfShare(magnitude % 2 == 0 ? zero : kRansTotal - zero);
}

// The value of a coefficient that is best for its own bits, and how many it saves.
struct Candidate {
  int8_t value = 0;
  float saves = 0;
};

// Takes each candidate that saves more than it costs in a list, or none where no list pays.
std::vector<int8_t> Choose(std::span<const Candidate> candidates, int limit, uint32_t& spread) {
  std::vector<float> costs;
  const auto cost = [&](int value) { return costs[static_cast<size_t>(value + limit)]; };
  const auto gain = [&](const Candidate& of) { return of.saves - cost(of.value) + cost(0); };
  spread = 0;
  float best = 0;
  for (uint32_t s = 1; s <= kMaxSpread; ++s) {
    costs = SmallIntegerBits(s, limit);
    float saved = -PageTablesFit::kListBits - cost(0) * static_cast<float>(candidates.size());
    for (const Candidate& candidate : candidates) saved += std::max(gain(candidate), 0.0f);
    if (saved > best) best = saved, spread = s;
  }
  std::vector<int8_t> out;
  if (spread == 0) return out;
  costs = SmallIntegerBits(spread, limit);
  for (const Candidate& candidate : candidates)
    out.push_back(gain(candidate) > 0 ? candidate.value : int8_t{0});
  return out;
}

// How often a coefficient became non-zero with each sign, by the distance of that level.
using SignCounts = std::array<std::array<float, 2>, kPlaneDistances>;

// Counts those at the places `non_zeros`.
SignCounts CountSigns(const int32_t* q, std::span<const uint32_t> non_zeros, uint32_t levels) {
  SignCounts counts{};
  for (const uint32_t p : non_zeros) {
    const int32_t value = q[p];
    const auto width =
        static_cast<uint32_t>(std::bit_width(static_cast<uint32_t>(std::abs(value))));
    const uint32_t distance = std::min(std::min(width, levels) - 1, kPlaneDistances - 1u);
    counts[distance][value < 0 ? 1 : 0] += 1;
  }
  return counts;
}

// Bits of a sign by tilt and distance: [0] of a positive one, [1] of a negative one.
struct SignBits {
  SignBits() {
    for (int tilt = -kMaxPlaneTilt; tilt <= kMaxPlaneTilt; ++tilt) {
      for (uint32_t d = 0; d < kPlaneDistances; ++d) {
        const auto share = static_cast<float>(PositiveShare(tilt, d)) / 256;
        of[static_cast<size_t>(tilt + kMaxPlaneTilt)][d] = {-std::log2(share),
                                                            -std::log2(1 - share)};
      }
    }
  }
  std::array<std::array<std::array<float, 2>, kPlaneDistances>, 2 * kMaxPlaneTilt + 1> of;
};

Candidate BestTilt(const SignCounts& counts) {
  static const SignBits kBits;
  float all = 0;
  for (const auto& [positive, negative] : counts) all += positive + negative;
  Candidate best;
  for (int tilt = -kMaxPlaneTilt; tilt <= kMaxPlaneTilt; ++tilt) {
    float saves = all;  // an even sign takes a bit
    const auto& bits = kBits.of[static_cast<size_t>(tilt + kMaxPlaneTilt)];
    for (size_t d = 0; d < kPlaneDistances; ++d)
      saves -= counts[d][0] * bits[d][0] + counts[d][1] * bits[d][1];
    if (saves > best.saves) best = {static_cast<int8_t>(tilt), saves};
  }
  return best;
}

// Goes from a row to its neighbours as long as `bits` of a move fall. They come times `scale`.
template <typename Bits>
Candidate BestMove(const Bits& bits, float scale) {
  Candidate best;
  const uint64_t still = bits(0);
  uint64_t least = still;
  for (const int way : {1, -1}) {
    for (int move = way; std::abs(move) <= kMaxRowMove; move += way) {
      const uint64_t here = bits(move);
      if (here >= least) break;
      least = here;
      best = {static_cast<int8_t>(move), static_cast<float>(still - here) * scale};
    }
    if (least < still) break;
  }
  return best;
}

// A list of spread 0 is not there: it is empty.
void PutList(std::span<const int8_t> list, uint32_t spread, int limit, std::string& out) {
  if (spread > 0) PutSmallIntegers(list, spread, limit, out);
}
absl::StatusOr<std::vector<int8_t>> GetList(std::span<const uint8_t>& bytes, uint32_t spread,
                                            int limit, size_t rank) {
  std::vector<int8_t> list(spread > 0 ? rank : 0);
  if (spread > kMaxSpread)
    return absl::DataLossError("a page's tables have a spread that no encoder writes");
  if (spread > 0) KVSTOW_RETURN_IF_ERROR(GetSmallIntegers(bytes, spread, limit, list));
  return list;
}

}  // namespace

void Adapt(const PageTables& tables, PlaneLayout& layout) {
  for (size_t i = 0; i < tables.rows.size(); ++i)
    layout.rows[i] = static_cast<int16_t>(layout.rows[i] + tables.rows[i]);
  layout.tilts = tables.tilts;
}

void PutPageTables(const PageTables& tables, std::string& out) {
  out.push_back(static_cast<char>(tables.rows_spread | tables.tilts_spread << 4));
  PutList(tables.rows, tables.rows_spread, kMaxRowMove, out);
  PutList(tables.tilts, tables.tilts_spread, kMaxPlaneTilt, out);
}

absl::StatusOr<PageTables> GetPageTables(std::span<const uint8_t>& bytes, size_t rank) {
  if (bytes.empty()) return absl::DataLossError("a page's tables are cut");
  PageTables tables{.rows = {},
                    .tilts = {},
                    .rows_spread = bytes[0] & 15u,
                    .tilts_spread = static_cast<uint32_t>(bytes[0] >> 4)};
  bytes = bytes.subspan(1);
  KVSTOW_ASSIGN_OR_RETURN(tables.rows, GetList(bytes, tables.rows_spread, kMaxRowMove, rank));
  KVSTOW_ASSIGN_OR_RETURN(tables.tilts, GetList(bytes, tables.tilts_spread, kMaxPlaneTilt, rank));
  return tables;
}

PageTablesFit::PageTablesFit(const PlaneTables& tables, uint32_t levels)
    : levels_(levels), bits_(kRows * kMagnitudes) {
  for (size_t r = 0; r < kRows; ++r) {
    const int row = static_cast<int>(r) + kLeastRow;
    for (uint32_t magnitude = 0; magnitude < kMagnitudes; ++magnitude) {
      float bits = 0;
      for (uint32_t level = 0; level < levels; ++level) {
        const uint32_t above = levels - 1 - level;
        const LevelTables& of = tables.distance[std::min<uint32_t>(above, kPlaneDistances - 1)];
        bits += level == 0
                    ? BaseBits(of, row, magnitude >> above)
                    : RefinementBits(of, row + 4 * static_cast<int>(level - 1), magnitude >> above);
      }
      bits_[r * kMagnitudes + magnitude] = static_cast<uint16_t>(std::lround(bits * kUnits));
    }
  }
}

const uint16_t* PageTablesFit::BitsOf(int row) const {
  const auto r = static_cast<size_t>(std::clamp(row, kLeastRow, kPlaneMaxRow) - kLeastRow);
  return &bits_[r * kMagnitudes];
}

// Most coefficients of most tokens are 0. Those are counted by the shift of their rows, and the
// others looked up one by one.
PageTables PageTablesFit::Fit(const PlaneLayout& layout, std::span<const int32_t> q,
                              const PlaneOrder& order) const {
  const auto tokens = static_cast<uint32_t>(order.tokens.size());
  const size_t rank = layout.rows.size(), stride = PlaneStride(tokens);
  const uint32_t every = EveryOf(tokens);
  std::vector<uint32_t> sampled(order.shifts.size());  // of each kRansLanes places
  for (uint32_t p = 0; p < tokens; p += every) ++sampled[p / kRansLanes];
  const float scale =
      static_cast<float>(tokens) / static_cast<float>((tokens + every - 1) / every) / kUnits;
  struct NonZero {
    int shift;  // of the row
    uint8_t magnitude;
  };
  std::vector<uint32_t> places(tokens);  // of values other than 0
  std::vector<NonZero> looked_up;
  std::vector<Candidate> rows(rank), tilts(rank);
  for (size_t i = 0; i < rank; ++i) {
    const int32_t* const row_of_q = &q[i * stride];
    size_t n = 0;
    for (uint32_t p = 0; p < tokens; ++p) {
      places[n] = p;
      n += row_of_q[p] != 0 ? 1 : 0;  // without a branch: nobody can predict it
    }
    const auto non_zeros = std::span<const uint32_t>(places).first(n);
    tilts[i] = BestTilt(CountSigns(row_of_q, non_zeros, levels_));
    looked_up.clear();
    auto zeros = sampled;
    for (const uint32_t p : non_zeros) {
      if (p % every != 0) continue;
      --zeros[p / kRansLanes];
      looked_up.push_back({order.shifts[p / kRansLanes],
                           static_cast<uint8_t>(std::min(std::abs(row_of_q[p]), 255))});
    }
    const auto bits = [&](int move) {
      const int row = layout.rows[i] + move;
      uint64_t sum = 0;
      for (size_t v = 0; v < zeros.size(); ++v)
        sum += uint64_t{zeros[v]} * BitsOf(row + order.shifts[v])[0];
      for (const NonZero& one : looked_up) sum += BitsOf(row + one.shift)[one.magnitude];
      return sum;
    };
    rows[i] = BestMove(bits, scale);
  }
  PageTables tables;
  tables.rows = Choose(rows, kMaxRowMove, tables.rows_spread);
  tables.tilts = Choose(tilts, kMaxPlaneTilt, tables.tilts_spread);
  return tables;
}

}  // namespace kvstow
