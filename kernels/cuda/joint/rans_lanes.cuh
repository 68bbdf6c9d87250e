// The rANS decoder of entropy/rans.h by the lanes of a half warp. It reads what RansEncoder writes,
// and finds the same damage as RansDecoder.
#ifndef KVSTOW_KERNELS_CUDA_JOINT_RANS_LANES_CUH_
#define KVSTOW_KERNELS_CUDA_JOINT_RANS_LANES_CUH_

#include "kernels/cuda/joint/half_warp.cuh"

namespace kvstow::gpu {

KVSTOW_GPU uint32_t SlotOf(uint32_t x) { return x & (kRansTotal - 1); }
KVSTOW_GPU uint32_t Advanced(uint32_t x, uint32_t start, uint32_t frequency) {
  return frequency * (x >> kRansBits) + SlotOf(x) - start;
}

// A decoder between two phases, in shared memory.
struct SavedDecoder {
  uint32_t x[kRansLanes];
  uint32_t next, refills, damaged;
};

// One lane's takes, of RansDecoder's interface, while the other lanes wait.
struct LoneLane {
  uint32_t x;
  const uint16_t* words;
  uint32_t next, end;
  bool refills, fell, damaged;

  KVSTOW_GPU void Take(uint32_t start, uint32_t frequency) {
    x = Advanced(x, start, frequency);
    if (!refills) return;
    if (x < kRansLow) {
      if (next == end) {
        damaged = true;
      } else {
        x = x << 16 | words[next++];
      }
    }
    if (next == end) {
      damaged |= x < kRansLow;
      x -= kRansLow;
      refills = false, fell = true;
    }
  }
  KVSTOW_GPU uint32_t GetBits(size_t, uint32_t count) {
    uint32_t bits = 0, shift = count;
    while (shift > 0) {
      const uint32_t n = shift % 12 == 0 ? 12 : shift % 12;
      const uint32_t chunk = SlotOf(x) >> (kRansBits - n);
      Take(chunk << (kRansBits - n), kRansTotal >> n);
      shift -= n;
      bits |= chunk << shift;
    }
    return bits;
  }
};

class LaneDecoder {
 public:
  // Begins a stream of `count` words.
  KVSTOW_GPU LaneDecoder(const uint16_t* words, uint32_t count) : words_(words), end_(count) {
    constexpr uint32_t kStateWords = 2 * kRansLanes;
    if (count == 0) return;
    if (count < kStateWords) {
      Lanes::For([&](uint32_t l) { damaged_[l] = true; });
      next_ = end_;
      return;
    }
    Lanes::For([&](uint32_t l) {
      x[l] = words[2 * l] | uint32_t{words[2 * l + 1]} << 16;
      damaged_[l] = x[l] >> 31 != 0;
    });
    next_ = kStateWords;
    refills_ = next_ != end_;
    LookAhead();
  }
  // Goes on with one.
  KVSTOW_GPU LaneDecoder(const uint16_t* words, uint32_t count, const SavedDecoder& saved)
      : words_(words), next_(saved.next), end_(count), refills_(saved.refills != 0) {
    Lanes::For([&](uint32_t l) {
      x[l] = saved.x[l];
      damaged_[l] = (saved.damaged >> l & 1) != 0;
    });
    LookAhead();
  }
  KVSTOW_GPU void Save(SavedDecoder& to) const {
    Lanes::Meet();  // all have read the old one
    const uint32_t damaged = Lanes::Ballot([&](uint32_t l) { return damaged_[l]; });
    Lanes::For([&](uint32_t l) { to.x[l] = x[l]; });
    Lanes::One(0, [&] {
      to.next = next_;
      to.refills = refills_;
      to.damaged = damaged;
    });
  }

  // Whether a step of at most a word for each lane may read the last word. Then the takes of the
  // lanes, where each ends a step of its own, must go one after another.
  KVSTOW_GPU bool Tight() const { return refills_ && end_ - next_ <= kRansLanes; }

  // Ends a step: a word for each lane that wants one, the lowest lane first.
  KVSTOW_GPU void Refill() {
    if (!refills_) return;
    const uint32_t wants = Lanes::Ballot([&](uint32_t l) { return x[l] < kRansLow; });
    const uint32_t count = CountBits(wants), left = end_ - next_;
    if (left >= 2 * kRansLanes) {
      // The usual case: there is a word for every lane, also in the next step.
      Lanes::For([&](uint32_t l) {
        const uint32_t word = Lanes::Pick(ahead_, CountBits(wants & ((1u << l) - 1)));
        x[l] = x[l] < kRansLow ? x[l] << 16 | word : x[l];
      });
      next_ += count;
      Lanes::For([&](uint32_t l) { ahead_[l] = words_[next_ + l]; });
      return;
    }
    Lanes::For([&](uint32_t l) {
      const uint32_t place = CountBits(wants & ((1u << l) - 1));
      const uint32_t word = Lanes::Pick(ahead_, place);
      const bool wanted = (wants >> l & 1) != 0;
      x[l] = wanted && place < left ? x[l] << 16 | word : x[l];
      damaged_[l] = damaged_[l] || (wanted && place >= left);
    });
    next_ += count < left ? count : left;
    if (next_ == end_) return Fall(kRansLanes);
    LookAhead();
  }
  // Takes of one lane, each a step of its own: f(LoneLane&) makes them.
  template <typename F>
  KVSTOW_GPU void Alone(uint32_t lane, const F& f) {
    bool fell = false;
    Lanes::One(lane, [&] {
      LoneLane one{x[lane], words_, next_, end_, refills_, false, damaged_[lane]};
      f(one);
      x[lane] = one.x, damaged_[lane] = one.damaged;
      next_ = one.next, refills_ = one.refills, fell = one.fell;
    });
    next_ = Lanes::From(lane, next_);
    refills_ = Lanes::From(lane, refills_);
    if (Lanes::From(lane, fell)) Fall(lane);
    LookAhead();
  }

  // As RansDecoder::AtEnd.
  KVSTOW_GPU bool AtEnd() const {
    return next_ == end_ &&
           Lanes::Ballot([&](uint32_t l) { return damaged_[l] || x[l] != 0; }) == 0;
  }

  PerLane<uint32_t> x;  // states

 private:
  // Fetches the words that the next step may want, long before it does.
  KVSTOW_GPU void LookAhead() {
    Lanes::For([&](uint32_t l) { ahead_[l] = next_ + l < end_ ? words_[next_ + l] : uint16_t{0}; });
  }
  // After the last word, in the step that read it, for all lanes but one.
  KVSTOW_GPU void Fall(uint32_t but) {
    Lanes::For([&](uint32_t l) {
      if (l == but) return;
      damaged_[l] = damaged_[l] || x[l] < kRansLow;
      x[l] -= kRansLow;
    });
    refills_ = false;
  }

  const uint16_t* const words_;
  uint32_t next_ = 0;
  const uint32_t end_;
  bool refills_ = false;
  PerLane<bool> damaged_;
  PerLane<uint32_t> ahead_;  // the next words
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_JOINT_RANS_LANES_CUH_
