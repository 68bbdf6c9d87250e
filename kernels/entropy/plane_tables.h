// Static tables of the plane coder (plane_coder.h): the probability of each symbol where a
// coefficient's spread is a known multiple of the step.
//
// A *row* stands for one ratio of spread to step: row r for sigma / step = 2^((r - 16) / 4), rows 0
// to 24, a sixteenth to four. A coefficient above keeps its low bits raw, until the rest falls into
// the highest four rows. Probabilities are integers of kRansTotal, so all machines agree.
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
inline constexpr int kPlaneDistances = 4;
inline constexpr int kPlaneEnergies = 16;

// A magnitude at the finest level is floor(|c| / step + 1 - kPlaneDeadZone).
inline constexpr float kPlaneDeadZone = 0.55f;

// The tables of one level. Its distance from the finest level picks them.
struct LevelTables {
  // Frequencies of min(magnitude, last) where this level is the base. They sum to kRansTotal. All
  // but the first are even (half for each sign). The last that is not 0 escapes: it stands for that
  // magnitude and all above.
  std::array<std::array<uint16_t, kPlaneSymbols>, kPlaneRows> base{};
  // Frequency of a bit 0 that refines the level below to this one, by the row at that coarser step.
  // In context 0 the bit 1 brings a sign, so kRansTotal minus it is even.
  std::array<std::array<uint16_t, kPlaneContexts>, kPlaneRows> zero{};
  // A magnitude m > 0 decodes to m - 0.5 + centre / 256 steps. The last serves all magnitudes
  // above.
  std::array<std::array<uint8_t, kPlaneSymbols>, kPlaneRows> centre{};
  bool operator==(const LevelTables&) const = default;
};

// Returns the symbol of a row of LevelTables::base that escapes.
inline uint32_t EscapeOf(const std::array<uint16_t, kPlaneSymbols>& frequencies) {
  uint32_t escape = kPlaneSymbols - 1;
  while (frequencies[escape] == 0) --escape;
  return escape;
}

struct PlaneTables {
  // [d] is for the level d below the finest, the last for all further down.
  std::array<LevelTables, kPlaneDistances> distance{};
  // Frequencies of energy classes; they sum to kRansTotal.
  std::array<uint16_t, kPlaneEnergies> energy{};
  bool operator==(const PlaneTables&) const = default;
};

inline constexpr size_t kPlaneTablesBytes =
    kPlaneDistances * kPlaneRows * (3 * kPlaneSymbols + 2 * kPlaneContexts) + 2 * kPlaneEnergies;

// Returns tables for coefficients of any origin: a shape a little heavier than Gaussian. They live
// for ever.
const PlaneTables& UniversalPlaneTables();

// Returns tables for coefficients like `unit`, samples of (coefficient / its sigma / its energy
// factor): some 100,000 of them. `energies` holds how often each energy class came; all 0 = equally
// likely.
PlaneTables FitPlaneTables(std::span<const float> unit,
                           std::span<const uint64_t, kPlaneEnergies> energies);

// INVALID_ARGUMENT names the table and the row that breaks a rule above.
absl::Status Validate(const PlaneTables& tables);
std::string SerializePlaneTables(const PlaneTables& tables);  // kPlaneTablesBytes
// Returns valid tables, or fails with DATA_LOSS.
absl::StatusOr<PlaneTables> ParsePlaneTables(std::span<const uint8_t> bytes);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_ENTROPY_PLANE_TABLES_H_
