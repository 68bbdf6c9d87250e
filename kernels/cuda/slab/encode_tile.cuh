// Encoding: one tile from raw bytes to the bodies of all levels in one pass over memory, and the
// partial sums of squares from which a level's gain is made.
//
// Refuses the page where the CPU's codec would keep it exactly: NaN, Inf, scales beyond fp16.
#ifndef KVSTOW_KERNELS_CUDA_SLAB_ENCODE_TILE_CUH_
#define KVSTOW_KERNELS_CUDA_SLAB_ENCODE_TILE_CUH_

#include "kernels/cuda/slab/column_scales.cuh"
#include "kernels/cuda/slab/partial_sums.cuh"
#include "kernels/cuda/slab/statistics.cuh"
#include "kernels/cuda/slab/tile.cuh"

namespace kvstow::gpu {

// Shared memory after the tables and values: errors, statistics, scales.
constexpr size_t EncodeSharedBytes(const SlabPart& part) {
  const size_t scales = part.columns ? 0 : part.span_octets / part.vector.by * part.vector_scales;
  return TableBytes() + ValueBytes(part) + kTileValues * sizeof(float) + StatisticsBytes(part) +
         scales * sizeof(Scale);
}

template <Kind kind>
class EncodeTile : public Tile {
 public:
  // `shared` has EncodeSharedBytes of the part, aligned to 16.
  KVSTOW_GPU EncodeTile(const Launch& launch, uint32_t page, uint32_t layer, uint32_t tile,
                        uint8_t* shared)
      : Tile(launch, page, layer, tile, shared),
        error_(x_ + Padded(part_.span_octets * kOctet)),
        statistics_(error_ + kTileValues, part_.span_octets),
        scales_(reinterpret_cast<Scale*>(reinterpret_cast<uint8_t*>(error_ + kTileValues) +
                                         StatisticsBytes(part_))) {}

  template <typename Run>
  KVSTOW_GPU void Code(const Run& run) const {
    const SlabOps& ops = launch_.ops;
    run([&](uint32_t thread) { LoadTables(thread); });
    run([&](uint32_t thread) { Load(thread); });
    if (ops.rotated) {
      RotateSpan(run);
      run([&](uint32_t thread) { Measure(thread); });
    }
    if (kind == Kind::kCodebook) run([&](uint32_t thread) { SumLanes(thread); });
    if (!part_.columns) run([&](uint32_t thread) { MakeScales(thread); });
    run([&](uint32_t thread) { Put(thread, 0); });
    for (uint32_t level = 0; level < ops.levels && launch_.partials != nullptr; ++level) {
      if (level > 0) run([&](uint32_t thread) { Put(thread, level); });
      run([&](uint32_t thread) { SumSquares(thread, level); });
    }
  }

 private:
  KVSTOW_GPU void Load(uint32_t thread) const {
    const uint8_t* const raw = RawSlab();
    bool finite = true;
    for (uint32_t o = thread; o < at_.span(); o += kThreads) {
      float x[kOctet];
      finite &=
          RawToFloats(LoadWords(raw + size_t{at_.from + o} * kOctetBytes), launch_.ops.bf16, x);
      if (launch_.ops.rotated) {
        const uint32_t octet = VectorOf(o).octet;
        FlipSigns(signs_[octet], x);
        RotateOctet(octet, x);
      } else {
        statistics_.PutOctet(o, x);
      }
      PutValues(o, x);
    }
    if (!finite) Refuse();
  }

  KVSTOW_GPU void Measure(uint32_t thread) const {
    for (uint32_t o = thread; o < at_.span() && kind != Kind::kCodebook; o += kThreads) {
      statistics_.PutOctet(o, x_ + Padded(o * kOctet));
    }
  }

  KVSTOW_GPU void SumLanes(uint32_t thread) const {
    const uint32_t lanes = Divide(at_.span(), part_.vector) * kOctet;
    for (uint32_t i = thread; i < lanes; i += kThreads) {
      const uint32_t begin = i / kOctet * part_.dim + i % kOctet;
      statistics_.PutLane(i, part_.dim, [&](uint32_t c) { return x_[Padded(begin + c)]; });
    }
  }

  KVSTOW_GPU void MakeScales(uint32_t thread) const {
    const uint32_t count = Divide(at_.span(), part_.vector) * part_.vector_scales;
    for (uint32_t i = thread; i < count; i += kThreads) {
      const uint32_t vector = i / part_.vector_scales, group = i % part_.vector_scales;
      const uint32_t first = group * part_.group.by;
      const uint32_t octets = std::min(part_.group.by, part_.vector.by - first);
      const uint32_t begin = vector * part_.vector.by + first;
      const Halves halves = statistics_.HalvesOf(vector, begin, octets, launch_.ops.total_bits);
      if (!Finite(halves)) Refuse();
      scales_[i] = ScaleOf<kind>(halves, part_, launch_.ops.total_bits);
      // The tile before writes a group that this tile's beginning cuts.
      const uint32_t octet = at_.from + begin;
      if (octet < at_.first || octet >= at_.end) continue;
      const size_t index = FirstScale() + i;
      WriteHalf(halves.first, Body(0) + 2 * index);
      if (kind == Kind::kAffine) WriteHalf(halves.minimum, Body(0) + 2 * (part_.scales + index));
    }
  }

