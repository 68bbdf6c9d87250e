// The rANS encoder of entropy/rans.h by the lanes of a half warp: the words of RansEncoder.
//
// Words are written from the end of a stream's room towards its beginning, so that they stand in
// the order in which a decoder reads them.
#ifndef KVSTOW_KERNELS_CUDA_JOINT_RANS_PUTS_CUH_
#define KVSTOW_KERNELS_CUDA_JOINT_RANS_PUTS_CUH_

#include "kernels/cuda/joint/half_warp.cuh"

namespace kvstow::gpu {

// As RansEncoder::Most.
KVSTOW_GPU uint32_t MostBefore(uint32_t frequency) { return (frequency << (31 - kRansBits)) - 1; }

// Symbols as PlaneTable has them: the start, and from bit 16 on the frequency.
inline constexpr uint32_t kFreeSymbol = kRansTotal << 16;
KVSTOW_GPU uint32_t SymbolOf(uint32_t start, uint32_t frequency) { return start | frequency << 16; }

// Returns x / frequency, where x is at most MostBefore(frequency): the quotient has 17 bits, so
// that one in floats is off by one at most.
KVSTOW_GPU uint32_t Quotient(uint32_t x, uint32_t frequency) {
#ifdef __CUDA_ARCH__
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(static_cast<float>(frequency)));
#else
  const float inverse = 1 / static_cast<float>(frequency);
#endif
  const auto about = static_cast<uint32_t>(static_cast<float>(x) * inverse);
  const auto left = static_cast<int32_t>(x - about * frequency);
  if (left < 0) return about - 1;
  return left >= static_cast<int32_t>(frequency) ? about + 1 : about;
}

// An encoder between two phases, in shared memory.
struct SavedEncoder {
  uint32_t x[kRansLanes];
  uint32_t at, risen, full;
};

// Puts of one lane, each a step of its own, with RansEncoder's interface. At most four words.
struct LonePuts {
  uint32_t x;
  bool risen, rose = false;
  uint32_t count = 0;
  uint64_t words = 0;  // the first in the lowest bits

  KVSTOW_GPU void Put(uint32_t start, uint32_t frequency) {
    if (!risen && x + kRansLow > MostBefore(frequency)) {
      x += kRansLow;
      risen = rose = true;
    }
    if (x > MostBefore(frequency)) {
      words |= uint64_t{x & 0xffff} << (16 * count++);
      x >>= 16;
    }
    const uint32_t whole = Quotient(x, frequency);
    x = (whole << kRansBits) + (x - whole * frequency) + start;
  }
  KVSTOW_GPU void PutBits(size_t, uint32_t bits, uint32_t number) {
    for (uint32_t done = 0; done < number;) {
      const uint32_t n = number - done < 12 ? number - done : 12;
      const uint32_t frequency = kRansTotal >> n;
      Put((bits >> done & ((1u << n) - 1)) * frequency, frequency);
      done += n;
    }
  }
};

class LaneEncoder {
 public:
  // Begins a stream that has `room` words.
  KVSTOW_GPU LaneEncoder(uint16_t* words, uint32_t room) : words_(words), room_(room), at_(room) {}
  // Goes on with one.
  KVSTOW_GPU LaneEncoder(uint16_t* words, uint32_t room, const SavedEncoder& saved)
      : words_(words),
        room_(room),
        at_(saved.at),
        risen_(saved.risen != 0),
        full_(saved.full != 0) {
    Lanes::For([&](uint32_t l) { x_[l] = saved.x[l]; });
  }
  KVSTOW_GPU void Save(SavedEncoder& to) const {
    Lanes::Meet();  // all have read the old one
    Lanes::For([&](uint32_t l) { to.x[l] = x_[l]; });
    Lanes::One(0, [&] { to.at = at_, to.risen = risen_, to.full = full_; });
  }

