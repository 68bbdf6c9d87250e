#include "kernels/entropy/byte_classes.h"

#include <algorithm>
#include <bit>
#include <memory>

namespace kvstow {
namespace {

constexpr int kRounds = 4;  // of k-means; more gain less than a thousandth
constexpr size_t kFewRows = 256;

// The bytes that came in each column. Column c has the entries from ends[c - 1] to ends[c].
struct Histograms {
  std::vector<ByteCount> entries;
  std::vector<size_t> ends;
  size_t columns() const { return ends.size(); }
  std::span<const ByteCount> Of(size_t column) const {
    const size_t begin = column == 0 ? 0 : ends[column - 1];
    return std::span(entries).subspan(begin, ends[column] - begin);
  }
};

// Counts a block column by column, where the counters of one fit into the first-level cache. Rows
// take turns at two counters of a byte, as one would wait for itself.
void CountFewRows(const uint8_t* block, size_t width, size_t rows, Histograms& out) {
  std::array<std::array<uint16_t, 2>, 256> counts{};
  size_t used = out.entries.size();
  out.entries.resize(used + rows * width + 1);
  for (size_t c = 0; c < width; ++c) {
    const uint8_t* const column = block + c;
    for (size_t row = 0; row < rows; ++row) ++counts[column[row * width]][row % 2];
    for (size_t row = 0; row < rows; ++row) {
      const uint8_t byte = column[row * width];
      const auto count = static_cast<uint16_t>(counts[byte][0] + counts[byte][1]);
      out.entries[used] = {byte, count};
      used += count > 0;  // no branch, as it is a coin toss
      counts[byte] = {};
    }
    out.ends.push_back(used);
  }
  out.entries.resize(used);
}

// Counts a block row by row: a column of many rows lies in too many cache lines.
void CountManyRows(const uint8_t* block, size_t width, size_t rows, Histograms& out) {
  std::vector<uint16_t> counts(width * 256);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t c = 0; c < width; ++c) ++counts[c * 256 + *block++];
  }
  for (size_t c = 0; c < width; ++c) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint16_t count = counts[c * 256 + byte];
      if (count > 0) out.entries.push_back({static_cast<uint8_t>(byte), count});
    }
    out.ends.push_back(out.entries.size());
  }
}

Histograms Count(std::span<const uint8_t> bytes, std::span<const size_t> widths, size_t rows) {
  Histograms out;
  if (rows <= kFewRows) out.entries.reserve(bytes.size() + 1);
  const uint8_t* next = bytes.data();
  for (const size_t width : widths) {
    (rows <= kFewRows ? CountFewRows : CountManyRows)(next, width, rows, out);
    next += rows * width;
  }
  return out;
}

// Columns in the order of their mean byte, cut into `most` classes of equal size.
std::vector<uint8_t> FirstClasses(const Histograms& histograms, size_t most) {
  std::vector<uint64_t> order;  // the sum of a column's bytes, and below it the column
  for (size_t c = 0; c < histograms.columns(); ++c) {
    uint64_t sum = 0;
    for (const ByteCount& e : histograms.Of(c)) sum += uint64_t{e.byte} * e.count;
    order.push_back(sum << 32 | c);
  }
  std::sort(order.begin(), order.end());
  std::vector<uint8_t> classes(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    classes[static_cast<uint32_t>(order[i])] = static_cast<uint8_t>(i * most / order.size());
  return classes;
}

std::vector<ByteCounts> CountsOf(const Histograms& histograms, std::span<const uint8_t> classes,
                                 size_t most) {
  std::vector<ByteCounts> counts(most);
  for (size_t c = 0; c < histograms.columns(); ++c) {
    for (const ByteCount& e : histograms.Of(c)) counts[classes[c]][e.byte] += e.count;
  }
  return counts;
}

// In 1/256 bit. Counts are smoothed, so that a class can take what it has not seen.
void CostsOf(std::span<const ByteCounts> counts, ByteCosts& costs) {
  for (size_t k = 0; k < kMaxByteClasses; ++k) {
    uint64_t total = 0;
    for (size_t byte = 0; k < counts.size() && byte < 256; ++byte) total += counts[k][byte];
    // 64 times the counts, scaled into 32 bits.
    const uint32_t shift =
        static_cast<uint32_t>(std::max(static_cast<int>(std::bit_width(total)) - 24, 0));
    const uint32_t whole = Log2Fixed(static_cast<uint32_t>((total * 64 >> shift) + 256));
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint64_t count = k < counts.size() ? counts[k][byte] : 0;
      const uint32_t seen =
          count == 0 ? 0 : Log2Fixed(static_cast<uint32_t>((count * 64 >> shift) + 1));
      costs[byte][k] = whole - seen;
    }
  }
}

