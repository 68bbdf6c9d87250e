// Decoding: one tile from the bodies of the leading levels to raw bytes in one pass over memory.
//
// Refuses the page where the CPU's codec finds it damaged: a scale or a code that no page has.
#ifndef KVSTOW_KERNELS_CUDA_SLAB_DECODE_TILE_CUH_
#define KVSTOW_KERNELS_CUDA_SLAB_DECODE_TILE_CUH_

#include "kernels/cuda/slab/column_scales.cuh"
#include "kernels/cuda/slab/tile.cuh"

namespace kvstow::gpu {

constexpr size_t DecodeSharedBytes(const SlabPart& part, bool rotated) {
  return TableBytes() + (rotated ? ValueBytes(part) : 0);
}

template <Kind kind>
class DecodeTile : public Tile {
 public:
  // `shared` has DecodeSharedBytes of the part, aligned to 16.
  KVSTOW_GPU DecodeTile(const Launch& launch, uint32_t page, uint32_t layer, uint32_t tile,
                        uint8_t* shared)
      : Tile(launch, page, layer, tile, shared) {}

  template <typename Run>
  KVSTOW_GPU void Code(const Run& run) const {
    run([&](uint32_t thread) { LoadTables(thread); });
    if (!launch_.ops.rotated) {
      run([&](uint32_t thread) { Dequantize(thread); });
      return;
    }
    run([&](uint32_t thread) { DequantizeSpan(thread); });
    RotateSpan(run);
    run([&](uint32_t thread) { PutRaw(thread); });
  }

 private:
  KVSTOW_GPU void Dequantize(uint32_t thread) const {
    for (uint32_t o = at_.first + thread; o < at_.end; o += kThreads) {
      float x[kOctet];
      ReadOctet(o, x);
      Write(o, x);
    }
  }

  KVSTOW_GPU void DequantizeSpan(uint32_t thread) const {
    for (uint32_t o = thread; o < at_.span(); o += kThreads) {
      float x[kOctet];
      ReadOctet(at_.from + o, x);
      RotateOctet(VectorOf(o).octet, x);
      PutValues(o, x);
    }
  }

  KVSTOW_GPU void PutRaw(uint32_t thread) const {
    for (uint32_t o = at_.first + thread; o < at_.end; o += kThreads) {
      float x[kOctet];
      GetValues(o - at_.from, x);
      FlipSigns(signs_[VectorOf(o - at_.from).octet], x);
      Write(o, x);
    }
  }

  KVSTOW_GPU void Write(uint32_t octet, const float* x) const {
    StoreWords(FloatsToRaw(x, launch_.ops.bf16), RawSlab() + size_t{octet} * kOctetBytes);
  }

  // The values of an octet of the slab.
  KVSTOW_GPU void ReadOctet(uint32_t octet, float* x) const {
    const uint32_t bits = launch_.ops.bits[0];
    if (launch_.levels > 1) return ReadLevels(octet, x);
    WithBits(bits, [&](auto constant) {
      uint32_t codes[kOctet];
      Unpack(LoadBytes(CodeBytes<kind>(0, octet, constant), constant), constant, codes);
      Values(octet, codes, constant, x);
    });
  }

  KVSTOW_GPU void ReadLevels(uint32_t octet, float* x) const {
    uint32_t codes[kOctet] = {}, all = 0;
    for (uint32_t level = 0; level < launch_.levels; ++level) {
      const uint32_t bits = launch_.ops.bits[level];
      uint32_t part[kOctet];
      Unpack(LoadBytes(CodeBytes<kind>(level, octet, bits), bits), bits, part);
      for (uint32_t j = 0; j < kOctet; ++j) codes[j] = codes[j] << bits | part[j];
      all += bits;
    }
    Values(octet, codes, all, x);
  }

  template <typename Bits>
  KVSTOW_GPU void Values(uint32_t octet, const uint32_t* codes, Bits bits, float* x) const {
    const bool columns = kind == Kind::kAffine && part_.columns;
    Halves halves = columns ? Halves{} : HalvesAt(octet);
    bool sound = Finite(halves);
    Scale scale = ScaleOf<kind>(halves, part_, launch_.ops.total_bits);
    for (uint32_t j = 0; j < kOctet; ++j) {
      if (columns) {
        halves = ColumnHalves(part_, Body(0), octet, j);
        sound &= Finite(halves);
        scale = ScaleOf<kind>(halves, part_, launch_.ops.total_bits);
      }
      if (kind == Kind::kMinifloat) sound &= (codes[j] & 0x7f) != 0x7f;
      x[j] = ValueOf<kind>(codes[j], scale, table_, bits);
    }
    if (!sound) Refuse();
  }

  KVSTOW_GPU Halves HalvesAt(uint32_t octet) const {
    const uint8_t* const body = Body(0);
    const size_t index = FirstScale() + ScaleInSpan(octet - at_.from);
    if (kind != Kind::kAffine) return {ReadHalf(body + 2 * index), 0};
    return {ReadHalf(body + 2 * index), ReadHalf(body + 2 * (part_.scales + index))};
  }
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SLAB_DECODE_TILE_CUH_
