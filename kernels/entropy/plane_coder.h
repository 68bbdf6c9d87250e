// The plane coder: codes quantized coefficients as an embedded code, and decodes it.
//
// A magnitude at the finest level is floor(|c| / step + 1 - kPlaneDeadZone). Each level below
// doubles the step and drops a bit of the magnitude, so a level is the leading bits of the next.
// The base is coded by symbols. A refinement is one bit for each coefficient, and a sign where the
// coefficient becomes non-zero. Tables are static (plane_tables.h). The row of a coefficient picks
// the table: row = 16 + 4 log2(sigma / base step). Tokens may have energy classes, half octaves of
// amplitude: these bring tokens into another order within their stream, and move the rows
// (plane_order.h).
//
// The body of a level is the lengths of its streams, then the streams. A stream holds
// `tokens_per_stream` consecutive tokens. It is one rANS stream of kRansLanes lanes (rans.h), and
// decodes by itself: a reader of few tokens decodes few streams. Vectors decode a stream
// (plane_loops.h). docs/FORMAT.md has every byte.
//
// Integers and coefficients are arrays [width, stride] with stride = PlaneStride(tokens): the
// tokens of a coefficient stand together, in their places where they have energy classes.
//
//   const PlaneCoder coder({.rows = rows, .levels = 4, .tokens_per_stream = 256}, tables, lookups);
//   std::vector<std::string> bodies = coder.Encode(q, {}, tokens);
//   KVSTOW_RETURN_IF_ERROR(coder.Decode(first_bodies, tokens, {0, tokens}, got, {}));
//
// Immutable, thread-safe. The same input gives the same bytes on every machine. Decoding checks
// every length before it reads, and fails with DATA_LOSS; its output is then unspecified.
#ifndef KVSTOW_KERNELS_ENTROPY_PLANE_CODER_H_
#define KVSTOW_KERNELS_ENTROPY_PLANE_CODER_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/entropy/plane_loops.h"
#include "kernels/entropy/plane_order.h"
#include "kernels/entropy/plane_tables.h"
#include "kernels/entropy/rans.h"
#include "kernels/page/page.h"

namespace kvstow {

// Returns `q` as it is `levels` levels coarser.
inline int32_t CoarserLevel(int32_t q, uint32_t levels) {
  return q < 0 ? -(-q >> levels) : q >> levels;
}

inline constexpr uint32_t kMaxPlaneLevels = 8;

// Takes these vectors of kRansLanes tokens of rows [rows, stride].
template <typename T>
std::vector<T> TakeVectors(std::span<const T> rows, size_t stride,
                           std::span<const size_t> vectors) {
  std::vector<T> out;
  if (rows.empty()) return out;  // `stride` may be 0
  out.reserve(rows.size() / stride * vectors.size() * kRansLanes);
  for (size_t row = 0; row < rows.size(); row += stride) {
    for (const size_t v : vectors) {
      const auto from = rows.subspan(row + v * kRansLanes, kRansLanes);
      out.insert(out.end(), from.begin(), from.end());
    }
  }
  return out;
}

struct PlaneLayout {
  std::vector<int16_t> rows;  // of each coefficient of a token, at the base step; any value
  bool classed = false;       // tokens have energy classes
  // Which sign of each coefficient is more likely (PositiveShare in plane_loops.h), within
  // kMaxPlaneTilt; empty = all signs are equally likely.
  std::vector<int8_t> tilts;
  uint32_t levels = 1;                      // 1 to kMaxPlaneLevels
  uint32_t tokens_per_stream = kRansLanes;  // a multiple of kRansLanes
};

// Returns the least range of whole streams that holds `wanted`, within a page of `tokens` tokens.
TokenRange WholeStreams(TokenRange wanted, uint32_t tokens, uint32_t tokens_per_stream);

// Returns the beginning of a level's body, which says how many words each of its streams has, and
// whether tokens come by class.
std::string StreamLengths(std::span<const uint32_t> words, bool classed);
// Cuts the body of a level into its streams. Fails with DATA_LOSS, and with FAILED_PRECONDITION
// where an earlier version wrote it, in another order of tokens.
absl::StatusOr<std::vector<std::span<const uint8_t>>> SplitStreams(std::span<const uint8_t> body,
                                                                   size_t streams, bool classed);

class PlaneCoder {
 public:
  // `tables` must be valid, and `lookups` made of them. Both outlive this.
  PlaneCoder(PlaneLayout layout, const PlaneTables& tables, const PlaneLookups& lookups);

  const PlaneLayout& layout() const { return layout_; }
  size_t width() const { return layout_.rows.size(); }

  // Returns the bodies of all levels, base first. `q` is [width, stride], at least one token, at
  // the step of the finest level. `energies` has the class of each token, below kPlaneEnergies; it
  // is empty without classes.
  std::vector<std::string> Encode(std::span<const int32_t> q, std::span<const uint8_t> energies,
                                  uint32_t tokens) const;

  // Decodes the tokens `wanted`, whole streams, from the bodies of the first levels (at least one)
  // of `tokens` tokens: `q` [width, stride of wanted] at the last of these levels, and `energies`
  // of the wanted, which is empty without classes.
  absl::Status Decode(std::span<const std::span<const uint8_t>> bodies, uint32_t tokens,
                      TokenRange wanted, std::span<int32_t> q, std::span<uint8_t> energies) const;

  // Makes coefficients [width, stride] of `q` at `level`, at the centroids of the bins. `shifts`
  // are PlaneOrder's, or empty. steps[i] is the step of coefficient i at that level; one entry is
  // the same for all.
  void Dequantize(std::span<const int32_t> q, std::span<const int8_t> shifts, uint32_t tokens,
                  uint32_t level, std::span<const float> steps,
                  std::span<float> coefficients) const;
  // Does the same for `count` coefficients from `first` on. `q`, `coefficients` [count, stride] and
  // `steps` are of these alone.
  void DequantizeRows(std::span<const int32_t> q, std::span<const int8_t> shifts, uint32_t tokens,
                      uint32_t level, std::span<const float> steps, size_t first, size_t count,
                      std::span<float> coefficients) const;

 private:
  PlaneStream StreamOf(uint32_t tokens, size_t stride, const int8_t* shifts) const;
  void PutEnergies(std::span<const uint8_t> energies, uint32_t tokens, RansEncoder& rans) const;
  void GetEnergies(RansDecoder& rans, uint32_t tokens, uint8_t* energies) const;

  PlaneLayout layout_;
  const PlaneTables& tables_;
  const PlaneLookups& lookups_;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_ENTROPY_PLANE_CODER_H_
