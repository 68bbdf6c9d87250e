// The plane coder: quantized coefficients [tokens, width] to an embedded code and back.
//
// A magnitude at the finest level is floor(|c| / step + 1 - kPlaneDeadZone); each level below
// doubles the step and drops a bit of the magnitude, so a level is the leading bits of the next.
// The base is coded by symbols, a refinement by one bit a coefficient and a sign where it becomes
// non-zero. Tables are static (plane_tables.h), picked by the row of the coefficient, row = 16 + 4
// log2(sigma / base step), moved by the energy class of its (token, block): by 2 (class - 8) rows,
// half octaves of amplitude.
//
// Body of a level: the lengths of its streams, then the streams. A stream holds
// `tokens_per_stream` consecutive tokens, and is one rANS stream (rans.h) that is decoded by
// itself: so any token range decodes alone, and 16 streams decode in lockstep. docs/FORMAT.md has
// every byte.
//
//   PlaneCoder coder({.rows = rows, .levels = 4}, UniversalPlaneTables());
//   std::string body = coder.EncodeLevel(q, {}, /*level=*/0);
//   std::vector<int32_t> got(tokens * n);
//   KVSTOW_RETURN_IF_ERROR(coder.DecodeLevel(body, 0, tokens, {0, tokens}, got, {}));
//
// Immutable, thread-safe. The same input gives the same bytes on every machine. Decoding checks
// every length before it reads, and answers DATA_LOSS; what it wrote until then is unspecified.
#ifndef KVSTOW_KERNELS_ENTROPY_PLANE_CODER_H_
#define KVSTOW_KERNELS_ENTROPY_PLANE_CODER_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/entropy/plane_tables.h"
#include "kernels/entropy/rans.h"
#include "kernels/page.h"

namespace kvstow {

// Magnitudes are below this at every level.
inline constexpr int32_t kPlaneMaxMagnitude = 1 << 24;

// What `q` is `levels` levels coarser.
inline int32_t CoarserLevel(int32_t q, uint32_t levels) {
  return q < 0 ? -(-q >> levels) : q >> levels;
}

struct PlaneLayout {
  std::vector<int16_t> rows;  // of each coefficient of a token, at the base step; any value
  // Where each block of coefficients that share an energy class ends, ascending, the last =
  // rows.size(); empty = no energy classes.
  std::vector<uint32_t> block_ends;
  uint32_t levels = 1;             // >= 1
  uint32_t tokens_per_stream = 1;  // >= 1
};

// The least range of whole streams that holds `wanted`, within a page of `tokens` tokens.
TokenRange WholeStreams(TokenRange wanted, uint32_t tokens, uint32_t tokens_per_stream);

class PlaneCoder {
 public:
  // `tables` must be valid and outlive this.
  PlaneCoder(PlaneLayout layout, const PlaneTables& tables);

  const PlaneLayout& layout() const { return layout_; }
  size_t width() const { return layout_.rows.size(); }
  size_t blocks() const { return layout_.block_ends.size(); }

  // `q`: [tokens, width], at least one token, at the step of the finest level; `energies`:
  // [tokens, blocks], below kPlaneEnergies.
  std::string EncodeLevel(std::span<const int32_t> q, std::span<const uint8_t> energies,
                          uint32_t level) const;

  // Decodes the tokens `wanted`, whole streams, of a body of `tokens` tokens. `q` [wanted, width]
  // and `energies` [wanted, blocks] are written by level 0; a further level takes what the level
  // before left there, and makes `q` that level's.
  absl::Status DecodeLevel(std::span<const uint8_t> body, uint32_t level, uint32_t tokens,
                           TokenRange wanted, std::span<int32_t> q,
                           std::span<uint8_t> energies) const;

  // Coefficients [tokens, width] from `q` at `level`, at the centroids of the bins. steps[i] is the
  // step of coefficient i at that level; one entry = the same for all.
  void Dequantize(std::span<const int32_t> q, std::span<const uint8_t> energies, uint32_t level,
                  std::span<const float> steps, std::span<float> coefficients) const;

 private:
  void EncodeToken(const int32_t* q, const uint8_t* energies, uint32_t level,
                   RansEncoder& rans) const;
  bool DecodeToken(RansDecoder& rans, uint32_t level, int32_t* q, uint8_t* energies) const;
  // Levels above `level`, and the tables that depend on it.
  uint32_t Above(uint32_t level) const { return layout_.levels - 1 - level; }
  const LevelTables& TablesOf(uint32_t level) const {
    return tables_.distance[std::min<uint32_t>(Above(level), kPlaneDistances - 1)];
  }
  int Row(size_t coefficient, int shift, uint32_t level) const {
    return std::clamp(layout_.rows[coefficient] + shift + 4 * static_cast<int>(level), 0,
                      kPlaneMaxRow);
  }

  // Where the symbols of a row of base tables start, and which of them escapes.
  struct BaseStarts {
    std::array<uint16_t, kPlaneSymbols> start{};
    uint32_t escape = 0;
  };
  // Of the base level.
  void PutBase(RansEncoder& rans, int row, int32_t q) const;
  bool GetBase(RansDecoder& rans, int row, int32_t* q) const;

  PlaneLayout layout_;
  const PlaneTables& tables_;
  std::array<BaseStarts, kPlaneRows> starts_;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_ENTROPY_PLANE_CODER_H_
