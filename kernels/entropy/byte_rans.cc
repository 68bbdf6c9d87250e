#include "kernels/entropy/byte_rans.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvstow {
namespace {

constexpr size_t kStatesBytes = kByteRansLanes * sizeof(uint32_t);
constexpr size_t kStepBytes = kByteRansLanes * sizeof(uint16_t);  // what a step reads at most

// How the encoder takes one byte: division by the frequency as a multiplication. With
// k = bit_width(frequency - 1) and multiplier = ceil(2^(32 + k) / frequency) - 2^32,
// (x + (x multiplier >> 32)) >> k is x / frequency for every x of 32 bits (Granlund and Montgomery,
// "Division by invariant integers using multiplication", theorem 4.2).
struct Step {
  uint32_t frequency, start, multiplier, shift;
};

std::vector<Step> StepsOf(std::span<const ByteFrequencies> tables) {
  std::vector<Step> steps;
  steps.reserve(tables.size() * 256);
  for (const ByteFrequencies& table : tables) {
    uint32_t start = 0;
    for (const uint32_t frequency : table) {
      Step step{frequency, start, 0, 0};
      if (frequency > 0) {
        step.shift = static_cast<uint32_t>(std::bit_width(frequency - 1));
        const uint64_t power = uint64_t{1} << (32 + step.shift);
        step.multiplier = static_cast<uint32_t>((power + frequency - 1) / frequency);
      }
      steps.push_back(step);
      start += frequency;
    }
  }
  return steps;
}

// Where the words of a stream grow: backwards from the end of a buffer that holds the worst case.
class Words {
 public:
  explicit Words(size_t most) : buffer_(most), next_(buffer_.data() + most) {}
  // Keeps the low word of `state` when `take`; no branch, as it is a coin toss.
  void Put(uint32_t state, bool take) {
    next_[-1] = static_cast<uint16_t>(state);
    next_ -= take;
  }
  std::span<const uint16_t> words() const {
    return {next_, static_cast<size_t>(buffer_.data() + buffer_.size() - next_)};
  }

 private:
  std::vector<uint16_t> buffer_;
  uint16_t* next_;
};

void EncodeBlock(std::span<const Step> steps, const ByteRansBlock& block, const uint8_t* bytes,
                 std::array<uint32_t, kByteRansLanes>& states, Words& words) {
  const size_t width = block.classes.size();
  size_t column = 0;  // past the one that is next
  for (size_t i = block.size(); i-- > 0;) {
    column = column == 0 ? width - 1 : column - 1;
    const Step& step = steps[block.classes[column] * 256u + bytes[i]];
    uint32_t& state = states[i % kByteRansLanes];
    uint32_t x = state;
    const bool take = (x >> (32 - kByteRansBits)) >= step.frequency;
    words.Put(x, take);
    x >>= take ? 16 : 0;
    const uint64_t high = uint64_t{x} * step.multiplier >> 32;
    const auto quotient = static_cast<uint32_t>((x + high) >> step.shift);
    state = x + step.start + quotient * (kByteRansTotal - step.frequency);
  }
}

// One step of 32 bytes, or fewer at the end of a block.
void DecodeStep(const uint32_t* slots, const uint32_t* columns, size_t count, ByteRansLanes& lanes,
                uint8_t* out) {
  for (size_t lane = 0; lane < count; ++lane) {
    uint32_t& x = lanes.state[lane];
    const uint32_t slot = slots[columns[lane] + (x & (kByteRansTotal - 1))];
    x = (slot >> 19) * (x >> kByteRansBits) + (slot >> 8 & (kByteRansTotal - 1));
    if (x < kByteRansLow) {
      x = x << 16 | static_cast<uint32_t>(lanes.next[0] | lanes.next[1] << 8);
      lanes.next += 2;
    }
    out[lane] = static_cast<uint8_t>(slot);
  }
}

size_t DecodeSteps(const uint32_t* slots, std::span<const uint32_t> columns, size_t count,
                   ByteRansLanes& lanes, uint8_t* out, size_t done) {
  const size_t width = columns.size() - kByteRansLanes;
  for (; done + kByteRansLanes <= count && lanes.next <= lanes.last; done += kByteRansLanes)
    DecodeStep(slots, columns.data() + done % width, kByteRansLanes, lanes, out + done);
  return done;
}

}  // namespace

const ByteRansLoops& ByteRansLoops::Reference() {
  static constexpr ByteRansLoops kLoops{DecodeSteps};
  return kLoops;
}

ByteFrequencies NormalizeCounts(const ByteCounts& counts) {
  uint64_t total = 0;
  for (const uint32_t count : counts) total += count;
  ByteFrequencies out{};
  uint32_t sum = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const uint64_t share = (counts[i] * uint64_t{kByteRansTotal} + total / 2) / total;
    out[i] = static_cast<uint16_t>(std::max<uint64_t>(share, 1));
    sum += out[i];
  }
  // Rounding leaves a remainder. The frequency that it changes least takes or gives it.
  for (; sum != kByteRansTotal; sum += sum < kByteRansTotal ? 1 : -1) {
    size_t best = 256;
    const bool add = sum < kByteRansTotal;
    for (size_t i = 0; i < out.size(); ++i) {
      if (out[i] == 0 || (!add && out[i] == 1)) continue;
      // Counts over frequency: the gain of one more, or the loss of one less.
      const auto better = [&](size_t a, size_t b) {
        const uint64_t x = uint64_t{counts[a]} * out[b], y = uint64_t{counts[b]} * out[a];
        return add ? x > y : x < y;
      };
      if (best == 256 || better(i, best)) best = i;
    }
    out[best] = static_cast<uint16_t>(add ? out[best] + 1 : out[best] - 1);
  }
  return out;
}