  // A step: a symbol for each lane, kFreeSymbol for none.
  KVSTOW_GPU void Put(const PerLane<uint32_t>& symbols) {
    if (!risen_ && Lanes::Ballot([&](uint32_t l) {
                     return x_[l] + kRansLow > MostBefore(symbols[l] >> 16);
                   }) != 0) {
      Lanes::For([&](uint32_t l) { x_[l] += kRansLow; });
      risen_ = true;
    }
    PerLane<uint32_t> word;
    PerLane<bool> writes;
    Lanes::For([&](uint32_t l) {
      uint32_t x = x_[l];
      const uint32_t frequency = symbols[l] >> 16;
      writes[l] = x > MostBefore(frequency);
      word[l] = x;
      x = writes[l] ? x >> 16 : x;
      const uint32_t whole = Quotient(x, frequency);
      x_[l] = (whole << kRansBits) + (x - whole * frequency) + (symbols[l] & 0xffff);
    });
    const uint32_t wants = Lanes::Ballot([&](uint32_t l) { return writes[l]; });
    if (wants == 0 || !Takes(CountBits(wants))) return;
    Lanes::For([&](uint32_t l) {
      if (writes[l]) words_[at_ - 1 - CountBits(wants >> l >> 1)] = static_cast<uint16_t>(word[l]);
    });
    at_ -= CountBits(wants);
  }
  // Puts of single lanes, the highest lane first: f(lane, LonePuts&) makes them, for the lanes of
  // `lanes`.
  template <typename F>
  KVSTOW_GPU void Each(uint32_t lanes, const F& f) {
    if (!risen_) {
      for (uint32_t l = kRansLanes; l-- > 0;) {
        if ((lanes >> l & 1) != 0) Alone(l, f);
      }
      return;
    }
    PerLane<uint32_t> count;
    PerLane<uint64_t> words;
    Lanes::For([&](uint32_t l) {
      if ((lanes >> l & 1) == 0) return;
      LonePuts puts{x_[l], true};
      f(l, puts);
      x_[l] = puts.x, count[l] = puts.count, words[l] = puts.words;
    });
    const uint32_t ones = Lanes::Ballot([&](uint32_t l) { return (count[l] & 1) != 0; });
    const uint32_t twos = Lanes::Ballot([&](uint32_t l) { return (count[l] & 2) != 0; });
    const uint32_t fours = Lanes::Ballot([&](uint32_t l) { return (count[l] & 4) != 0; });
    const auto above = [&](uint32_t shift) {
      return CountBits(ones >> shift) + 2 * CountBits(twos >> shift) +
             4 * CountBits(fours >> shift);
    };
    if (!Takes(above(0))) return;
    Lanes::For([&](uint32_t l) {
      const uint32_t last = at_ - 1 - above(l + 1);
      for (uint32_t k = 0; k < count[l]; ++k)
        words_[last - k] = static_cast<uint16_t>(words[l] >> (16 * k));
    });
    at_ -= above(0);
  }

  // Ends the stream: the states stand before the words. Returns the words of all; nothing to write
  // is no word.
  KVSTOW_GPU uint32_t Finish() {
    const bool idle = Lanes::Ballot([&](uint32_t l) { return x_[l] != 0; }) == 0;
    if (full_ || (at_ == room_ && idle)) return 0;
    at_ -= 2 * kRansLanes;
    Lanes::For([&](uint32_t l) {
      words_[at_ + 2 * l] = static_cast<uint16_t>(x_[l]);
      words_[at_ + 2 * l + 1] = static_cast<uint16_t>(x_[l] >> 16);
    });
    return room_ - at_;
  }
  // Returns whether there was no room for a word: the stream means nothing.
  KVSTOW_GPU bool full() const { return full_; }

 private:
  // Whether so many words more leave room for the states.
  KVSTOW_GPU bool Takes(uint32_t words) {
    full_ |= at_ < words + 2 * kRansLanes;
    return !full_;
  }

  template <typename F>
  KVSTOW_GPU void Alone(uint32_t lane, const F& f) {
    bool rose = false;
    uint32_t count = 0;
    uint64_t words = 0;
    Lanes::One(lane, [&] {
      LonePuts puts{x_[lane], risen_};
      f(lane, puts);
      x_[lane] = puts.x, risen_ = puts.risen, rose = puts.rose;
      count = puts.count, words = puts.words;
    });
    risen_ = Lanes::From(lane, risen_);
    count = Lanes::From(lane, count);
    if (Lanes::From(lane, rose)) {
      Lanes::For([&](uint32_t l) { x_[l] += l == lane ? 0 : kRansLow; });
    }
    if (!Takes(count)) return;
    Lanes::One(lane, [&] {
      for (uint32_t k = 0; k < count; ++k)
        words_[at_ - 1 - k] = static_cast<uint16_t>(words >> (16 * k));
    });
    at_ -= count;
  }

  uint16_t* const words_;
  const uint32_t room_;
  uint32_t at_;  // the first word that is written
  bool risen_ = false, full_ = false;
  PerLane<uint32_t> x_;
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_JOINT_RANS_PUTS_CUH_
