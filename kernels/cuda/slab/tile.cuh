// Encoding and decoding of a tile share this: where the tile lies, its shared memory, and the
// Hadamard transform there.
//
// A tile is coded in phases. A phase is a function of the number of a thread; between two phases
// there is a barrier, and within one no thread reads what another writes. `Run` says how a phase
// runs: on the GPU each thread calls it for itself and then waits; the emulation calls it for all
// threads in turn.
//
// Where a recipe works on whole vectors, a tile also reads the rest of the vectors that its ends
// cut, and writes only its own octets.
#ifndef KVSTOW_KERNELS_CUDA_SLAB_TILE_CUH_
#define KVSTOW_KERNELS_CUDA_SLAB_TILE_CUH_

#include "kernels/cuda/slab/quantize.cuh"

namespace kvstow::gpu {

// Floats in shared memory: 8 are left out after every 64, so that threads that read with a stride
// of 64 meet different banks.
constexpr uint32_t Padded(uint32_t i) { return i + (i >> 6 << 3); }

constexpr size_t TableBytes() { return kTableFloats * sizeof(float) + kMaxDim / kOctet; }
constexpr size_t ValueBytes(const SlabPart& part) {
  return Padded(part.span_octets * kOctet) * sizeof(float);
}

// Names a tile of a slab.
struct TilePlace {
  uint32_t page = 0, layer = 0, part = 0;
  uint32_t tile = 0;            // of the slab
  uint32_t first = 0, end = 0;  // its octets within the slab
  uint32_t from = 0, to = 0;    // with the rest of their vectors
  KVSTOW_GPU uint32_t span() const { return to - from; }
};

// `tile` counts those of K, then those of V.
KVSTOW_GPU TilePlace PlaceOf(const PageLayout& layout, uint32_t page, uint32_t layer,
                             uint32_t tile) {
  TilePlace at;
  at.page = page;
  at.layer = layer;
  at.part = tile < layout.part[0].tiles ? 0 : 1;
  at.tile = at.part == 0 ? tile : tile - layout.part[0].tiles;
  const SlabPart& part = layout.part[at.part];
  at.first = at.tile * kTileOctets;
  at.end = std::min(at.first + kTileOctets, part.octets);
  at.from = at.first;
  at.to = at.end;
  if (part.span_octets > kTileOctets) {  // else tiles are whole vectors, or none are asked for
    at.from -= at.first % part.vector.by;
    at.to += (part.vector.by - at.end % part.vector.by) % part.vector.by;
  }
  return at;
}

class Tile {
 public:
  // `shared` has TableBytes(), then `values` floats.
  KVSTOW_GPU Tile(const Launch& launch, uint32_t page, uint32_t layer, uint32_t tile,
                  uint8_t* shared)
      : launch_(launch),
        at_(PlaceOf(launch.layout, page, layer, tile)),
        part_(launch.layout.part[at_.part]),
        table_(reinterpret_cast<float*>(shared)),
        signs_(shared + kTableFloats * sizeof(float)),
        x_(reinterpret_cast<float*>(shared + TableBytes())) {}

 protected:
  struct InVector {
    uint32_t vector, octet;  // the vector within the span, the octet within it
  };
  KVSTOW_GPU InVector VectorOf(uint32_t span_octet) const {
    const uint32_t vector = Divide(span_octet, part_.vector);
    return {vector, span_octet - vector * part_.vector.by};
  }

  // The scale of an octet of the span among those of the span, and the first of those in the slab.
  KVSTOW_GPU uint32_t ScaleInSpan(uint32_t span_octet) const {
    const InVector in = VectorOf(span_octet);
    if (part_.vector_scales == 1) return in.vector;
    return in.vector * part_.vector_scales + Divide(in.octet, part_.group);
  }
  KVSTOW_GPU size_t FirstScale() const {
    const uint32_t vector = part_.span_octets == kTileOctets ? at_.tile * part_.tile_vectors
                                                             : at_.from / part_.vector.by;
    return size_t{vector} * part_.vector_scales;
  }

