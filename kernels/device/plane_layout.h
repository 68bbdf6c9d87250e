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

#include "kernels/device/slab_layout.h"
#include "kernels/entropy/plane_coder.h"
#include "kernels/entropy/plane_tables.h"
#include "kernels/methods/page_tables.h"

namespace kvstow::gpu {

inline constexpr uint32_t kBucketSlots = 64;  // of an entry of PlaneTable::buckets
inline constexpr uint32_t kIsEscape = 1u << 31;
inline constexpr uint32_t kNotThere = UINT32_MAX;

// PlaneTables as the kernels look things up, for a code of a known number of levels.
struct alignas(16) PlaneTable {
  // A symbol's start, and from bit 16 on its frequency, of both signs together; of the base.
  // kIsEscape marks the one that escapes.
  uint32_t symbols[kPlaneRows][kPlaneSymbols];
  uint32_t energy[kPlaneEnergies];  // the same of an energy class
  // Frequencies of a bit 0 that refines to a level, by PlaneRow of the level before.
  uint16_t zero[kMaxPlaneLevels][kPlaneMaxRow + 1][kPlaneContexts];
  uint16_t splits[kPlaneMaxRow + 1];  // SplitPlaneRow: the row, and from bit 8 on the raw bits
  // The symbol of a bucket's first slot, and from bit 8 on how many of its slots belong to it.
  uint16_t buckets[kPlaneRows][kRansTotal / kBucketSlots];
  uint8_t escape[kPlaneRows];
  uint8_t centre[kMaxPlaneLevels][kPlaneRows][kPlaneSymbols];
  uint8_t share[kMaxPlaneLevels][2 * kMaxPlaneTilt + 1];  // PositiveShare, by tilt + kMaxPlaneTilt
};

// A stream: `tokens` tokens of a run of layers of a page.
struct PlaneJob {
  uint32_t page = 0;    // of the launch's answers
  uint32_t tokens = 0;  // at most MostStreamTokens
  uint32_t rank = 0;
  uint32_t rows_at = 0;                     // [rank] of `rows`
  uint32_t tilts_at = kNotThere;            // [rank] of `tilts`
  uint32_t factors_at = kNotThere;          // [tokens] of `factors`
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

// A run of layers of a page that is encoded.
struct PlaneBody {
  uint32_t page = 0;  // of the launch's answers
  uint32_t tokens = 0, rank = 0;
  uint32_t stride = 0;    // of the magnitudes of a token
  uint32_t rows_at = 0;   // [rank] of `base_rows`, which the bodies of a run share
  uint32_t lists_at = 0;  // [rank] of what is the body's own
  size_t q_at = 0, energies_at = 0, sample_at = 0;  // [tokens, stride], [tokens], [sampled, rank]
};

// A stream of a body. Level l has room for LevelRoom words, one level after another from words_at
// on; a stream stands at the end of its room.
struct PlaneEncodeJob {
  uint32_t body = 0;
  uint32_t first = 0, tokens = 0;  // of the body
  size_t words_at = 0;
};
// A page that needs more is left to the CPU: no coefficients of a model do.
constexpr uint32_t LevelRoom(uint32_t rank, uint32_t tokens, uint32_t level) {
  const uint32_t symbols = (rank + 2) * (tokens + kRansLanes);
  return symbols / (level == 0 ? 2 : 4) + 4 * kRansLanes;
}
constexpr size_t RoomBefore(uint32_t rank, uint32_t tokens, uint32_t level) {
  size_t words = 0;
  for (uint32_t l = 0; l < level; ++l) words += LevelRoom(rank, tokens, l);
  return words;
}

inline constexpr uint32_t kListValues = 2 * kMaxPlaneTilt + 1;  // of moves and of tilts
static_assert(kMaxRowMove <= kMaxPlaneTilt);

struct PlaneEncodeLaunch {
  uint32_t pages = 1;
  uint32_t body_count = 0, streams = 0;
  uint32_t most_tokens = 0, most_rank = 0;  // of a stream, a multiple of kRansLanes; of a body
  uint32_t levels = 0;
  bool adapts = false;  // bodies bring tables of their own (methods/page_tables.h)
  float step = 0;       // of the finest level
  const PlaneTable* table = nullptr;
  const PlaneBody* bodies = nullptr;
  const PlaneEncodeJob* jobs = nullptr;  // [streams]
  const int16_t* base_rows = nullptr;
  const uint16_t* bits = nullptr;  // PageTablesFit::bits(); null unless bodies adapt
  const float* costs = nullptr;    // bits of an integer in a list, [moves and tilts, spread, value]
  int16_t* q = nullptr;            // magnitudes at the finest step; the runs write these three
  uint8_t* energies = nullptr;
  float* sample = nullptr;  // coefficients of sampled tokens
  // Made on the way: the tokens in the order of their places (entropy/plane_order.h) and the shift
  // of each place's rows; what each row and tilt would save, then the lists and the rows.
  uint32_t* order = nullptr;
  int8_t* shifts = nullptr;
  float *move_saves = nullptr, *tilt_saves = nullptr;
  int8_t *moves = nullptr, *tilts = nullptr;
  int16_t* rows = nullptr;
  // Results. They are parts of what goes to the host, which the engine clears first.
  uint8_t* answer = nullptr;
  size_t answer_bytes = 0;
  uint8_t* spreads = nullptr;   // [bodies, moves and tilts]
  double* sums = nullptr;       // [bodies, GainBlocks, levels + 1]: energy, and error at each level
  uint16_t* words = nullptr;    // rooms
  uint32_t* counts = nullptr;   // [streams, levels]: words of each
  uint32_t* refused = nullptr;  // [pages]: 1 = for the CPU
};
// Thread blocks that share the sums of a body.
constexpr uint32_t GainBlocks(uint32_t most_rank) { return (most_rank + kThreads - 1) / kThreads; }

// Words that move together.
struct WordsMove {
  size_t from = 0, to = 0;
  uint32_t count = 0;
};
struct WordsLaunch {
  uint32_t pages = 1;
  uint32_t move_count = 0;
  const WordsMove* moves = nullptr;
  const uint16_t* from = nullptr;
  uint16_t* to = nullptr;
};

// Shared memory of a thread block that decodes leading levels of a stream: the table, the states of
// the lanes, the order of tokens (energy classes, shifts, and places of two bytes), and a *piece*
// for each level and for what is being written. A block that encodes needs less.
inline constexpr uint32_t kPieceRows = 8;  // coefficients of a piece, of all tokens
inline constexpr size_t kPlaneSavedBytes = 640;
constexpr size_t PlaneOrderBytes(uint32_t tokens) { return size_t{4} * tokens; }
constexpr size_t PlaneSharedBytes(uint32_t levels, uint32_t tokens) {
  const size_t piece = size_t{kPieceRows} * tokens * sizeof(int32_t);
  return sizeof(PlaneTable) + kPlaneSavedBytes + PlaneOrderBytes(tokens) + piece * (levels + 1);
}

// Returns the most tokens that a stream of so many levels may have on a GPU whose thread blocks
// have so much shared memory.
constexpr uint32_t MostStreamTokens(uint32_t levels, size_t shared_bytes) {
  uint32_t tokens = levels <= 4 ? 512 : 256;
  while (tokens > 0 && PlaneSharedBytes(levels, tokens) > shared_bytes) tokens -= kRansLanes;
  return tokens;
}

PlaneTable MakePlaneTable(const PlaneTables& tables, uint32_t levels);

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_DEVICE_PLANE_LAYOUT_H_
