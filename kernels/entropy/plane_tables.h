// Static tables of the plane coder (plane_coder.h): how likely each symbol is where a coefficient's
// spread is a known multiple of the step.
//
// A *row* stands for one ratio of spread to step: row r for sigma / step = 2^((r - 16) / 4), rows 0
// to 24, a sixteenth to four. What lies above keeps its low bits raw, until the rest falls into the
// highest four rows. Probabilities are integers of kRansTotal, so that all machines agree.
//
// A value type; functions are thread-safe. The universal tables need no data; a calibration blob
// carries its own, fitted by FitPlaneTables, in the form of SerializePlaneTables.
#ifndef KVSTOW_KERNELS_ENTROPY_PLANE_TABLES_H_
#define KVSTOW_KERNELS_ENTROPY_PLANE_TABLES_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace kvstow {

inline constexpr int kPlaneRows = 25;
inline constexpr int kPlaneUnitRow = 16;  // sigma = step
inline constexpr int kPlaneMaxRow = 56;   // sigma = 1024 steps; greater ratios use this row
inline constexpr int kPlaneSymbols = 16;
inline constexpr int kPlaneContexts = 4;  // min(magnitude one level coarser, 3)
inline constexpr int kPlaneEnergies = 16;

struct PlaneTables {
  // Frequencies of min(magnitude, last) at the base level; they sum to kRansTotal, all but the
  // first are even (half for each sign), and the last that is not 0 escapes: it stands for that
  // magnitude and all above.
  std::array<std::array<uint16_t, kPlaneSymbols>, kPlaneRows> base{};
  // Frequency of a refinement bit 0, by the row at the coarser step. In context 0 the bit 1 brings
  // a sign, so kRansTotal minus it is even.
  std::array<std::array<uint16_t, kPlaneContexts>, kPlaneRows> zero{};
  // Where within its bin a magnitude is decoded, in 1/256 of the step; for 1.. (bin 0 gives 0).
  // The last serves all magnitudes above.
  std::array<std::array<uint8_t, kPlaneSymbols>, kPlaneRows> centre{};
  // Frequencies of energy classes; they sum to kRansTotal.
  std::array<uint16_t, kPlaneEnergies> energy{};
  bool operator==(const PlaneTables&) const = default;
};

inline constexpr size_t kPlaneTablesBytes =
    kPlaneRows * (2 * kPlaneSymbols + 2 * kPlaneContexts + kPlaneSymbols) + 2 * kPlaneEnergies;

// For coefficients of any origin: a shape a little heavier than Gaussian. Lives for ever.
const PlaneTables& UniversalPlaneTables();

// Tables for coefficients like `unit`, samples of (coefficient / its sigma / its energy factor):
// some 100,000 of them. `energies` holds how often each energy class came; all 0 = equally likely.
PlaneTables FitPlaneTables(std::span<const float> unit,
                           std::span<const uint64_t, kPlaneEnergies> energies);

// INVALID_ARGUMENT names the table and the row that contradicts what is said above.
absl::Status Validate(const PlaneTables& tables);
std::string SerializePlaneTables(const PlaneTables& tables);  // kPlaneTablesBytes
// What it returns is valid; DATA_LOSS else.
absl::StatusOr<PlaneTables> ParsePlaneTables(std::span<const uint8_t> bytes);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_ENTROPY_PLANE_TABLES_H_