  // The scale of value j of octet o of the tile; ColumnScales has written those of columns.
  template <bool columns>
  KVSTOW_GPU Scale ScaleAt(uint32_t o, uint32_t j) const {
    if (!columns) return scales_[ScaleInSpan(at_.first - at_.from + o)];
    return ScaleOf<kind>(ColumnHalves(part_, Body(0), at_.first + o, j), part_,
                         launch_.ops.total_bits);
  }

  // Calls f(columns, bits of a code), as constants where that makes faster code.
  template <typename F>
  KVSTOW_GPU void WithConstants(const F& f) const {
    const bool columns = kind == Kind::kAffine && part_.columns;
    WithBits(launch_.ops.total_bits, [&](auto bits) {
      if (columns) f(std::true_type(), bits);
      if (!columns) f(std::false_type(), bits);
    });
  }

  template <bool columns, typename Bits>
  KVSTOW_GPU void CodesAt(uint32_t o, Bits bits, float* x, uint32_t* codes) const {
    GetValues(at_.first - at_.from + o, x);
    Scale scale = ScaleAt<columns>(o, 0);
    for (uint32_t j = 0; j < kOctet; ++j) {
      if (columns) scale = ScaleAt<columns>(o, j);
      codes[j] = CodeOf<kind>(x[j], scale, table_, bits);
    }
  }

  // Writes the codes (at level 0), and what is lost when only the levels up to `level` are there.
  KVSTOW_GPU void Put(uint32_t thread, uint32_t level) const {
    WithConstants([&](auto columns, auto bits) {
      for (uint32_t o = thread; o < at_.end - at_.first; o += kThreads) {
        uint32_t codes[kOctet];
        float x[kOctet];
        CodesAt<columns>(o, bits, x, codes);
        if (level == 0 && launch_.ops.levels == 1) {
          StoreBytes(Pack(codes, bits), bits, CodeBytes<kind>(0, at_.first + o, bits));
        } else if (level == 0) {
          PutLevels(o, codes);
        }
        if (launch_.partials != nullptr) PutErrors<columns>(o, bits, codes, x, level);
      }
    });
  }

  KVSTOW_GPU void PutLevels(uint32_t o, const uint32_t* codes) const {
    uint32_t below = launch_.ops.total_bits;
    for (uint32_t level = 0; level < launch_.ops.levels; ++level) {
      const uint32_t bits = launch_.ops.bits[level];
      below -= bits;
      uint32_t part[kOctet];
      for (uint32_t j = 0; j < kOctet; ++j) part[j] = codes[j] >> below & ((1u << bits) - 1);
      StoreBytes(Pack(part, bits), bits, CodeBytes<kind>(level, at_.first + o, bits));
    }
  }

  template <bool columns, typename Bits>
  KVSTOW_GPU void PutErrors(uint32_t o, Bits bits, uint32_t* codes, const float* x,
                            uint32_t level) const {
    uint32_t there = bits;
    for (uint32_t l = launch_.ops.levels - 1; l > level; --l) there -= launch_.ops.bits[l];
    Scale scale = ScaleAt<columns>(o, 0);
    float error[kOctet];
    for (uint32_t j = 0; j < kOctet; ++j) {
      if (columns) scale = ScaleAt<columns>(o, j);
      error[j] = x[j] - ValueOf<kind>(codes[j] >> (bits - there), scale, table_, there);
    }
    StoreFloats(error, error_ + o * kOctet);
  }

  // Sums the squares of the values (with level 0) and of the errors.
  KVSTOW_GPU void SumSquares(uint32_t thread, uint32_t level) const {
    const uint32_t values = (at_.end - at_.first) * kOctet;
    const uint32_t blocks = (at_.end - at_.first + kBlockOctets - 1) / kBlockOctets;
    const uint32_t sums = level == 0 ? 2 : 1;
    for (uint32_t i = thread; i < blocks * sums * kSums; i += kThreads) {
      const uint32_t block = i / kSums / sums, begin = block * kBlockOctets * kOctet;
      const uint32_t count = std::min(kBlockOctets * kOctet, values - begin);
      const bool energy = level == 0 && i / kSums % sums == 0;
      const uint32_t x_begin = (at_.first - at_.from) * kOctet + begin;
      const uint32_t error_begin = Padded(part_.span_octets * kOctet) + begin;
      const float sum = PartialSum(count, i % kSums, [&](uint32_t k) {
        return x_[energy ? Padded(x_begin + k) : error_begin + k];
      });
      Partials(launch_, at_, energy ? 0 : level + 1)[block * kSums + i % kSums] = sum;
    }
  }

  float* const error_;
  const Statistics<kind> statistics_;
  Scale* const scales_;
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SLAB_ENCODE_TILE_CUH_
