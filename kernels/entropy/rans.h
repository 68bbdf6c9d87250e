// rANS: the entropy coder's arithmetic on kRansLanes states that share one stream of words (Duda,
// "Asymmetric numeral systems", arXiv:1311.2540; states side by side as in Giesen, "Interleaved
// entropy coders", arXiv:1402.3392).
//
// States are below 2^31. Probabilities have kRansBits bits, words 16. A symbol is the interval
// [start, start + frequency) of [0, kRansTotal); a frequency of kRansTotal costs nothing. A *step*
// gives one symbol to each of some lanes. A decoder takes the symbols of a step; then every lane
// below kRansLow takes a word, the lowest lane first. An encoder does the steps in reverse order.
//
// Ends cost little: encoders start at 0, not at kRansLow. The first word written is the last one
// read; until it is written, states may be below kRansLow. In the step that writes it all states
// rise by kRansLow, so a decoder knows which lanes want a word. Once the decoder has read it, all
// states fall by kRansLow, and no lane takes a word any more. A stream is the final states of all
// lanes, two words each, and the words; it is empty when all those states are 0. A decoder that
// ends at states 0 with every word used has read what was written.
//
// Values; thread-compatible; nothing here fails or reads out of bounds. Loops over whole vectors of
// lanes (plane_encode_simd.cc, plane_decode_simd.cc) work on the public members.
#ifndef KVSTOW_KERNELS_ENTROPY_RANS_H_
#define KVSTOW_KERNELS_ENTROPY_RANS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <vector>

namespace kvstow {

inline constexpr uint32_t kRansBits = 14;
inline constexpr uint32_t kRansTotal = 1u << kRansBits;
inline constexpr uint32_t kRansLow = 1u << 15;  // a decoder's state below this wants a word
inline constexpr size_t kRansLanes = 16;

struct RansSymbol {
  uint32_t start = 0, frequency = kRansTotal;
};
using RansStep = std::array<RansSymbol, kRansLanes>;

class RansEncoder {
 public:
  void Put(const RansStep& step) {
    bool writes = false;
    for (size_t lane = 0; lane < kRansLanes; ++lane)
      writes |= states[lane] + kRansLow > Most(step[lane].frequency);
    if (written == 0 && writes) Rise();
    for (size_t lane = kRansLanes; lane-- > 0;) PutRisen(lane, step[lane]);
  }
  // Does a step of one lane.
  void Put(size_t lane, uint32_t start, uint32_t frequency) {
    if (written == 0 && states[lane] + kRansLow > Most(frequency)) Rise();
    PutRisen(lane, {start, frequency});
  }
  // Puts `count` <= 24 equally likely bits, which GetBits gives back.
  void PutBits(size_t lane, uint32_t bits, uint32_t count) {
    for (uint32_t done = 0; done < count;) {
      const uint32_t n = std::min(count - done, 12u);
      const uint32_t frequency = kRansTotal >> n;
      Put(lane, (bits >> done & ((1u << n) - 1)) * frequency, frequency);
      done += n;
    }
  }
  // Appends the stream to `out` and starts anew.
  void Finish(std::vector<uint16_t>& out) {
    const bool empty = written == 0 &&
                       std::all_of(states.begin(), states.end(), [](uint32_t x) { return x == 0; });
    for (uint32_t& x : states) {
      if (!empty) out.push_back(static_cast<uint16_t>(x));
      if (!empty) out.push_back(static_cast<uint16_t>(x >> 16));
      x = 0;
    }
    std::reverse_copy(words.begin(), words.begin() + static_cast<ptrdiff_t>(written),
                      std::back_inserter(out));
    written = 0;
  }
  // Makes room for `more` words behind those written.
  void Reserve(size_t more) {
    if (words.size() < written + more) words.resize(2 * (written + more));
  }