  KVSTOW_GPU uint8_t* RawSlab() const {
    return launch_.page[at_.page].raw + at_.layer * launch_.layout.raw_layer_bytes +
           part_.raw_offset;
  }
  // The slab's body of a level.
  KVSTOW_GPU uint8_t* Body(uint32_t level) const {
    return launch_.page[at_.page].coded + launch_.layout.level_offset[level] +
           at_.layer * launch_.layout.layer_bytes[level] + part_.body_offset[level];
  }
  // The packed codes of an octet of the slab, `bits` bits each.
  template <Kind kind>
  KVSTOW_GPU uint8_t* CodeBytes(uint32_t level, uint32_t octet, uint32_t bits) const {
    const size_t halves = level == 0 ? part_.scales : 0;
    return Body(level) + (kind == Kind::kAffine ? 4 : 2) * halves + size_t{octet} * bits;
  }
  KVSTOW_GPU void Refuse() const { launch_.refused[at_.page] = 1; }

  // Phase: the constants that threads read at random.
  KVSTOW_GPU void LoadTables(uint32_t thread) const {
    if (thread < kTableFloats) table_[thread] = part_.table[thread];
    if (thread < kMaxDim / kOctet) signs_[thread] = launch_.ops.signs[thread];
  }

  KVSTOW_GPU void PutValues(uint32_t span_octet, const float* x) const {
    StoreFloats(x, x_ + Padded(span_octet * kOctet));
  }
  KVSTOW_GPU void GetValues(uint32_t span_octet, float* x) const {
    LoadFloats(x_ + Padded(span_octet * kOctet), x);
  }

  // The first stages of the transform, within an octet that is still in registers.
  KVSTOW_GPU void RotateOctet(uint32_t octet_of_vector, float* x) const {
    Butterflies(kOctet, x);
    if (BlockOf(octet_of_vector).octets > 1) return;
    for (uint32_t j = 0; j < kOctet; ++j) x[j] *= launch_.ops.hadamard_scale[3];
  }

  // Phases: the stages of strides 8, 16, 32; then 64, 128, 256; then 512.
  template <typename Run>
  KVSTOW_GPU void RotateSpan(const Run& run) const {
    for (uint32_t log2 = 3; (1u << log2) < part_.hadamard[0].octets * kOctet; log2 += 3) {
      run([&](uint32_t thread) { RotateStrides(thread, log2); });
    }
  }

  const Launch& launch_;
  const TilePlace at_;
  const SlabPart& part_;
  float* const table_;
  uint8_t* const signs_;
  float* const x_;

 private:
  KVSTOW_GPU HadamardBlock BlockOf(uint32_t octet_of_vector) const {
    uint32_t i = 0;
    while (octet_of_vector >= part_.hadamard[i].first + part_.hadamard[i].octets) ++i;
    return part_.hadamard[i];
  }

  // Strides 2^log2 and up to twice more. Each thread takes as many values as an octet has.
  KVSTOW_GPU void RotateStrides(uint32_t thread, uint32_t log2) const {
    for (uint32_t o = thread; o < at_.span(); o += kThreads) {
      const InVector in = VectorOf(o);
      const HadamardBlock block = BlockOf(in.octet);
      const uint32_t place = in.octet - block.first;
      switch (std::min(block.log2 + 3u, log2 + 3) - log2) {
        case 3:
          Radix<8>(o - place, place, block, log2);
          break;
        case 2:
          Radix<4>(o - place, place, block, log2);
          break;
        case 1:
          Radix<2>(o - place, place, block, log2);
          break;
        default:
          break;  // a block that is too small for these strides, and done
      }
    }
  }

  // The share of thread `place` of the block's threads.
  template <uint32_t radix>
  KVSTOW_GPU void Radix(uint32_t first_octet, uint32_t place, HadamardBlock block,
                        uint32_t log2) const {
    const bool last = (block.octets * kOctet) >> log2 == radix;
    const float scale = last ? launch_.ops.hadamard_scale[block.log2 + 3] : 1.0f;
    for (uint32_t turn = 0; turn < kOctet / radix; ++turn) {
      const uint32_t group = place + turn * block.octets;
      const uint32_t begin =
          first_octet * kOctet + ((group >> log2) * radix << log2) + (group & ((1u << log2) - 1));
      float v[kOctet] = {};
      for (uint32_t k = 0; k < radix; ++k) v[k] = x_[Padded(begin + (k << log2))];
      Butterflies(radix, v);
      for (uint32_t k = 0; k < radix; ++k) {
        x_[Padded(begin + (k << log2))] = last ? v[k] * scale : v[k];
      }
    }
  }
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_CUDA_SLAB_TILE_CUH_
