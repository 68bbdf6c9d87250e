// The fast way of coding a slab: a warp codes a *strip*, the 1,024 values of one block of
// squared_error.h, and keeps them in registers. tile.cuh is the way for all other shapes.
//
// A strip has whole vectors of 4 * 2^n octets. The `width` = 2^n lanes of a vector take four octets
// each: lane i takes octets i, i + width, i + 2 width and i + 3 width. Neighbouring lanes so read
// neighbouring memory; the first stages of a Hadamard transform beyond an octet are between lanes,
// and its last two within one.
//
// A strip is coded in steps. A step is a function of a lane and its State; `Run` says how it runs:
//
//   run.Each(step)             step(lane, state): what it writes to shared memory, the next step
//                              may read
//   run.Pairs(distance, step)  step(lane, state, other): other(f) is f(state) of lane ^ distance,
//                              as that state was before the step; the step calls it in the same
//                              order on all lanes, and changes what f reads only afterwards
//
// On the GPU a step is code of a warp, and `other` a shuffle; the emulation runs a step for one
// lane after the other.
#ifndef KVSTOW_KERNELS_CUDA_SLAB_STRIP_CUH_
#define KVSTOW_KERNELS_CUDA_SLAB_STRIP_CUH_

#include "kernels/cuda/slab/quantize.cuh"
#include "kernels/device/batches.h"

namespace kvstow::gpu {

inline constexpr uint32_t kLanes = 32;
inline constexpr uint32_t kOwn = kBlockOctets / kLanes, kLog2Own = 2;  // octets of a lane
static_assert(kOwn == 1u << kLog2Own);
inline constexpr uint32_t kMaxWidth = 8;  // head_dim 256: see Swizzled

// Whether strips can code the pages. The host asks before it starts kernels. Strips also want the
// codes of an octet aligned to their size, as they are but in the shortest pages.
inline bool InStrips(const PageLayout& layout, const SlabOps& ops) {
  constexpr uint32_t kAligned = 8;
  for (uint32_t level = 0; level < ops.levels; ++level) {
    if (layout.layer_bytes[level] % kAligned != 0) return false;
  }
  for (uint32_t p = 0; p < layout.parts; ++p) {
    const SlabPart& part = layout.part[p];
    const uint32_t width = part.vector.by / kOwn;
    if (part.vector.by % kOwn != 0 || (width & (width - 1)) != 0 || width > kMaxWidth) return false;
    for (uint32_t level = 0; level < ops.levels; ++level) {
      if (part.body_offset[level] % kAligned != 0) return false;
    }
    if (part.scales * 2 % kAligned != 0) return false;
    if (part.columns) continue;
    // A group is a whole number of the octets that lie `width` apart.
    if (kOwn % part.vector_scales != 0 || part.group.by * part.vector_scales != part.vector.by) {
      return false;
    }
  }
  return true;
}

// Whether a part has groups by channel, which take code of their own.
inline bool HasColumns(const PageLayout& layout) {
  return layout.part[0].columns || layout.part[1].columns;
}

// What strips have code of their own for. `bits` are those of all levels, or 0: any number.
template <Kind kind_value, uint32_t bits_value, bool rotated_value, bool columns_value>
struct StripWay {
  static constexpr Kind kind = kind_value;
  static constexpr uint32_t bits = bits_value;
  static constexpr bool rotated = rotated_value, columns = columns_value;
};

// Calls f(the StripWay of a launch).
template <Kind kind, uint32_t bits, typename F>
void WithWayOf(const Launch& launch, const F& f) {
  constexpr bool kMayHaveColumns = kind == Kind::kAffine;
  if (launch.ops.rotated) {
    f(StripWay<kind, bits, true, false>());
  } else if (kMayHaveColumns && HasColumns(launch.layout)) {
    f(StripWay<kind, bits, false, kMayHaveColumns>());
  } else {
    f(StripWay<kind, bits, false, false>());
  }
}
template <typename F>
void WithStripWay(const Launch& launch, const F& f) {
  WithKind(launch.ops.kind, [&](auto constant) {
    constexpr Kind kind = decltype(constant)::value;
    const uint32_t bits = launch.ops.total_bits;
    if constexpr (kind != Kind::kCodebook) {
      if (bits == 8) return WithWayOf<kind, 8>(launch, f);
    }
    if constexpr (kind == Kind::kAffine || kind == Kind::kCodebook) {
      if (bits == 4) return WithWayOf<kind, 4>(launch, f);
    }
    if constexpr (kind != Kind::kMinifloat) WithWayOf<kind, 0>(launch, f);
  });
}

// Names a strip of a slab.
struct StripPlace {
  uint32_t page = 0, layer = 0, part = 0, strip = 0;
};

// Shared memory in which rows of 8 pieces of 16 bytes are read at once, and single pieces written:
// pieces that lanes write together lie in different banks.
KVSTOW_GPU uint32_t Swizzled(uint32_t piece) {
  return piece ^ ((piece >> 3 ^ piece >> 5) & 1) ^ (piece >> 4 & 2) ^
         ((piece >> 2 ^ piece >> 4) & 4);
}
inline constexpr uint32_t kPiece = 4;  // floats

class Strip {
 public:
  // `shared` has kTableFloats floats, aligned to 16.
  KVSTOW_GPU Strip(const Launch& launch, const StripPlace& at, uint8_t* shared)
      : launch_(launch),
        at_(at),
        part_(launch.layout.part[at.part]),
        log2_(part_.hadamard[0].log2 - kLog2Own),
        width_(1u << log2_),
        table_(reinterpret_cast<float*>(shared)) {}

