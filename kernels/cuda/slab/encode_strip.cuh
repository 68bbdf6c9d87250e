// Encoding a strip: see strip.cuh and encode_tile.cuh, which makes the same bytes and sums.
#ifndef KVSTOW_KERNELS_CUDA_SLAB_ENCODE_STRIP_CUH_
#define KVSTOW_KERNELS_CUDA_SLAB_ENCODE_STRIP_CUH_

#include <cmath>

#include "kernels/cuda/slab/column_scales.cuh"
#include "kernels/cuda/slab/partial_sums.cuh"
#include "kernels/cuda/slab/strip.cuh"
#include "kernels/cuda/slab/wide_codes.cuh"

namespace kvstow::gpu {

// Floats of shared memory after the table: the squares of a strip's values and errors, which lie
// where codebooks kept the values and then the lanes of their squared lengths.
inline constexpr uint32_t kStripValues = kBlockOctets * kOctet;
constexpr uint32_t StripFloats(Kind kind, bool gains) {
  if (gains) return 2 * kStripValues;
  return kind == Kind::kCodebook ? kStripValues + kStripValues / 2 : 0;
}
template <typename Way, bool gains>
class EncodeStrip : public Strip {
  static constexpr Kind kind = Way::kind;
  static constexpr bool rotated = Way::rotated, columns = Way::columns;

 public:
  struct State {
    float x[kOwn][kOctet];
    float low, high;
    Scale scale;
    bool there;
    uint8_t* halves;   // of the lane's first scale
    uint8_t* codes;    // of the lane's first octet, at level 0
    uint32_t values;   // pieces of shared memory: its first octet among values
    uint32_t squares;  // and among squares
  };

  // Shared memory of a warp.
  static constexpr size_t SharedBytes() {
    return (kTableFloats + StripFloats(kind, gains)) * sizeof(float);
  }

  // `shared` has SharedBytes, aligned to 16.
  KVSTOW_GPU EncodeStrip(const Launch& launch, const StripPlace& at, uint8_t* shared)
      : Strip(launch, at, shared),
        area_(table_ + kTableFloats),
        lanes_(reinterpret_cast<double*>(area_ + kStripValues)) {}

  template <typename Run>
  KVSTOW_GPU void Code(const Run& run) const {
    if (kind == Kind::kCodebook || kind == Kind::kLevels) {
      run.Each([&](uint32_t lane, State&) { LoadTable(lane); });
    }
    run.Each([&](uint32_t lane, State& state) { Load(lane, state); });
    if (rotated) Rotate(run);
    if (kind == Kind::kCodebook) {
      run.Each([&](uint32_t, State& state) { PutValues(state); });
      run.Each([&](uint32_t lane, State&) { SumLanes(lane); });
    }
    for (uint32_t first = 0; first <= launch_.ops.levels; first += 2) {
      Put(run, first);
      if (gains) run.Each([&](uint32_t lane, State&) { SumSquares(lane, first); });
      if (!gains || kind != Kind::kLevels) break;
    }
  }

 private:
  // Lanes without a vector have zeros, which lose nothing. NaN and Inf go through the rotation and
  // the statistics into a scale, which is refused; those of columns have been refused before.
  KVSTOW_GPU void Load(uint32_t lane, State& state) const {
    Words raw[kOwn];
    const uint8_t* const from = RawSlab() + size_t{InSlab(Reader(lane), 0)} * kOctetBytes;
    KVSTOW_UNROLL
    for (uint32_t k = 0; k < kOwn; ++k) raw[k] = LoadWords(from + k * width_ * kOctetBytes);
    if (!IsThere(lane)) {
      KVSTOW_UNROLL
      for (uint32_t k = 0; k < kOwn; ++k) raw[k] = Words{};
    }
    if (rotated) {
      KVSTOW_UNROLL
      for (uint32_t k = 0; k < kOwn; ++k) {
        FlipSigns(launch_.ops.signs[InVector(lane, k)], &raw[k]);
      }
    }
    KVSTOW_UNROLL
    for (uint32_t k = 0; k < kOwn; ++k) ToFloats(raw[k], launch_.ops.bf16, state.x[k]);
    state.there = IsThere(lane);
    const uint32_t bits = kind == Kind::kLevels ? launch_.ops.bits[0] : TotalBits<Way>();
    state.codes = Kept(CodeBytes<kind>(0, InSlab(lane, 0), bits));
    state.halves = Kept(Body(0) + 2 * ScaleIndex(lane, 0));
    state.values = Swizzled(2 * InStrip(lane, 0));
    state.squares = Kept(Swizzled(RowPiece(InStrip(lane, 0))));
  }

  // Codebooks: all values, octet after octet. Places are linear in the bits of an octet's number:
  // those of octet k are those of the first one, but for the bits of k * width.
  KVSTOW_GPU void PutValues(const State& state) const {
    KVSTOW_UNROLL
    for (uint32_t k = 0; k < kOwn; ++k) {
      PutOctet(state.values ^ Swizzled(2 * k << log2_), state.x[k]);
    }
  }
  KVSTOW_GPU void PutOctet(uint32_t piece, const float* x) const {
    StoreFourFloats(x, area_ + piece * kPiece);
    StoreFourFloats(x + kPiece, area_ + (piece ^ 1) * kPiece);
  }

