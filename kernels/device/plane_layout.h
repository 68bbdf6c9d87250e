// Streams of the plane coder (entropy/plane_coder.h) on the GPU: the facts that its kernels get.
//
// A stream is coded by one thread block, so a launch takes the streams of many pages and runs of
// layers. Bytes are those of the CPU's plane coder.
//
// Values; no ownership; pointers are of device memory (of the host's in the emulation that tests
// use).
#ifndef KVSTOW_KERNELS_DEVICE_PLANE_LAYOUT_H_
#define KVSTOW_KERNELS_DEVICE_PLANE_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "kernels/entropy/plane_coder.h"
#include "kernels/entropy/plane_tables.h"

namespace kvstow::gpu {

inline constexpr uint32_t kFirstSlots = 64;  // of an entry of PlaneTable::first
inline constexpr uint32_t kNotThere = UINT32_MAX;

// PlaneTables as the kernels look things up, for a code of a known number of levels.
struct alignas(16) PlaneTable {
  // A symbol's start, and from bit 16 on its frequency, of both signs together; of the base.
  uint32_t symbols[kPlaneRows][kPlaneSymbols];
  uint32_t energy[kPlaneEnergies];                             // the same of an energy class
  uint16_t zero[kMaxPlaneLevels][kPlaneRows][kPlaneContexts];  // of a bit that refines to a level
  uint8_t first[kPlaneRows][kRansTotal / kFirstSlots];         // the symbol of slot 64 i
  uint8_t escape[kPlaneRows];
  uint8_t centre[kMaxPlaneLevels][kPlaneRows][kPlaneSymbols];
  uint8_t share[kMaxPlaneLevels][2 * kMaxPlaneTilt + 1];  // PositiveShare, by tilt + kMaxPlaneTilt
};

// A stream: `tokens` tokens of a run of layers of a page.
struct PlaneJob {
  uint32_t page = 0;    // of the launch's answers
  uint32_t tokens = 0;  // at most MostStreamTokens
  uint32_t rank = 0;
  uint32_t rows_at = 0;  // [rank] of `rows`
  uint32_t tilts_at = kNotThere,
           factors_at = kNotThere;          // [rank] of `tilts`, [tokens] of `factors`
  uint32_t words_at[kMaxPlaneLevels] = {};  // of each level, in `words`
  uint32_t words[kMaxPlaneLevels] = {};     // so many
  uint32_t stride = 0;                      // of the coefficients of a token
  size_t coefficients = 0;                  // of the first token, in the launch's coefficients
};

struct PlaneDecodeLaunch {
  uint32_t pages = 1;  // a grid has blocks by pages: the streams are one page's
  uint32_t streams = 0;
  uint32_t most_tokens = 0;          // of a stream, a multiple of kRansLanes
  uint32_t levels = 0, decoded = 0;  // of the code; that are there
  float step = 0;                    // of the last one decoded
  const PlaneTable* table = nullptr;
  const PlaneJob* jobs = nullptr;  // [streams]
  const int16_t* rows = nullptr;
  const int8_t* tilts = nullptr;
  const float* factors = nullptr;  // what a token's coefficients are times
  const uint16_t* words = nullptr;
  uint16_t* coefficients = nullptr;  // bf16 out: [tokens, stride] for each stream; 0 behind rank
  uint32_t* refused = nullptr;       // [pages of the answers]: 1 = damaged
};

// Returns the most tokens that a stream of so many levels may have: what a thread block has room
// for.
constexpr uint32_t MostStreamTokens(uint32_t levels) { return levels <= 4 ? 512 : 256; }

PlaneTable MakePlaneTable(const PlaneTables& tables, uint32_t levels);

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_DEVICE_PLANE_LAYOUT_H_
