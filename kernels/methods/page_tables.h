// What a page's coefficients have in common that their calibration does not say. Text of a kind
// that no calibration saw spreads otherwise over the coefficients, and prefers one sign in many.
//
//   PageTables tables = fit.Fit(layout, q, order);              // quantized coefficients in
//   PutPageTables(tables, body);                                // written before the plane body
//   Adapt(tables, layout);                                      // both sides code with these rows
//
// They change no quantized coefficient: only how many bytes it takes, and the centroid that it
// decodes to. A list is written where it saves more bits than it takes. A page without lists has a
// byte more.
#ifndef KVSTOW_KERNELS_METHODS_PAGE_TABLES_H_
#define KVSTOW_KERNELS_METHODS_PAGE_TABLES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/entropy/plane_coder.h"

namespace kvstow {

inline constexpr int kMaxRowMove = 8;

// Each list has an integer for each coefficient. It is empty where all of them are 0.
struct PageTables {
  std::vector<int8_t> rows;   // added to its row, within kMaxRowMove
  std::vector<int8_t> tilts;  // within kMaxPlaneTilt
  // The spread of each list (small_integers.h); 0 where it is empty.
  uint32_t rows_spread = 0, tilts_spread = 0;
};

// Makes the rows of `layout` those of a page.
void Adapt(const PageTables& tables, PlaneLayout& layout);

// Appends the tables: one byte, and the lists that are not empty.
void PutPageTables(const PageTables& tables, std::string& out);
// Reads the tables of `rank` coefficients, and takes them from `bytes`. Fails with DATA_LOSS.
absl::StatusOr<PageTables> GetPageTables(std::span<const uint8_t>& bytes, size_t rank);

// Finds the tables of pages. Immutable: thread-safe.
class PageTablesFit {
 public:
  static constexpr int kLeastRow = -4 * static_cast<int>(kMaxPlaneLevels);
  static constexpr uint32_t kMagnitudes = 256;
  // Bits that a list takes beside its integers.
  static constexpr float kListBits = 32;
  // Returns the distance between the places that Fit looks at.
  static constexpr uint32_t EveryOf(uint32_t tokens) { return tokens > 128 ? 2 : 1; }

  // For a code of `levels` levels with these tables.
  PageTablesFit(const PlaneTables& tables, uint32_t levels);

  // `q` and `order` are what PlaneCoder::Encode takes and goes by.
  PageTables Fit(const PlaneLayout& layout, std::span<const int32_t> q,
                 const PlaneOrder& order) const;

  // Returns 256ths of a bit that a magnitude takes at all levels, without its sign, by its row at
  // the base from kLeastRow to kPlaneMaxRow: [rows, kMagnitudes]. The last magnitude stands for all
  // above.
  std::span<const uint16_t> bits() const { return bits_; }

 private:
  static constexpr size_t kRows = kPlaneMaxRow - kLeastRow + 1;

  const uint16_t* BitsOf(int row) const;

  uint32_t levels_;
  std::vector<uint16_t> bits_;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_PAGE_TABLES_H_
