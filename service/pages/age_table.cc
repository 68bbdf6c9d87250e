#include "service/pages/age_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

namespace kvstow {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using Millis = std::chrono::milliseconds;

// Each row ends where the next begins; the last has no end.
constexpr std::array<Millis, 5> kFrom = {minutes(0), minutes(1), minutes(10), hours(1), hours(24)};

struct Cell {
  uint64_t pages = 0, tokens = 0, values = 0, raw_bytes = 0, encoded_bytes = 0, levels = 0;
};
using Cells = std::array<std::array<Cell, kFrom.size()>, kTiers>;

size_t RowOf(Duration idle) {
  const auto after = std::upper_bound(kFrom.begin() + 1, kFrom.end(), idle);
  return static_cast<size_t>(after - kFrom.begin()) - 1;
}

void Add(const PageSample& page, const KvSpec& spec, Cells& cells) {
  const auto tier = static_cast<size_t>(page.page.tier);
  Cell& cell = cells[tier][RowOf(page.idle)];
  cell.pages += 1;
  cell.tokens += page.page.tokens;
  cell.values += page.raw_bytes / DTypeBytes(spec.dtype);
  cell.raw_bytes += page.raw_bytes;
  cell.encoded_bytes += page.page.stored_bytes;
  cell.levels += page.page.levels;
}

void ToProto(const Cell& cell, size_t tier, size_t row, double scale, v1::AgeUsage& out) {
  const auto scaled = [&](uint64_t sum) {
    return static_cast<uint64_t>(std::llround(scale * static_cast<double>(sum)));
  };
  out.set_tier(TierName(static_cast<TierId>(tier)));
  out.set_idle_from_ms(kFrom[row].count());
  out.set_idle_below_ms(row + 1 < kFrom.size() ? kFrom[row + 1].count() : 0);
  out.set_pages(scaled(cell.pages));
  out.set_tokens(scaled(cell.tokens));
  out.set_values(scaled(cell.values));
  out.set_raw_bytes(scaled(cell.raw_bytes));
  out.set_encoded_bytes(scaled(cell.encoded_bytes));
  out.set_levels(static_cast<double>(cell.levels) / static_cast<double>(cell.pages));
}

}  // namespace

void TellAges(std::span<const PageSample> sample, uint64_t pages, const Spaces& spaces,
              v1::AgesResponse& out) {
  Cells cells;
  for (const PageSample& page : sample) {
    if (const auto space = spaces.Find(page.space)) Add(page, space->spec, cells);
  }
  // Some of the sampled pages may have gone since.
  const double scale = sample.empty() ? 1 : std::max(1.0, double(pages) / double(sample.size()));
  out.set_pages(pages);
  out.set_sampled_pages(sample.size());
  for (size_t tier = 0; tier < cells.size(); ++tier) {
    for (size_t row = 0; row < kFrom.size(); ++row) {
      const Cell& cell = cells[tier][row];
      if (cell.pages > 0) ToProto(cell, tier, row, scale, *out.add_rows());
    }
  }
}

}  // namespace kvstow