  // Lane i % 8 of the squared length of vector i / 8 (SquaredLength in codebook.h).
  KVSTOW_GPU void SumLanes(uint32_t lane) const {
    for (uint32_t i = lane; i < kLanes >> log2_ << 3; i += kLanes) {
      const uint32_t vector = i / kOctet << log2_ << kLog2Own;
      const uint32_t begin = Swizzled(2 * vector + i % kOctet / kPiece) * kPiece + i % kPiece;
      double sum = 0;
      for (uint32_t o = 0; o < part_.vector.by; ++o) {
        sum = PlusSquare(sum, area_[begin ^ Swizzled(2 * o) * kPiece]);
      }
      lanes_[i] = sum;
    }
  }

  // Codes all octets. With gains also puts the squares of two quantities: number 0 is the values,
  // 1 and up the errors when so many levels are there.
  template <typename Run>
  KVSTOW_GPU void Put(const Run& run, uint32_t first) const {
    const uint32_t together = 1u << TogetherLog2();  // all, where there is more than one level
    KVSTOW_UNROLL
    for (uint32_t k = 0; k < kOwn; ++k) {
      if (first == 0 && (k & (together - 1)) == 0 && !(columns && part_.columns)) {
        run.Each([&](uint32_t, State& state) { Measure(k, together, state); });
        for (uint32_t d = 1; d < width_ && kind != Kind::kCodebook; d *= 2) {
          run.Pairs(d, [&](uint32_t, State& state, const auto& other) {
            const float low = other([](const State& s) { return s.low; });
            const float high = other([](const State& s) { return s.high; });
            state.low = LeastOrNan(state.low, low);
            state.high = MostOrNan(state.high, high);
          });
        }
        run.Each([&](uint32_t lane, State& state) { MakeScale(lane, k, state); });
      }
      run.Each([&](uint32_t lane, State& state) { Put(lane, k, first, state); });
    }
  }

  KVSTOW_GPU void Measure(uint32_t k, uint32_t together, State& state) const {
    if (kind == Kind::kCodebook) return;
    state.low = state.high = kind == Kind::kAffine ? state.x[k][0] : std::abs(state.x[k][0]);
    KVSTOW_UNROLL
    for (uint32_t n = k; n < kOwn; ++n) {
      if (n - k >= together) break;
      KVSTOW_UNROLL
      for (uint32_t j = n == k ? 1 : 0; j < kOctet; ++j) {
        const float x = state.x[n][j];
        if (kind == Kind::kAffine) state.low = LeastOrNan(state.low, x);
        state.high = MostOrNan(state.high, kind == Kind::kAffine ? x : std::abs(x));
      }
    }
  }

  KVSTOW_GPU Halves HalvesOf(uint32_t lane, const State& state) const {
    if (kind == Kind::kAffine) {
      return AffineHalves(state.low, state.high, TotalBits<Way>());
    }
    if (kind != Kind::kCodebook) return {HalfOfFloat(state.high), 0};
    double sum = 0;
    KVSTOW_UNROLL
    for (uint32_t j = 0; j < kOctet; ++j) sum += lanes_[(lane >> log2_) * kOctet + j];
    return {HalfOfFloat(static_cast<float>(std::sqrt(sum))), 0};
  }

  // The scale of octet k and those together with it.
  KVSTOW_GPU void MakeScale(uint32_t lane, uint32_t k, State& state) const {
    const Halves halves = HalvesOf(lane, state);
    state.scale = ScaleOf<kind>(halves, part_, TotalBits<Way>());
    if (!state.there || (lane & (width_ - 1)) != 0) return;
    if (!Finite(halves)) Refuse();
    uint8_t* const to = state.halves + 2 * (k >> TogetherLog2());
    StoreHalf(halves.first, to);
    if (kind == Kind::kAffine) StoreHalf(halves.minimum, to + 2 * size_t{part_.scales});
  }

  KVSTOW_GPU void Put(uint32_t lane, uint32_t k, uint32_t first, const State& state) const {
    if (columns && part_.columns) {
      PutColumns(lane, k, state);
    } else {
      PutCodes(lane, k, first, state);
    }
  }

  KVSTOW_GPU void PutCodes(uint32_t lane, uint32_t k, uint32_t first, const State& state) const {
    const uint32_t bits = TotalBits<Way>();
    uint32_t wide[kOctet];
    KVSTOW_UNROLL
    for (uint32_t j = 0; j < kOctet; ++j) {
      wide[j] = WideCodeOf<kind>(state.x[k][j], state.scale, table_, bits);
    }
    if (first == 0 && state.there) StoreCodes(lane, k, wide, state);
    if (!gains) return;
    if (first == 0) {
      PutSquares(state, k, 0, state.x[k]);
    } else {
      PutErrors(k, first, 0, wide, state);
    }
    if (kind != Kind::kLevels || first + 1 <= launch_.ops.levels) {
      PutErrors(k, first + 1, 1, wide, state);
    }
  }

