#include "kernels/entropy/plane_tables.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "kernels/entropy/rans.h"

namespace kvstow {
namespace {

// Frequencies that sum to kRansTotal from counts, multiples of `unit` but for the first. A count of
// 0 gives frequency 0, every other at least one unit.
template <size_t n>
void ToFrequencies(const std::array<double, n>& counts, int unit, std::array<uint16_t, n>& out) {
  double sum = 0;
  for (const double count : counts) sum += count;
  int rest = kRansTotal;
  for (size_t k = 1; k < n; ++k) {
    const double want = std::round(counts[k] / sum * (kRansTotal / unit));
    out[k] = static_cast<uint16_t>(counts[k] > 0 ? unit * std::max(1, static_cast<int>(want)) : 0);
    rest -= out[k];
  }
  for (; rest < 1; rest += unit) *std::max_element(out.begin() + 1, out.end()) -= unit;
  out[0] = static_cast<uint16_t>(rest);
}

// Rare symbols escape. One symbol stands for all from it on, as soon as they have less than the
// least frequency together.
std::array<double, kPlaneSymbols> WithEscape(const std::array<double, kPlaneSymbols>& counts) {
  double sum = 0;
  for (const double count : counts) sum += count;
  std::array<double, kPlaneSymbols> out{};
  double left = sum;
  size_t k = 0;
  for (; k < kPlaneSymbols - 1 && (k == 0 || left > sum * 1.5 / kRansTotal); ++k) {
    out[k] = counts[k] + 1e-9;  // within the alphabet, so it needs a code
    left -= counts[k];
  }
  out[k] = std::max(left, 1e-9);
  return out;
}

// The counts of a row: base symbols, refinement bits by context, and sums of places in bins.
struct RowCounts {
  std::array<double, kPlaneSymbols> symbols{}, places{};
  std::array<std::array<double, 2>, kPlaneContexts> bits{};
};

// Counts at the level `distance` below the finest: symbols where that level has the step of `row`,
// refinement bits where it has half of it.
RowCounts Count(std::span<const float> unit, int row, int distance) {
  const float steps = std::exp2(static_cast<float>(row - kPlaneUnitRow) / 4);  // sigma in steps
  const auto finest = static_cast<float>(1 << distance);
  const auto magnitude_of = [&](float in_steps) {
    return static_cast<uint32_t>(in_steps * finest + (1 - kPlaneDeadZone)) >> distance;
  };
  RowCounts counts;
  for (const float u : unit) {
    const float in_steps = std::min(std::abs(u) * steps, 1e6f);
    const uint32_t magnitude = magnitude_of(in_steps), fine = magnitude_of(2 * in_steps);
    const uint32_t symbol = std::min<uint32_t>(magnitude, kPlaneSymbols - 1);
    counts.symbols[symbol] += 1;
    counts.places[symbol] += in_steps - static_cast<float>(magnitude) + 0.5f;
    counts.bits[std::min<uint32_t>(fine >> 1, kPlaneContexts - 1)][fine & 1] += 1;
  }
  return counts;
}

void FitRow(const RowCounts& counts, int row, LevelTables& tables) {
  ToFrequencies(WithEscape(counts.symbols), 2, tables.base[row]);
  for (int context = 0; context < kPlaneContexts; ++context) {
    const auto [zeros, ones] = counts.bits[context];
    const double share = (ones + 0.5) / (zeros + ones + 1);
    const double one = std::clamp(std::round(share * (kRansTotal / 2)), 1.0, kRansTotal / 2 - 1.0);
    tables.zero[row][context] = static_cast<uint16_t>(kRansTotal - 2 * static_cast<uint32_t>(one));
  }
  for (int k = 0; k < kPlaneSymbols; ++k) {
    const double n = counts.symbols[k];
    const double place = k > 0 && n >= 50 ? counts.places[k] / n : 0.5;
    tables.centre[row][k] = static_cast<uint8_t>(std::clamp(std::round(place * 256), 0.0, 255.0));
  }
}

absl::Status CheckRow(const LevelTables& tables, int row) {
  const auto& base = tables.base[row];
  uint32_t sum = 0;
  bool ended = false, fits = base[0] > 0 && base[1] > 0;
  for (int k = 0; k < kPlaneSymbols; ++k) {
    sum += base[k];
    if (k > 0 && base[k] % 2 != 0) fits = false;
    if (ended && base[k] > 0) fits = false;
    if (base[k] == 0) ended = true;
  }
  if (!fits || sum != kRansTotal)
    return absl::InvalidArgumentError(absl::StrCat("plane tables: base row ", row, " is no table"));
  for (const uint16_t zero : tables.zero[row]) {
    if (zero == 0 || zero >= kRansTotal || zero % 2 != 0)
      return absl::InvalidArgumentError(
          absl::StrCat("plane tables: a refinement of row ", row, " is no frequency"));
  }
  return absl::OkStatus();
}

}  // namespace

const PlaneTables& UniversalPlaneTables() {
  static constexpr PlaneTables kTables = {
#include "kernels/entropy/universal_plane_tables.inc"
  };
  return kTables;
}

PlaneTables FitPlaneTables(std::span<const float> unit,
                           std::span<const uint64_t, kPlaneEnergies> energies) {
  PlaneTables tables;
  for (int distance = 0; distance < kPlaneDistances; ++distance) {
    for (int row = 0; row < kPlaneRows; ++row)
      FitRow(Count(unit, row, distance), row, tables.distance[distance]);
  }
  std::array<double, kPlaneEnergies> seen{};
  for (int k = 0; k < kPlaneEnergies; ++k) seen[k] = static_cast<double>(energies[k]) + 0.5;
  ToFrequencies(seen, 1, tables.energy);
  return tables;
}

absl::Status Validate(const PlaneTables& tables) {
  for (const LevelTables& level : tables.distance) {
    for (int row = 0; row < kPlaneRows; ++row) KVSTOW_RETURN_IF_ERROR(CheckRow(level, row));
  }
  uint32_t sum = 0;
  for (const uint16_t frequency : tables.energy) sum += frequency == 0 ? kRansTotal + 1 : frequency;
  if (sum != kRansTotal) return absl::InvalidArgumentError("plane tables: energy is no table");
  return absl::OkStatus();
}

std::string SerializePlaneTables(const PlaneTables& tables) {
  ByteWriter writer;
  for (const LevelTables& level : tables.distance) {
    for (int row = 0; row < kPlaneRows; ++row) {
      for (const uint16_t frequency : level.base[row]) writer.Put(frequency);
      for (const uint16_t frequency : level.zero[row]) writer.Put(frequency);
      for (const uint8_t place : level.centre[row]) writer.Put(place);
    }
  }
  for (const uint16_t frequency : tables.energy) writer.Put(frequency);
  return std::move(writer).Take();
}

absl::StatusOr<PlaneTables> ParsePlaneTables(std::span<const uint8_t> bytes) {
  if (bytes.size() != kPlaneTablesBytes)
    return absl::DataLossError(
        absl::StrCat("plane tables: ", bytes.size(), " bytes, not ", kPlaneTablesBytes));
  ByteReader reader(bytes);
  PlaneTables tables;
  for (LevelTables& level : tables.distance) {
    for (int row = 0; row < kPlaneRows; ++row) {
      for (uint16_t& frequency : level.base[row]) frequency = reader.Get<uint16_t>();
      for (uint16_t& frequency : level.zero[row]) frequency = reader.Get<uint16_t>();
      for (uint8_t& place : level.centre[row]) place = reader.Get<uint8_t>();
    }
  }
  for (uint16_t& frequency : tables.energy) frequency = reader.Get<uint16_t>();
  if (const absl::Status status = Validate(tables); !status.ok())
    return absl::DataLossError(status.message());
  return tables;
}

}  // namespace kvstow