  // Returns the largest state that takes a symbol of this frequency without writing a word.
  static uint32_t Most(uint32_t frequency) { return (frequency << (31 - kRansBits)) - 1; }
  // Prepares the states for the first word, in the step that writes it.
  void Rise() {
    for (uint32_t& x : states) x += kRansLow;
  }

  alignas(64) std::array<uint32_t, kRansLanes> states{};
  std::vector<uint16_t> words;  // the last read first
  size_t written = 0;           // of `words`

 private:
  void PutRisen(size_t lane, RansSymbol symbol) {
    uint32_t& x = states[lane];
    if (x > Most(symbol.frequency)) {
      Reserve(1);
      words[written++] = static_cast<uint16_t>(x);
      x >>= 16;
    }
    x = (x / symbol.frequency << kRansBits) + x % symbol.frequency + symbol.start;
  }
};

class RansDecoder {
 public:
  // `stream` must outlive this.
  explicit RansDecoder(std::span<const uint8_t> stream)
      : next(stream.data()), end(stream.data() + stream.size() / 2 * 2) {
    constexpr size_t kStateBytes = 4 * kRansLanes;
    if (next == end) return;
    if (end - next < static_cast<ptrdiff_t>(kStateBytes)) {
      damaged = true;
      return;
    }
    std::memcpy(states.data(), next, kStateBytes);
    for (const uint32_t x : states) damaged |= x >> 31 != 0;
    next += kStateBytes;
    refills = next != end;
  }
  // Returns the slot in whose interval the next symbol of a lane lies.
  uint32_t Peek(size_t lane) const { return states[lane] & (kRansTotal - 1); }
  // Takes the symbols of a step; their intervals hold Peek().
  void Take(const RansStep& step) {
    for (size_t lane = 0; lane < kRansLanes; ++lane) Advance(lane, step[lane]);
    Refill();
  }
  // Does a step of one lane.
  void Take(size_t lane, uint32_t start, uint32_t frequency) {
    Advance(lane, {start, frequency});
    if (!refills) return;
    Refill(lane);
    if (next == end) Fall();
  }
  // Ends a step: gives a word to each lane that wants one.
  void Refill() {
    if (!refills) return;
    for (size_t lane = 0; lane < kRansLanes; ++lane) Refill(lane);
    if (next == end) Fall();
  }
  uint32_t GetBits(size_t lane, uint32_t count) {
    uint32_t bits = 0, shift = count;
    while (shift > 0) {  // the encoder's chunks, last first: all are 12 bits but the highest
      const uint32_t n = shift % 12 == 0 ? 12 : shift % 12;
      const uint32_t chunk = Peek(lane) >> (kRansBits - n);
      Take(lane, chunk << (kRansBits - n), kRansTotal >> n);
      shift -= n;
      bits |= chunk << shift;
    }
    return bits;
  }
  // Returns whether every word was read and the states are an encoder's: the end of an undamaged
  // stream.
  bool AtEnd() const {
    return !damaged && next == end &&
           std::all_of(states.begin(), states.end(), [](uint32_t x) { return x == 0; });
  }
  alignas(64) std::array<uint32_t, kRansLanes> states{};
  const uint8_t* next;
  const uint8_t* end;
  bool refills = false;
  bool damaged = false;

 private:
  void Advance(size_t lane, RansSymbol symbol) {
    uint32_t& x = states[lane];
    x = symbol.frequency * (x >> kRansBits) + (x & (kRansTotal - 1)) - symbol.start;
  }
  void Refill(size_t lane) {
    uint32_t& x = states[lane];
    if (x >= kRansLow) return;
    if (next == end) {
      damaged = true;
      return;
    }
    x = x << 16 | static_cast<uint32_t>(next[0] | next[1] << 8);
    next += 2;
  }
  // Corrects the states after the last word, in the step that reads it.
  void Fall() {
    for (uint32_t& x : states) {
      damaged |= x < kRansLow;
      x -= kRansLow;
    }
    refills = false;
  }
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_ENTROPY_RANS_H_
