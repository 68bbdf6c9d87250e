#include "kernels/entropy/plane_coder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

// Beside the bits of lengths: tokens come by class. Earlier versions wrote tokens with classes as
// they follow each other.
constexpr uint8_t kByClass = 0x80;

}  // namespace

// Lengths of streams, in words: the least, how many bits the others need above it, and those bits.
// The least takes 4 bytes and the bits 1.

std::string StreamLengths(std::span<const uint32_t> lengths, bool classed) {
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  const uint32_t bits = static_cast<uint32_t>(std::bit_width(*most - *least));
  ByteWriter header;
  header.Put(*least);
  header.Put(static_cast<uint8_t>(bits | (classed ? kByClass : 0u)));
  std::string out(header.bytes());
  uint64_t pending = 0;
  uint32_t held = 0;
  for (const uint32_t length : lengths) {
    pending |= uint64_t{length - *least} << held;
    for (held += bits; held >= 8; held -= 8, pending >>= 8)
      out.push_back(static_cast<char>(pending));
  }
  if (held > 0) out.push_back(static_cast<char>(pending));
  return out;
}

absl::StatusOr<std::vector<std::span<const uint8_t>>> SplitStreams(std::span<const uint8_t> body,
                                                                   size_t streams, bool classed) {
  ByteReader reader(body);
  const uint32_t least = reader.Get<uint32_t>();
  const uint8_t bits_and_order = reader.Get<uint8_t>();
  const uint32_t bits = bits_and_order & ~kByClass;
  const bool by_class = (bits_and_order & kByClass) != 0;
  if (reader.ok() && by_class && !classed)
    return absl::DataLossError("plane body: its tokens come by class, and they have none");
  if (reader.ok() && classed && !by_class) {
    return absl::FailedPreconditionError(
        "plane body: its tokens do not come by class; an earlier version wrote it");
  }
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

TokenRange WholeStreams(TokenRange wanted, uint32_t tokens, uint32_t tokens_per_stream) {
  const uint32_t first = wanted.first / tokens_per_stream * tokens_per_stream;
  const uint64_t past = uint64_t{wanted.first} + wanted.count + tokens_per_stream - 1;
  const uint64_t end = std::min<uint64_t>(past / tokens_per_stream * tokens_per_stream, tokens);
  return {first, static_cast<uint32_t>(end - first)};
}

PlaneCoder::PlaneCoder(PlaneLayout layout, const PlaneTables& tables, const PlaneLookups& lookups)
    : layout_(std::move(layout)), tables_(tables), lookups_(lookups) {}

PlaneStream PlaneCoder::StreamOf(uint32_t tokens, size_t stride, const int8_t* shifts) const {
  return {.rows = layout_.rows,
          .tables = &tables_,
          .lookups = &lookups_,
          .levels = layout_.levels,
          .tokens = tokens,
          .stride = stride,
          .shifts = layout_.classed ? shifts : nullptr,
          .tilts = layout_.tilts};
}

// Energy classes stand before the coefficients, token after token as in the page.

void PlaneCoder::PutEnergies(std::span<const uint8_t> energies, uint32_t tokens,
                             RansEncoder& rans) const {
  for (uint32_t t = tokens; t-- > 0;) {
    uint32_t start = 0;
    for (uint8_t k = 0; k < energies[t]; ++k) start += tables_.energy[k];
    rans.Put(t % kRansLanes, start, tables_.energy[energies[t]]);
  }
}

void PlaneCoder::GetEnergies(RansDecoder& rans, uint32_t tokens, uint8_t* energies) const {
  for (uint32_t t = 0; t < tokens; ++t) {
    const uint32_t slot = rans.Peek(t % kRansLanes);
    uint32_t start = 0;
    uint8_t energy = 0;
    while (slot >= start + tables_.energy[energy]) start += tables_.energy[energy++];
    rans.Take(t % kRansLanes, start, tables_.energy[energy]);
    energies[t] = energy;
  }
}

std::vector<std::string> PlaneCoder::Encode(std::span<const int32_t> q,
                                            std::span<const uint8_t> energies,
                                            uint32_t tokens) const {
  const size_t stride = PlaneStride(tokens);
  const std::vector<int8_t> shifts = OrderByClass(energies, layout_.tokens_per_stream).shifts;
  std::vector<std::vector<uint16_t>> words(layout_.levels);
  std::vector<std::vector<uint32_t>> lengths(layout_.levels);
  // Two streams at a time.
  const uint32_t each = layout_.tokens_per_stream;
  std::array<std::vector<RansEncoder>, 2> encoders;
  for (auto& of_levels : encoders) of_levels.resize(layout_.levels);
  for (uint32_t first = 0; first < tokens;) {
    const bool pair = tokens - first >= 2 * each;
    const uint32_t count = std::min(each, tokens - first);
    const auto part = [&](size_t w) {
      const size_t at = first + w * each;
      return PlaneEncoding{StreamOf(count, stride, shifts.data() + at / kRansLanes), q.data() + at,
                           encoders[w]};
    };
    std::optional<PlaneEncoding> other;
    if (pair) other = part(1);
    PlaneEncodeLoops::Best().encode(part(0), pair ? &*other : nullptr);
    for (size_t w = 0; w < (pair ? 2 : 1); ++w, first += count) {
      if (layout_.classed) PutEnergies(energies.subspan(first), count, encoders[w][0]);
      for (uint32_t level = 0; level < layout_.levels; ++level) {
        const size_t before = words[level].size();
        encoders[w][level].Finish(words[level]);
        lengths[level].push_back(static_cast<uint32_t>(words[level].size() - before));
      }
    }
  }
  std::vector<std::string> out(layout_.levels);
  for (uint32_t level = 0; level < layout_.levels; ++level) {
    out[level] = StreamLengths(lengths[level], layout_.classed);
    out[level].append(reinterpret_cast<const char*>(words[level].data()), 2 * words[level].size());
  }
  return out;
}

absl::Status PlaneCoder::Decode(std::span<const std::span<const uint8_t>> bodies, uint32_t tokens,
                                TokenRange wanted, std::span<int32_t> q,
                                std::span<uint8_t> energies) const {
  const uint32_t each = layout_.tokens_per_stream;
  const size_t stride = PlaneStride(wanted.count);
  std::vector<std::vector<std::span<const uint8_t>>> streams(bodies.size());
  for (size_t level = 0; level < bodies.size(); ++level) {
    KVSTOW_ASSIGN_OR_RETURN(
        streams[level],
        SplitStreams(bodies[level], (size_t{tokens} + each - 1) / each, layout_.classed));
  }
  // Two streams at a time.
  std::array<std::vector<RansDecoder>, 2> decoders;
  std::array<std::vector<int8_t>, 2> shifts;
  for (uint32_t first = 0; first < wanted.count;) {
    const bool pair = wanted.count - first >= 2 * each;
    const uint32_t count = std::min(each, wanted.count - first);
    const uint32_t stream = (wanted.first + first) / each;
    const auto begin = [&](size_t w) {
      const size_t at = first + w * each;
      decoders[w].clear();
      for (const auto& level : streams) decoders[w].emplace_back(level[stream + w]);
      if (layout_.classed) {
        const std::span<uint8_t> classes = energies.subspan(at, count);
        GetEnergies(decoders[w][0], count, classes.data());
        shifts[w] = OrderByClass(classes, each).shifts;
      }
      return PlaneDecoding{StreamOf(count, stride, shifts[w].data()), decoders[w], q.data() + at};
    };
    std::optional<PlaneDecoding> other;
    if (pair) other = begin(1);
    if (!PlaneDecodeLoops::Best().decode(begin(0), pair ? &*other : nullptr))
      return absl::DataLossError(absl::StrCat("plane body: stream ", stream,
                                              pair ? " or the next" : "", " has a bad escape"));
    for (size_t w = 0; w < (pair ? 2 : 1); ++w, first += count) {
      if (!std::ranges::all_of(decoders[w], &RansDecoder::AtEnd))
        return absl::DataLossError(
            absl::StrCat("plane body: stream ", stream + w, " does not end well"));
    }
  }
  return absl::OkStatus();
}

void PlaneCoder::Dequantize(std::span<const int32_t> q, std::span<const int8_t> shifts,
                            uint32_t tokens, uint32_t level, std::span<const float> steps,
                            std::span<float> coefficients) const {
  DequantizeRows(q, shifts, tokens, level, steps, 0, width(), coefficients);
}

void PlaneCoder::DequantizeRows(std::span<const int32_t> q, std::span<const int8_t> shifts,
                                uint32_t tokens, uint32_t level, std::span<const float> steps,
                                size_t first, size_t count, std::span<float> coefficients) const {
  PlaneStream stream = StreamOf(tokens, PlaneStride(tokens), shifts.data());
  stream.rows = stream.rows.subspan(first, count);
  PlaneDecodeLoops::Best().dequantize(stream, q.data(), level, steps, coefficients.data());
}

}  // namespace kvstow