void WriteFrequencies(const ByteFrequencies& frequencies, std::string& out) {
  size_t first = 0, last = 255;
  while (frequencies[first] == 0) ++first;
  while (frequencies[last] == 0) --last;
  out.push_back(static_cast<char>(first));
  out.push_back(static_cast<char>(last));
  for (size_t i = first; i <= last; ++i) {
    const uint32_t frequency = frequencies[i];
    if (frequency >= 128) out.push_back(static_cast<char>(0x80 | (frequency & 0x7f)));
    out.push_back(static_cast<char>(frequency >= 128 ? frequency >> 7 : frequency));
  }
}

absl::StatusOr<ByteFrequencies> ReadFrequencies(ByteReader& reader) {
  ByteFrequencies out{};
  const size_t first = reader.Get<uint8_t>(), last = reader.Get<uint8_t>();
  uint32_t sum = 0;
  for (size_t i = first; i <= last && reader.ok(); ++i) {
    uint32_t frequency = reader.Get<uint8_t>();
    if (frequency >= 128) frequency = (frequency & 0x7f) | uint32_t{reader.Get<uint8_t>()} << 7;
    out[i] = static_cast<uint16_t>(std::min(frequency, kByteRansTotal + 1));
    sum += out[i];
  }
  if (!reader.ok()) return absl::DataLossError("byte table: cut");
  if (sum != kByteRansTotal) return absl::DataLossError("byte table: bad sum of frequencies");
  return out;
}

void ByteRansEncode(std::span<const ByteFrequencies> tables, std::span<const ByteRansBlock> blocks,
                    std::span<const uint8_t> bytes, std::string& out) {
  const std::vector<Step> steps = StepsOf(tables);
  std::array<uint32_t, kByteRansLanes> states;
  states.fill(kByteRansLow);
  Words words(bytes.size() + 1);  // at most one a byte, and one to scribble on
  const uint8_t* end = bytes.data() + bytes.size();
  for (size_t b = blocks.size(); b-- > 0;) {
    end -= blocks[b].size();
    EncodeBlock(steps, blocks[b], end, states, words);
  }
  out.append(reinterpret_cast<const char*>(states.data()), kStatesBytes);
  out.append(reinterpret_cast<const char*>(words.words().data()), 2 * words.words().size());
}

std::vector<uint32_t> ByteRansSlots(std::span<const ByteFrequencies> tables) {
  std::vector<uint32_t> slots;
  slots.reserve(tables.size() * kByteRansTotal);
  for (const ByteFrequencies& table : tables) {
    for (uint32_t byte = 0; byte < table.size(); ++byte) {
      for (uint32_t k = 0; k < table[byte]; ++k)
        slots.push_back(uint32_t{table[byte]} << 19 | k << 8 | byte);
    }
  }
  return slots;
}

std::vector<uint32_t> ByteRansColumns(std::span<const uint8_t> classes) {
  std::vector<uint32_t> columns(classes.size() + kByteRansLanes);
  for (size_t i = 0; i < columns.size(); ++i)
    columns[i] = uint32_t{classes[i % classes.size()]} << kByteRansBits;
  return columns;
}

ByteRansDecoder::ByteRansDecoder(std::span<const uint8_t> stream) {
  // A stream without states has no words: its end is not one that AtEnd takes.
  if (stream.size() < kStatesBytes) stream = {};
  if (!stream.empty()) std::memcpy(lanes_.state.data(), stream.data(), kStatesBytes);
  const std::span<const uint8_t> words = stream.subspan(stream.empty() ? 0 : kStatesBytes);
  lanes_.next = words.data();
  end_ = words.data() + words.size();
  if (words.size() >= kStepBytes) {
    lanes_.last = end_ - kStepBytes;
  } else {
    MoveToTail();
  }
}

bool ByteRansDecoder::MoveToTail() {
  const uint8_t* const begin = tail_.data();
  if (in_tail_) return false;
  in_tail_ = true;
  const auto left = static_cast<size_t>(end_ - lanes_.next);
  if (left > 0) std::memcpy(tail_.data(), lanes_.next, left);
  lanes_.next = begin;
  lanes_.last = end_ = begin + left;
  return true;
}

bool ByteRansDecoder::Decode(std::span<const uint32_t> slots, std::span<const uint32_t> columns,
                             size_t count, uint8_t* out, const ByteRansLoops& loops) {
  size_t done = 0;
  do {
    done = loops.decode(slots.data(), columns, count, lanes_, out, done);
  } while (lanes_.next > lanes_.last && MoveToTail());
  if (lanes_.next > lanes_.last) return false;
  const size_t width = columns.size() - kByteRansLanes;
  DecodeStep(slots.data(), columns.data() + done % width, count - done, lanes_, out + done);
  return lanes_.next <= end_;
}

bool ByteRansDecoder::AtEnd() const {
  return lanes_.next == end_ && std::all_of(lanes_.state.begin(), lanes_.state.end(),
                                            [](uint32_t state) { return state == kByteRansLow; });
}

}  // namespace kvstow