 protected:
  // The octet `k` of a lane: within its vector, within the strip, and within the slab.
  KVSTOW_GPU uint32_t InVector(uint32_t lane, uint32_t k) const {
    return (lane & (width_ - 1)) + k * width_;
  }
  KVSTOW_GPU uint32_t InStrip(uint32_t lane, uint32_t k) const {
    return (lane & ~(width_ - 1)) * kOwn + InVector(lane, k);
  }
  KVSTOW_GPU uint32_t InSlab(uint32_t lane, uint32_t k) const {
    return at_.strip * kBlockOctets + InStrip(lane, k);
  }
  // False for the lanes that the last strip of a slab leaves without a vector. They may read what
  // the lanes of the strip's first vector read.
  KVSTOW_GPU bool IsThere(uint32_t lane) const { return InSlab(lane, 0) < part_.octets; }
  KVSTOW_GPU uint32_t Reader(uint32_t lane) const {
    return IsThere(lane) ? lane : lane & (width_ - 1);
  }

  // The scale of octet k of a lane among those of the slab.
  KVSTOW_GPU size_t ScaleIndex(uint32_t lane, uint32_t k) const {
    const uint32_t vector = (at_.strip * kLanes + lane) >> log2_;
    return size_t{vector} * part_.vector_scales + (k >> TogetherLog2());
  }

  KVSTOW_GPU uint8_t* RawSlab() const {
    return launch_.page[at_.page].raw + at_.layer * launch_.layout.raw_layer_bytes +
           part_.raw_offset;
  }
  KVSTOW_GPU uint8_t* Body(uint32_t level) const {
    return launch_.page[at_.page].coded + launch_.layout.level_offset[level] +
           at_.layer * launch_.layout.layer_bytes[level] + part_.body_offset[level];
  }
  template <Kind kind>
  KVSTOW_GPU uint8_t* CodeBytes(uint32_t level, uint32_t octet, uint32_t bits) const {
    const size_t halves = level == 0 ? part_.scales : 0;
    return Body(level) + (kind == Kind::kAffine ? 4 : 2) * halves + size_t{octet} * bits;
  }
  // The binary logarithm of how many octets have one scale: of 4, 2 or 1 when a vector has 1, 2 or
  // 4 scales.
  KVSTOW_GPU uint32_t TogetherLog2() const { return kLog2Own - (part_.vector_scales >> 1); }
  // The bits of all levels.
  template <typename Way>
  KVSTOW_GPU uint32_t TotalBits() const {
    return Way::bits != 0 ? Way::bits : launch_.ops.total_bits;
  }
  KVSTOW_GPU void Refuse() const { launch_.refused[at_.page] = 1; }

  // Step: the constants that lanes read at random.
  KVSTOW_GPU void LoadTable(uint32_t lane) const {
    static_assert(kTableFloats == kLanes);
    table_[lane] = part_.table[lane];
  }

  // The Hadamard transform of all vectors of the strip.
  template <typename Run>
  KVSTOW_GPU void Rotate(const Run& run) const {
    run.Each([&](uint32_t, auto& state) {
      KVSTOW_UNROLL
      for (uint32_t k = 0; k < kOwn; ++k) Butterflies(kOctet, state.x[k]);
    });
    for (uint32_t distance = 1; distance < width_; distance *= 2) {
      run.Pairs(distance, [&](uint32_t lane, auto& state, const auto& other) {
        const float sign = (lane & distance) == 0 ? 1.0f : -1.0f;
        KVSTOW_UNROLL
        for (uint32_t i = 0; i < kOwn * kOctet; ++i) {
          float& x = state.x[i / kOctet][i % kOctet];
          const float y = other([i](const auto& s) { return s.x[i / kOctet][i % kOctet]; });
          x = SignedSum(y, sign, x);
        }
      });
    }
    run.Each([&](uint32_t, auto& state) { RotateOwn(&state.x[0][0]); });
  }

  const Launch& launch_;
  const StripPlace at_;
  const SlabPart& part_;
  const uint32_t log2_, width_;  // the lanes of a vector
  float* const table_;

 private:
  // The stages between the octets of a lane, and the factor.
  KVSTOW_GPU void RotateOwn(float* x) const {
    const float scale = launch_.ops.hadamard_scale[part_.hadamard[0].log2 + 3];
    KVSTOW_UNROLL
    for (uint32_t j = 0; j < kOctet; ++j) {
      float v[kOwn] = {x[j], x[kOctet + j], x[2 * kOctet + j], x[3 * kOctet + j]};
      Butterflies(kOwn, v);
      KVSTOW_UNROLL
      for (uint32_t k = 0; k < kOwn; ++k) x[k * kOctet + j] = v[k] * scale;
    }
  }
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SLAB_STRIP_CUH_
