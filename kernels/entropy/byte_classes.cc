#include "kernels/entropy/byte_classes.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <numeric>

namespace kvstow {
namespace {

constexpr int kRounds = 4;  // of k-means; more gain less than a thousandth

constexpr size_t kFewRows = 64;

struct ByteCount {
  uint8_t byte;
  uint16_t count;
};

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

// Entries of a column of few rows are its bytes, not yet counted.
Histograms Take(std::span<const uint8_t> bytes, std::span<const size_t> widths, size_t rows) {
  Histograms out;
  const uint8_t* next = bytes.data();
  for (const size_t width : widths) {
    for (size_t c = 0; c < width; ++c) {
      for (size_t row = 0; row < rows; ++row) out.entries.push_back({next[row * width + c], 1});
      out.ends.push_back(out.entries.size());
    }
    next += rows * width;
  }
  return out;
}

Histograms Count(std::span<const uint8_t> bytes, std::span<const size_t> widths, size_t rows) {
  if (rows <= kFewRows) return Take(bytes, widths, rows);
  Histograms out;
  std::vector<uint16_t> counts;
  const uint8_t* next = bytes.data();
  for (const size_t width : widths) {
    counts.assign(width * 256, 0);
    for (size_t row = 0; row < rows; ++row) {
      for (size_t c = 0; c < width; ++c) ++counts[c * 256 + *next++];
    }
    for (size_t c = 0; c < width; ++c) {
      for (size_t byte = 0; byte < 256; ++byte) {
        const uint16_t count = counts[c * 256 + byte];
        if (count > 0) out.entries.push_back({static_cast<uint8_t>(byte), count});
      }
      out.ends.push_back(out.entries.size());
    }
  }
  return out;
}

// Columns in the order of their mean byte, cut into `most` classes of equal size.
std::vector<uint8_t> FirstClasses(const Histograms& histograms, size_t most) {
  std::vector<uint64_t> sums;
  for (size_t c = 0; c < histograms.columns(); ++c) {
    uint64_t sum = 0;
    for (const ByteCount& e : histograms.Of(c)) sum += uint64_t{e.byte} * e.count;
    sums.push_back(sum);
  }
  std::vector<uint32_t> order(sums.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return sums[a] < sums[b]; });
  std::vector<uint8_t> classes(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    classes[order[i]] = static_cast<uint8_t>(i * most / order.size());
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

// [byte][class], so that all classes of a byte are next to each other.
using Costs = std::array<std::array<uint32_t, kMaxByteClasses>, 256>;

// In 1/256 bit. Counts are smoothed, so that a class can take what it has not seen.
void CostsOf(std::span<const ByteCounts> counts, Costs& costs) {
  for (size_t k = 0; k < kMaxByteClasses; ++k) {
    uint64_t total = 0;
    for (size_t byte = 0; k < counts.size() && byte < 256; ++byte) total += counts[k][byte];
    // 64 times the counts, scaled into 32 bits.
    const uint32_t shift =
        static_cast<uint32_t>(std::max(static_cast<int>(std::bit_width(total)) - 24, 0));
    const uint32_t whole = Log2Fixed(static_cast<uint32_t>((total * 64 >> shift) + 256));
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint64_t count = k < counts.size() ? counts[k][byte] : 0;
      costs[byte][k] = whole - Log2Fixed(static_cast<uint32_t>((count * 64 >> shift) + 1));
    }
  }
}

void Assign(const Histograms& histograms, const Costs& costs, size_t most,
            std::span<uint8_t> classes) {
  for (size_t c = 0; c < histograms.columns(); ++c) {
    std::array<uint32_t, kMaxByteClasses> sums{};
    for (const ByteCount& e : histograms.Of(c)) {
      for (size_t k = 0; k < kMaxByteClasses; ++k) sums[k] += e.count * costs[e.byte][k];
    }
    classes[c] =
        static_cast<uint8_t>(std::min_element(sums.begin(), sums.begin() + most) - sums.begin());
  }
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
  const auto costs = std::make_unique<Costs>();
  for (int round = 0; most > 1 && round < kRounds; ++round) {
    CostsOf(CountsOf(histograms, out.of, most), *costs);
    Assign(histograms, *costs, most, out.of);
  }
  const std::vector<ByteCounts> counts = CountsOf(histograms, out.of, most);
  std::vector<uint8_t> place(most);  // of each class among those that have columns
  for (size_t k = 0; k < most; ++k) {
    place[k] = static_cast<uint8_t>(out.tables.size());
    if (std::count(out.of.begin(), out.of.end(), k) > 0) AddTable(counts[k], out);
  }
  for (uint8_t& k : out.of) k = place[k];
  return out;
}

}  // namespace kvstow
