// Decoding a strip: see strip.cuh and decode_tile.cuh, which makes the same bytes.
#ifndef KVSTOW_KERNELS_CUDA_DECODE_STRIP_CUH_
#define KVSTOW_KERNELS_CUDA_DECODE_STRIP_CUH_

#include "kernels/cuda/column_scales.cuh"
#include "kernels/cuda/strip.cuh"
#include "kernels/cuda/wide_codes.cuh"

namespace kvstow::gpu {

// Shared memory of a warp.
constexpr size_t StripDecodeBytes() { return kTableFloats * sizeof(float); }

template <Kind kind, bool rotated>
class DecodeStrip : public Strip {
 public:
  struct State {
    float x[kOwn][kOctet];
  };

  // `shared` has StripDecodeBytes, aligned to 16.
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
    if (!IsThere(lane)) {
      KVSTOW_UNROLL
      for (uint32_t i = 0; i < kOwn * kOctet; ++i) state.x[i / kOctet][i % kOctet] = 0;
      return;
    }
    if (launch_.levels > 1) return ReadLevels(lane, state);
    WithBitsOf<kind>(launch_.ops.bits[0], [&](auto bits) {
      const uint8_t* const from = CodeBytes<kind>(0, InSlab(lane, 0), bits);
      uint64_t word[kOwn];
      KVSTOW_UNROLL
      for (uint32_t k = 0; k < kOwn; ++k) word[k] = LoadBytes(from + k * width_ * bits, bits);
      KVSTOW_UNROLL
      for (uint32_t k = 0; k < kOwn; ++k) {
        uint32_t wide[kOctet];
        UnpackWide(word[k], bits, WideBase(kind), wide);
        Values(lane, k, wide, bits, state);
      }
    });
  }

  KVSTOW_GPU void ReadLevels(uint32_t lane, State& state) const {
    KVSTOW_UNROLL
    for (uint32_t k = 0; k < kOwn; ++k) {
      uint32_t codes[kOctet] = {}, all = 0;
      for (uint32_t level = 0; level < launch_.levels; ++level) {
        WithWideBits(launch_.ops.bits[level], [&](auto bits) {
          uint32_t part[kOctet];
          const uint8_t* const from = CodeBytes<kind>(level, InSlab(lane, k), bits);
          UnpackWide(LoadBytes(from, bits), bits, 0, part);
          KVSTOW_UNROLL
          for (uint32_t j = 0; j < kOctet; ++j) codes[j] = codes[j] << bits | part[j];
        });
        all += launch_.ops.bits[level];
      }
      KVSTOW_UNROLL
      for (uint32_t j = 0; j < kOctet; ++j) codes[j] |= WideBase(kind);
      if (all == 8) {
        Values(lane, k, codes, std::integral_constant<uint32_t, 8>(), state);
      } else {
        Values(lane, k, codes, all, state);
      }
    }
  }

  // The values of octet k of the lane.
  template <typename Bits>
  KVSTOW_GPU void Values(uint32_t lane, uint32_t k, const uint32_t* wide, Bits bits,
                         State& state) const {
    bool sound = true;
    if (kind == Kind::kAffine && part_.columns) {
      Halves halves[kOctet];
      OctetHalves(part_, Body(0), InSlab(lane, k), halves);
      KVSTOW_UNROLL
      for (uint32_t j = 0; j < kOctet; ++j) {
        sound &= Finite(halves[j]);
        const Scale scale = ScaleOf<kind>(halves[j], part_, launch_.ops.total_bits);
        state.x[k][j] = WideValueOf<kind>(wide[j], scale, table_, bits);
      }
    } else {
      const Halves halves = HalvesAt(ScaleIndex(lane, k));
      sound = Finite(halves);
      const Scale scale = ScaleOf<kind>(halves, part_, launch_.ops.total_bits);
      KVSTOW_UNROLL
      for (uint32_t j = 0; j < kOctet; ++j) {
        if (kind == Kind::kMinifloat) sound &= (wide[j] & 0x7f) != 0x7f;
        state.x[k][j] = WideValueOf<kind>(wide[j], scale, table_, bits);
      }
    }
    if (!sound) Refuse();
  }

  KVSTOW_GPU Halves HalvesAt(size_t index) const {
    const uint8_t* const body = Body(0);
    if (kind != Kind::kAffine) return {ReadHalf(body + 2 * index), 0};
    return {ReadHalf(body + 2 * index), ReadHalf(body + 2 * (part_.scales + index))};
  }

  KVSTOW_GPU void PutRaw(uint32_t lane, const State& state) const {
    if (!IsThere(lane)) return;
    uint8_t* const to = RawSlab() + size_t{InSlab(lane, 0)} * kOctetBytes;
    KVSTOW_UNROLL
    for (uint32_t k = 0; k < kOwn; ++k) {
      Words raw = FloatsToRaw(state.x[k], launch_.ops.bf16);
      if (rotated) FlipSigns(launch_.ops.signs[InVector(lane, k)], &raw);
      StoreWords(raw, to + k * width_ * kOctetBytes);
    }
  }
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_DECODE_STRIP_CUH_