// Moves each column to the class where it costs least, and its bytes among `counts`.
// Returns whether any column moved.
bool Assign(const Histograms& histograms, const ByteCosts& costs, std::span<uint8_t> classes,
            std::span<ByteCounts> counts) {
  const ByteClassLoops& loops = ByteClassLoops::Best();
  bool moved = false;
  for (size_t c = 0; c < histograms.columns(); ++c) {
    const std::span<const ByteCount> entries = histograms.Of(c);
    const uint8_t best = loops.cheapest(entries, costs, counts.size());
    if (best == classes[c]) continue;
    for (const ByteCount& e : entries) {
      counts[classes[c]][e.byte] -= e.count;
      counts[best][e.byte] += e.count;
    }
    classes[c] = best;
    moved = true;
  }
  return moved;
}

uint8_t Cheapest(std::span<const ByteCount> entries, const ByteCosts& costs, size_t most) {
  std::array<uint32_t, kMaxByteClasses> sums{};
  for (const ByteCount& e : entries) {
    for (size_t k = 0; k < kMaxByteClasses; ++k) sums[k] += e.count * costs[e.byte][k];
  }
  return static_cast<uint8_t>(std::min_element(sums.begin(), sums.begin() + most) - sums.begin());
}

// A table for `counts`, and what they cost by it.
void AddTable(const ByteCounts& counts, ByteClasses& out) {
  const ByteFrequencies& table = out.tables.emplace_back(NormalizeCounts(counts));
  uint64_t cost = 0;
  for (size_t byte = 0; byte < 256; ++byte) {
    if (table[byte] > 0)
      cost += uint64_t{counts[byte]} * (256 * kByteRansBits - Log2Fixed(table[byte]));
  }
  out.bits += (cost + 255) / 256;
}

}  // namespace

const ByteClassLoops& ByteClassLoops::Reference() {
  static constexpr ByteClassLoops kLoops{Cheapest};
  return kLoops;
}

uint32_t Log2Fixed(uint32_t x) {
  const auto whole = static_cast<uint32_t>(std::bit_width(x)) - 1;
  uint64_t fraction = uint64_t{x} << (31 - whole);  // 2^31 and above, below 2^32
  uint32_t log = whole;
  for (int bit = 0; bit < 8; ++bit) {
    fraction = fraction * fraction >> 31;
    const uint64_t doubled = fraction >> 32;
    log = log << 1 | static_cast<uint32_t>(doubled);
    fraction >>= doubled;
  }
  return log;
}

ByteClasses OneClass(std::span<const uint8_t> bytes, size_t columns) {
  ByteCounts counts{};
  for (const uint8_t byte : bytes) ++counts[byte];
  ByteClasses out;
  out.of.assign(columns, 0);
  AddTable(counts, out);
  return out;
}

ByteClasses ClassifyColumns(std::span<const uint8_t> bytes, std::span<const size_t> widths,
                            size_t rows, size_t most) {
  const Histograms histograms = Count(bytes, widths, rows);
  most = std::min(most, histograms.columns());
  ByteClasses out;
  out.of = FirstClasses(histograms, most);
  std::vector<ByteCounts> counts = CountsOf(histograms, out.of, most);
  const auto costs = std::make_unique<ByteCosts>();
  bool moved = most > 1;
  for (int round = 0; moved && round < kRounds; ++round) {
    CostsOf(counts, *costs);
    moved = Assign(histograms, *costs, out.of, counts);
  }
  std::vector<uint8_t> place(most);  // of each class among those that have columns
  for (size_t k = 0; k < most; ++k) {
    place[k] = static_cast<uint8_t>(out.tables.size());
    if (std::count(out.of.begin(), out.of.end(), k) > 0) AddTable(counts[k], out);
  }
  for (uint8_t& k : out.of) k = place[k];
  return out;
}

}  // namespace kvstow
