#include "kernels/entropy/plane_coder.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "kernels/entropy/rans.h"

namespace kvstow {
namespace {

constexpr uint32_t kEscapeWidthBits = 5;  // how many bits of the escaped value follow its width

// The row of tables for `row` in 0..kPlaneMaxRow, and how many low bits of a magnitude stay raw.
struct BaseRow {
  int row;
  uint32_t raw_bits;
};
BaseRow SplitRow(int row) {
  if (row < kPlaneRows) return {row, 0};
  const int octaves = (row - kPlaneRows + 4) / 4;
  return {row - 4 * octaves, static_cast<uint32_t>(octaves)};
}

int TableRow(int row) { return std::min(row, kPlaneRows - 1); }

int EnergyShift(uint8_t energy) { return 2 * (static_cast<int>(energy) - kPlaneEnergies / 2); }

template <size_t n>
uint32_t Start(const std::array<uint16_t, n>& frequencies, uint32_t symbol) {
  uint32_t start = 0;
  for (uint32_t k = 0; k < symbol; ++k) start += frequencies[k];
  return start;
}

template <size_t n>
uint32_t Find(const std::array<uint16_t, n>& frequencies, uint32_t slot, uint32_t* start) {
  uint32_t symbol = 0;
  *start = 0;
  while (slot >= *start + frequencies[symbol]) *start += frequencies[symbol++];
  return symbol;
}

// Encoders put the parts of a coefficient in the reverse of the order in which decoders get them.

void PutEscape(RansEncoder& rans, uint32_t excess) {
  const uint32_t width = static_cast<uint32_t>(std::bit_width(excess));
  if (width > 1) rans.PutBits(excess & ((1u << (width - 1)) - 1), width - 1);
  rans.PutBits(width, kEscapeWidthBits);
}

// False for a width that no encoder writes.
bool GetEscape(RansDecoder& rans, uint32_t* excess) {
  const uint32_t width = rans.GetBits(kEscapeWidthBits);
  if (width > 24) return false;
  *excess = width < 2 ? width : (1u << (width - 1) | rans.GetBits(width - 1));
  return true;
}

// `row` is that of the coarser step.
void PutRefinement(RansEncoder& rans, const LevelTables& tables, int row, int32_t q) {
  const uint32_t magnitude = static_cast<uint32_t>(std::abs(q)), coarse = magnitude >> 1;
  const uint32_t context = std::min<uint32_t>(coarse, kPlaneContexts - 1);
  const uint32_t zero = tables.zero[TableRow(row)][context], one = kRansTotal - zero;
  if ((magnitude & 1) == 0) {
    rans.Put(0, zero);
  } else if (coarse > 0) {
    rans.Put(zero, one);
  } else {
    rans.Put(zero + (q < 0 ? one / 2 : 0), one / 2);
  }
}

int32_t GetRefinement(RansDecoder& rans, const LevelTables& tables, int row, int32_t coarse) {
  const uint32_t magnitude = static_cast<uint32_t>(std::abs(coarse));
  const uint32_t context = std::min<uint32_t>(magnitude, kPlaneContexts - 1);
  const uint32_t zero = tables.zero[TableRow(row)][context], one = kRansTotal - zero;
  const uint32_t slot = rans.Peek();
  if (slot < zero) {
    rans.Take(0, zero);
    return 2 * coarse;
  }
  if (coarse != 0) {
    rans.Take(zero, one);
    return coarse < 0 ? 2 * coarse - 1 : 2 * coarse + 1;
  }
  const bool negative = slot >= zero + one / 2;
  rans.Take(negative ? zero + one / 2 : zero, one / 2);
  return negative ? -1 : 1;
}

// Lengths of streams, in words: the least, how many bits the others need above it, and those bits.
// The least takes 4 bytes and the bits 1.

void PutLengths(std::span<const uint32_t> lengths, std::string& out) {
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  const uint32_t bits = static_cast<uint32_t>(std::bit_width(*most - *least));
  ByteWriter header;
  header.Put(*least);
  header.Put(static_cast<uint8_t>(bits));
  out += header.bytes();
  uint64_t pending = 0;
  uint32_t held = 0;
  for (const uint32_t length : lengths) {
    pending |= uint64_t{length - *least} << held;
    for (held += bits; held >= 8; held -= 8, pending >>= 8)
      out.push_back(static_cast<char>(pending));
  }
  if (held > 0) out.push_back(static_cast<char>(pending));
}

absl::StatusOr<std::vector<std::span<const uint8_t>>> SplitStreams(std::span<const uint8_t> body,
                                                                   size_t streams) {
  ByteReader reader(body);
  const uint32_t least = reader.Get<uint32_t>();
  const uint32_t bits = reader.Get<uint8_t>();
  if (!reader.ok() || bits > 32) return absl::DataLossError("plane body: bad lengths of streams");
  const std::span<const uint8_t> packed = reader.GetBytes((streams * bits + 7) / 8);
  if (!reader.ok()) return absl::DataLossError("plane body: cut within the lengths of its streams");
  std::vector<std::span<const uint8_t>> out(streams);
  uint64_t pending = 0;
  uint32_t held = 0;
  size_t next = 0;
  for (auto& stream : out) {
    for (; held < bits; held += 8) pending |= uint64_t{packed[next++]} << held;
    const uint64_t words = least + (pending & ((uint64_t{1} << bits) - 1));
    pending >>= bits;
    held -= bits;
    stream = reader.GetBytes(2 * words);
    if (!reader.ok()) return absl::DataLossError("plane body: shorter than its streams");
  }
  if (reader.remaining() > 0) return absl::DataLossError("plane body: longer than its streams");
  return out;
}

}  // namespace

TokenRange WholeStreams(TokenRange wanted, uint32_t tokens, uint32_t tokens_per_stream) {
  const uint32_t first = wanted.first / tokens_per_stream * tokens_per_stream;
  const uint64_t past = uint64_t{wanted.first} + wanted.count + tokens_per_stream - 1;
  const uint64_t end = std::min<uint64_t>(past / tokens_per_stream * tokens_per_stream, tokens);
  return {first, static_cast<uint32_t>(end - first)};
}

PlaneCoder::PlaneCoder(PlaneLayout layout, const PlaneTables& tables)
    : layout_(std::move(layout)), tables_(tables) {
  for (int row = 0; row < kPlaneRows; ++row) {
    const auto& frequencies = TablesOf(0).base[row];
    BaseStarts& starts = starts_[row];
    for (uint32_t k = 1; k < kPlaneSymbols; ++k) {
      starts.start[k] = static_cast<uint16_t>(starts.start[k - 1] + frequencies[k - 1]);
      if (frequencies[k] > 0) starts.escape = k;
    }
  }
}

void PlaneCoder::PutBase(RansEncoder& rans, int row, int32_t q) const {
  const auto [table, raw_bits] = SplitRow(row);
  const auto& frequencies = TablesOf(0).base[table];
  const BaseStarts& starts = starts_[table];
  const uint32_t magnitude = static_cast<uint32_t>(std::abs(q)), high = magnitude >> raw_bits;
  const bool negative = q < 0;
  if (raw_bits > 0) {
    if (high == 0 && magnitude > 0) rans.PutBits(negative, 1);
    rans.PutBits(magnitude & ((1u << raw_bits) - 1), raw_bits);
  }
  const uint32_t symbol = std::min(high, starts.escape);
  if (symbol == starts.escape) PutEscape(rans, high - symbol);
  const uint32_t start = starts.start[symbol], frequency = frequencies[symbol];
  if (symbol == 0) {
    rans.Put(start, frequency);
  } else {
    rans.Put(start + (negative ? frequency / 2 : 0), frequency / 2);
  }
}

bool PlaneCoder::GetBase(RansDecoder& rans, int row, int32_t* q) const {
  const auto [table, raw_bits] = SplitRow(row);
  const auto& frequencies = TablesOf(0).base[table];
  const BaseStarts& starts = starts_[table];
  const uint32_t slot = rans.Peek();
  uint32_t high = 0;
  while (high < starts.escape && slot >= starts.start[high + 1]) ++high;
  const uint32_t start = starts.start[high];
  bool negative = false;
  if (high == 0) {
    rans.Take(start, frequencies[0]);
  } else {
    const uint32_t half = frequencies[high] / 2u;
    negative = slot >= start + half;
    rans.Take(negative ? start + half : start, half);
  }
  if (high == starts.escape) {
    uint32_t excess;
    if (!GetEscape(rans, &excess)) return false;
    high += excess;
  }
  uint64_t magnitude = high;
  if (raw_bits > 0) {
    magnitude = uint64_t{high} << raw_bits | rans.GetBits(raw_bits);
    if (high == 0 && magnitude > 0) negative = rans.GetBits(1) != 0;
  }
  if (magnitude >= kPlaneMaxMagnitude) return false;
  *q = negative ? -static_cast<int32_t>(magnitude) : static_cast<int32_t>(magnitude);
  return true;
}

void PlaneCoder::EncodeToken(const int32_t* q, const uint8_t* energies, uint32_t level,
                             RansEncoder& rans) const {
  size_t i = width();
  const size_t count = std::max<size_t>(blocks(), 1);
  for (size_t b = count; b-- > 0;) {
    const size_t begin = b == 0 ? 0 : layout_.block_ends[b - 1];
    const int shift = blocks() == 0 ? 0 : EnergyShift(energies[b]);
    while (i-- > begin) {
      const int32_t value = CoarserLevel(q[i], Above(level));
      if (level == 0) {
        PutBase(rans, Row(i, shift, 0), value);
      } else {
        PutRefinement(rans, TablesOf(level), Row(i, shift, level - 1), value);
      }
    }
    i = begin;
    if (level == 0 && blocks() > 0)
      rans.Put(Start(tables_.energy, energies[b]), tables_.energy[energies[b]]);
  }
}

bool PlaneCoder::DecodeToken(RansDecoder& rans, uint32_t level, int32_t* q,
                             uint8_t* energies) const {
  size_t i = 0;
  const size_t count = std::max<size_t>(blocks(), 1);
  for (size_t b = 0; b < count; ++b) {
    const size_t end = blocks() == 0 ? width() : layout_.block_ends[b];
    if (level == 0 && blocks() > 0) {
      uint32_t start;
      energies[b] = static_cast<uint8_t>(Find(tables_.energy, rans.Peek(), &start));
      rans.Take(start, tables_.energy[energies[b]]);
    }
    const int shift = blocks() == 0 ? 0 : EnergyShift(energies[b]);
    for (; i < end; ++i) {
      if (level > 0) {
        q[i] = GetRefinement(rans, TablesOf(level), Row(i, shift, level - 1), q[i]);
      } else if (!GetBase(rans, Row(i, shift, 0), &q[i])) {
        return false;
      }
    }
  }
  return true;
}

std::string PlaneCoder::EncodeLevel(std::span<const int32_t> q, std::span<const uint8_t> energies,
                                    uint32_t level) const {
  const size_t tokens = q.size() / width();
  std::vector<uint16_t> words;
  std::vector<uint32_t> lengths;
  RansEncoder rans;
  for (size_t first = 0; first < tokens; first += layout_.tokens_per_stream) {
    for (size_t t = std::min<size_t>(first + layout_.tokens_per_stream, tokens); t-- > first;)
      EncodeToken(&q[t * width()], energies.data() + t * blocks(), level, rans);
    const size_t before = words.size();
    rans.Finish(words);
    lengths.push_back(static_cast<uint32_t>(words.size() - before));
  }
  std::string out;
  PutLengths(lengths, out);
  out.append(reinterpret_cast<const char*>(words.data()), 2 * words.size());
  return out;
}

absl::Status PlaneCoder::DecodeLevel(std::span<const uint8_t> body, uint32_t level, uint32_t tokens,
                                     TokenRange wanted, std::span<int32_t> q,
                                     std::span<uint8_t> energies) const {
  const uint32_t each = layout_.tokens_per_stream;
  KVSTOW_ASSIGN_OR_RETURN(const auto streams,
                          SplitStreams(body, (size_t{tokens} + each - 1) / each));
  for (uint32_t t = 0; t < wanted.count;) {
    const uint32_t stream = (wanted.first + t) / each;
    RansDecoder rans(streams[stream]);
    for (const uint32_t end = std::min(t + each, wanted.count); t < end; ++t) {
      if (!DecodeToken(rans, level, &q[t * width()], energies.data() + t * blocks()))
        return absl::DataLossError(
            absl::StrCat("plane body: stream ", stream, " has a bad escape"));
    }
    if (!rans.AtEnd())
      return absl::DataLossError(absl::StrCat("plane body: stream ", stream, " does not end well"));
  }
  return absl::OkStatus();
}

void PlaneCoder::Dequantize(std::span<const int32_t> q, std::span<const uint8_t> energies,
                            uint32_t level, std::span<const float> steps,
                            std::span<float> coefficients) const {
  const size_t tokens = q.size() / width(), count = std::max<size_t>(blocks(), 1);
  const LevelTables& tables = TablesOf(level);
  const bool one_step = steps.size() == 1;
  size_t k = 0;
  for (size_t t = 0; t < tokens; ++t) {
    size_t i = 0;
    for (size_t b = 0; b < count; ++b) {
      const size_t end = blocks() == 0 ? width() : layout_.block_ends[b];
      const int shift = blocks() == 0 ? 0 : EnergyShift(energies[t * blocks() + b]);
      for (; i < end; ++i, ++k) {
        const auto& centre = tables.centre[TableRow(Row(i, shift, level))];
        const uint32_t magnitude = static_cast<uint32_t>(std::abs(q[k]));
        const float step = one_step ? steps[0] : steps[i];
        const uint32_t within = centre[std::min<uint32_t>(magnitude, kPlaneSymbols - 1)];
        const float value =
            (static_cast<float>(magnitude) - 0.5f + static_cast<float>(within) / 256) * step;
        coefficients[k] = magnitude == 0 ? 0 : q[k] < 0 ? -value : value;
      }
    }
  }
}

}  // namespace kvstow
