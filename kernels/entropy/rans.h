// rANS: the entropy coder's arithmetic, one symbol at a time (Duda, "Asymmetric numeral systems",
// arXiv:1311.2540; 16-bit renormalisation as in Giesen's ryg_rans).
//
// A state of 32 bits, probabilities of kRansBits bits, words of 16 bits. A symbol is the interval
// [start, start + frequency) of [0, kRansTotal); a frequency of kRansTotal costs nothing. The
// encoder takes symbols in the reverse of the order in which the decoder gives them.
//
// Ends cost little: the encoder starts from state 0, not from the usual 2^16, and the decoder
// stops refilling when its words are used up. So symbols of start 0 at the end of a stream are
// free, an empty stream has no words, and a decoder that ends at state 0 with every word used has
// read what was written. Values; thread-compatible; nothing here fails or reads out of bounds.
#ifndef KVSTOW_KERNELS_ENTROPY_RANS_H_
#define KVSTOW_KERNELS_ENTROPY_RANS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvstow {

inline constexpr uint32_t kRansBits = 14;
inline constexpr uint32_t kRansTotal = 1u << kRansBits;
inline constexpr uint32_t kRansLow = 1u << 16;  // a decoder's state below this wants a word

class RansEncoder {
 public:
  // 1 <= frequency, start + frequency <= kRansTotal.
  void Put(uint32_t start, uint32_t frequency) {
    if (uint64_t{state_} >= uint64_t{frequency} << (32 - kRansBits)) {
      words_.push_back(static_cast<uint16_t>(state_));
      state_ >>= 16;
    }
    state_ = (state_ / frequency << kRansBits) + state_ % frequency + start;
  }
  // `count` <= 24 equally likely bits; GetBits gives them back.
  void PutBits(uint32_t bits, uint32_t count) {
    for (uint32_t done = 0; done < count;) {
      const uint32_t n = count - done < 12 ? count - done : 12;
      const uint32_t frequency = kRansTotal >> n;
      Put((bits >> done & ((1u << n) - 1)) * frequency, frequency);
      done += n;
    }
  }
  // Appends the stream's words in the order in which a decoder reads them, and starts anew.
  void Finish(std::vector<uint16_t>& out) {
    if (state_ > 0) words_.push_back(static_cast<uint16_t>(state_));
    if (state_ >= kRansLow) words_.push_back(static_cast<uint16_t>(state_ >> 16));
    out.insert(out.end(), words_.rbegin(), words_.rend());
    words_.clear();
    state_ = 0;
  }

 private:
  uint32_t state_ = 0;
  std::vector<uint16_t> words_;  // the last read first
};

class RansDecoder {
 public:
  // `words`: little-endian 16-bit words, two bytes each, that must outlive this.
  explicit RansDecoder(std::span<const uint8_t> words)
      : next_(words.data()), end_(words.data() + words.size() / 2 * 2) {
    Refill();
    Refill();
  }
  // In which interval the next symbol lies.
  uint32_t Peek() const { return state_ & (kRansTotal - 1); }
  // Takes the symbol [start, start + frequency), which holds Peek().
  void Take(uint32_t start, uint32_t frequency) {
    state_ = frequency * (state_ >> kRansBits) + (state_ & (kRansTotal - 1)) - start;
    Refill();
  }
  uint32_t GetBits(uint32_t count) {
    uint32_t bits = 0, shift = count;
    while (shift > 0) {  // the encoder's chunks, last first: all are 12 bits but the highest
      const uint32_t n = shift % 12 == 0 ? 12 : shift % 12;
      const uint32_t chunk = Peek() >> (kRansBits - n);
      Take(chunk << (kRansBits - n), kRansTotal >> n);
      shift -= n;
      bits |= chunk << shift;
    }
    return bits;
  }
  // Every word was read and nothing but what an encoder writes: the end of an undamaged stream.
  bool AtEnd() const { return next_ == end_ && state_ == 0; }

 private:
  void Refill() {
    if (state_ < kRansLow && next_ != end_) {
      state_ = state_ << 16 | static_cast<uint32_t>(next_[0] | next_[1] << 8);
      next_ += 2;
    }
  }

  uint32_t state_ = 0;
  const uint8_t* next_;
  const uint8_t* end_;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_ENTROPY_RANS_H_
