// Decoding a strip: see strip.cuh and decode_tile.cuh, which makes the same bytes.
#ifndef KVSTOW_KERNELS_CUDA_SLAB_DECODE_STRIP_CUH_
#define KVSTOW_KERNELS_CUDA_SLAB_DECODE_STRIP_CUH_

#include "kernels/cuda/slab/column_scales.cuh"
#include "kernels/cuda/slab/strip.cuh"
#include "kernels/cuda/slab/wide_codes.cuh"

namespace kvstow::gpu {

template <typename Way>
class DecodeStrip : public Strip {
  static constexpr Kind kind = Way::kind;
  static constexpr bool rotated = Way::rotated, columns = Way::columns;

 public:
  struct State {
    float x[kOwn][kOctet];
  };

  // Shared memory of a warp.
  static constexpr size_t SharedBytes() { return kTableFloats * sizeof(float); }

  // `shared` has SharedBytes, aligned to 16.
  KVSTOW_GPU DecodeStrip(const Launch& launch, const StripPlace& at, uint8_t* shared)
      : Strip(launch, at, shared) {}

  template <typename Run>
  KVSTOW_GPU void Code(const Run& run) const {
    if (kind == Kind::kCodebook || kind == Kind::kLevels) {
      run.Each([&](uint32_t lane, State&) { LoadTable(lane); });
    }
    run.Each([&](uint32_t lane, State& state) { Dequantize(lane, state); });
    if (rotated) Rotate(run);
    run.Each([&](uint32_t lane, State& state) { PutRaw(lane, state); });
  }

 private:
  KVSTOW_GPU void Dequantize(uint32_t lane, State& state) const {
    const uint32_t reader = Reader(lane);
    Halves halves[kOwn] = {};
    bool sound = true;
    if (kind == Kind::kLevels && launch_.levels > 1) {
      ReadHalves(reader, halves);
      sound = ReadLevels(reader, halves, state);
    } else {
      // One level: that of several has another number of bits than all together.
      const uint32_t bits = kind == Kind::kLevels ? launch_.ops.bits[0] : TotalBits<Way>();
      const uint8_t* const from = CodeBytes<kind>(0, InSlab(reader, 0), bits);
      uint64_t word[kOwn];
      KVSTOW_UNROLL
      for (uint32_t k = 0; k < kOwn; ++k) word[k] = LoadAligned(from + (k * bits << log2_), bits);
      if (!(columns && part_.columns)) ReadHalves(reader, halves);
      KVSTOW_UNROLL
      for (uint32_t k = 0; k < kOwn; ++k) {
        uint32_t wide[kOctet];
        UnpackWide(word[k], bits, WideBase(kind), wide);
        sound &= Values(InSlab(reader, k), halves[k], wide, bits, state.x[k]);
      }
    }
    if (!sound) Refuse();
  }

  // The scales of a lane's octets, whether or not one serves several: all loads start at once.
  KVSTOW_GPU void ReadHalves(uint32_t lane, Halves* halves) const {
    const uint8_t* const first = Body(0) + 2 * ScaleIndex(lane, 0);
    KVSTOW_UNROLL
    for (uint32_t k = 0; k < kOwn; ++k) {
      if (kind != Kind::kAffine) {
        halves[k] = k == 0 ? Halves{LoadHalf(first), 0} : halves[0];
      } else {
        const uint8_t* const at = first + 2 * (k >> TogetherLog2());
        halves[k] = {LoadHalf(at), LoadHalf(at + 2 * size_t{part_.scales})};
      }
    }
  }

  KVSTOW_GPU bool ReadLevels(uint32_t lane, const Halves* halves, State& state) const {
    bool sound = true;
    KVSTOW_UNROLL
    for (uint32_t k = 0; k < kOwn; ++k) {
      uint32_t codes[kOctet] = {}, all = 0;
      for (uint32_t level = 0; level < launch_.levels; ++level) {
        WithWideBits(launch_.ops.bits[level], [&](auto bits) {
          uint32_t part[kOctet];
          const uint8_t* const from = CodeBytes<kind>(level, InSlab(lane, k), bits);
          UnpackWide(LoadAligned(from, bits), bits, 0, part);
          KVSTOW_UNROLL
          for (uint32_t j = 0; j < kOctet; ++j) codes[j] = codes[j] << bits | part[j];
        });
        all += launch_.ops.bits[level];
      }
      KVSTOW_UNROLL
      for (uint32_t j = 0; j < kOctet; ++j) codes[j] |= WideBase(kind);
      if (all == 8) {
        constexpr std::integral_constant<uint32_t, 8> kAll;
        sound &= Values(InSlab(lane, k), halves[k], codes, kAll, state.x[k]);
      } else {
        sound &= Values(InSlab(lane, k), halves[k], codes, all, state.x[k]);
      }
    }
    return sound;
  }

  // The values of an octet. False if no page has such a scale or code.
  template <typename Bits>
  KVSTOW_GPU bool Values(uint32_t octet, Halves halves, const uint32_t* wide, Bits bits,
                         float* x) const {
    if (columns && part_.columns) return ColumnValues(octet, wide, bits, x);
    bool sound = Finite(halves);
    const Scale scale = ScaleOf<kind>(halves, part_, launch_.ops.total_bits);
    KVSTOW_UNROLL
    for (uint32_t j = 0; j < kOctet; ++j) {
      if (kind == Kind::kMinifloat) sound &= (wide[j] & 0x7f) != 0x7f;
      x[j] = WideValueOf<kind>(wide[j], scale, table_, bits);
    }
    return sound;
  }

  template <typename Bits>
  KVSTOW_GPU bool ColumnValues(uint32_t octet, const uint32_t* wide, Bits bits, float* x) const {
    bool sound = true;
    Halves halves[kOctet];
    OctetHalves(part_, Body(0), octet, halves);
    KVSTOW_UNROLL
    for (uint32_t j = 0; j < kOctet; ++j) {
      sound &= Finite(halves[j]);
      x[j] = WideValueOf<kind>(wide[j], ScaleOf<kind>(halves[j], part_, bits), table_, bits);
    }
    return sound;
  }

  KVSTOW_GPU void PutRaw(uint32_t lane, const State& state) const {
    if (!IsThere(lane)) return;
    uint8_t* const to = RawSlab() + size_t{InSlab(lane, 0)} * kOctetBytes;
    KVSTOW_UNROLL
    for (uint32_t k = 0; k < kOwn; ++k) {
      Words raw = FloatsToRaw(state.x[k], launch_.ops.bf16);
      if (rotated) FlipSigns(launch_.ops.signs[InVector(lane, k)], &raw);
      StoreWords(raw, to + (k * kOctetBytes << log2_));
    }
  }
};

// Calls f(std::type_identity<the DecodeStrip of the launch>).
template <typename F>
void WithDecoder(const Launch& launch, const F& f) {
  WithStripWay(launch, [&](auto way) { f(std::type_identity<DecodeStrip<decltype(way)>>()); });
}

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SLAB_DECODE_STRIP_CUH_