  KVSTOW_GPU void PutColumns(uint32_t lane, uint32_t k, const State& state) const {
    const uint32_t bits = TotalBits<Way>();
    uint32_t wide[kOctet] = {};
    float error[kOctet] = {};
    if (state.there) {
      Halves halves[kOctet];
      OctetHalves(part_, Body(0), InSlab(lane, k), halves);
      KVSTOW_UNROLL
      for (uint32_t j = 0; j < kOctet; ++j) {
        const Scale scale = ScaleOf<kind>(halves[j], part_, bits);
        wide[j] = WideCodeOf<kind>(state.x[k][j], scale, table_, bits);
        if (gains) error[j] = state.x[k][j] - WideValueOf<kind>(wide[j], scale, table_, bits);
      }
      StoreCodes(lane, k, wide, state);
    }
    if (!gains) return;
    PutSquares(state, k, 0, state.x[k]);
    PutSquares(state, k, 1, error);
  }

  KVSTOW_GPU void StoreCodes(uint32_t lane, uint32_t k, const uint32_t* wide,
                             const State& state) const {
    const uint32_t bits = TotalBits<Way>();
    if (kind != Kind::kLevels || launch_.ops.levels == 1) {
      StoreAligned(PackWide(wide, bits), bits, state.codes + (k * bits << log2_));
      return;
    }
    uint32_t below = bits;
    for (uint32_t level = 0; level < launch_.ops.levels; ++level) {
      below -= launch_.ops.bits[level];
      uint32_t part[kOctet];
      KVSTOW_UNROLL
      for (uint32_t j = 0; j < kOctet; ++j) part[j] = wide[j] >> below;
      WithWideBits(launch_.ops.bits[level], [&](auto width) {
        uint8_t* const to = CodeBytes<kind>(level, InSlab(lane, k), width);
        StoreAligned(PackWide(part, width), width, to);
      });
    }
  }

  // The errors when `levels` are there.
  KVSTOW_GPU void PutErrors(uint32_t k, uint32_t levels, uint32_t place, const uint32_t* wide,
                            const State& state) const {
    const uint32_t bits = TotalBits<Way>();
    uint32_t missing = 0;
    for (uint32_t l = levels; kind == Kind::kLevels && l < launch_.ops.levels; ++l) {
      missing += launch_.ops.bits[l];
    }
    float error[kOctet];
    if (kind != Kind::kLevels || missing == 0) {
      KVSTOW_UNROLL
      for (uint32_t j = 0; j < kOctet; ++j) {
        error[j] = state.x[k][j] - WideValueOf<kind>(wide[j], state.scale, table_, bits);
      }
    } else {
      KVSTOW_UNROLL
      for (uint32_t j = 0; j < kOctet; ++j) {
        const uint32_t code = (wide[j] - WideBase(kind)) >> missing;
        error[j] = state.x[k][j] - CentroidOf(code, table_, bits - missing) * state.scale.outward;
      }
    }
    PutSquares(state, k, place, error);
  }

  // A row of 8 pieces has the squares of 16 values, then those of their errors.
  KVSTOW_GPU static uint32_t RowPiece(uint32_t octet) { return octet / 2 * 8 + octet % 2 * 2; }
  KVSTOW_GPU void PutSquares(const State& state, uint32_t k, uint32_t place, const float* x) const {
    float squares[kOctet];
    KVSTOW_UNROLL
    for (uint32_t j = 0; j < kOctet; ++j) squares[j] = x[j] * x[j];
    PutOctet(state.squares ^ Swizzled(RowPiece(k << log2_)) ^ (place * 4), squares);
  }

  // Each lane adds the squares of one of the 16 partial sums of one quantity.
  KVSTOW_GPU void SumSquares(uint32_t lane, uint32_t first) const {
    constexpr uint32_t kRows = 16;  // over so many, the swizzle repeats
    float sum = 0;
    for (uint32_t begin = 0; begin < kStripValues / kSums; begin += kRows) {
      const float* const rows = area_ + begin * kLanes;
      KVSTOW_UNROLL
      for (uint32_t r = 0; r < kRows; ++r) {
        sum += rows[r * kLanes + (lane ^ Swizzled(8 * r) % 8 * kPiece)];
      }
    }
    const uint32_t which = first + lane / kSums;
    if (which > launch_.ops.levels) return;
    PartialsOf(launch_, at_.page, at_.layer, at_.part, which, at_.strip)[lane % kSums] = sum;
  }

  float* const area_;
  double* const lanes_;
};

// Calls f(std::type_identity<the EncodeStrip of the launch>).
template <typename F>
void WithEncoder(const Launch& launch, const F& f) {
  WithStripWay(launch, [&](auto way) {
    if (launch.partials != nullptr) {
      f(std::type_identity<EncodeStrip<decltype(way), true>>());
    } else {
      f(std::type_identity<EncodeStrip<decltype(way), false>>());
    }
  });
}

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SLAB_ENCODE_STRIP_CUH_
