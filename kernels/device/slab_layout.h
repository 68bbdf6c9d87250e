// The GPU's view of a recipe and of pages: plain numbers, which slab_plan.h makes on the CPU, and
// which kernels take by value.
//
// These files use three words. An *octet* is 8 consecutive values of a slab (16 bytes of raw page):
// all of one vector and of one group of the quantizer, and whole bytes of packed codes. A *tile* is
// kTileOctets consecutive octets: what one thread block codes. A *block* is the 1,024 values over
// which squared_error.h keeps its partial sums.
//
// A coded page, as the GPU reads and writes it: level after level, within a level layer after
// layer, K and then V: the bodies of SlabRunCodec. So a segment is a part of it, and a page with
// fewer levels is its beginning.
//
// Values; no ownership; the pointers are of device memory (of the host's in the emulation that
// tests use).
#ifndef KVSTOW_KERNELS_DEVICE_SLAB_LAYOUT_H_
#define KVSTOW_KERNELS_DEVICE_SLAB_LAYOUT_H_

#include <cstddef>
#include <cstdint>

namespace kvstow::gpu {

inline constexpr uint32_t kOctet = 8;
inline constexpr uint32_t kOctetBytes = 16;
inline constexpr uint32_t kThreads = 256;  // of a thread block
inline constexpr uint32_t kTileOctets = 256;
inline constexpr uint32_t kTileValues = kTileOctets * kOctet;
inline constexpr uint32_t kBlockOctets = 128;
inline constexpr uint32_t kSums = 16;  // partial sums of a block
inline constexpr uint32_t kMaxLevels = 8;
inline constexpr uint32_t kMinDim = 16, kMaxDim = 1024;
inline constexpr uint32_t kPagesALaunch = 64;
inline constexpr uint32_t kTableFloats = 32;

enum class Kind : uint8_t { kAffine, kCodebook, kLevels, kMinifloat };

// Division of small numbers by a constant.
struct Divisor {
  uint32_t by = 1, multiplier = 1u << 20;
};
constexpr Divisor DivisorOf(uint32_t by) { return {by, ((1u << 20) + by - 1) / by}; }
// Exact for n < 1024 and divisors up to 128: the multiplier is off by less than one part in 2^20 /
// by.
constexpr uint32_t Divide(uint32_t n, Divisor d) { return n * d.multiplier >> 20; }

// The recipe: a rotation or none, then a quantizer.
struct SlabOps {
  Kind kind = Kind::kAffine;
  bool rotated = false;
  bool bf16 = false;  // else F16
  uint8_t levels = 1;
  uint8_t total_bits = 8;
  uint8_t bits[kMaxLevels] = {};
  uint8_t signs[kMaxDim / kOctet] = {};  // bit j of octet k: channel 8 k + j changes its sign
  float hadamard_scale[11] = {};         // of 2^i values
};

// One block of the Hadamard transform of a vector: `octets` = 2^log2 of them from `first` on.
struct HadamardBlock {
  uint8_t first = 0, octets = 0, log2 = 0;
};

// K or V of one layer of a page of some number of tokens.
struct SlabPart {
  uint32_t dim = 0, tokens = 0, octets = 0, tiles = 0, blocks = 0;
  uint32_t scales = 0;        // groups of affine, vectors of the others
  uint32_t row_octets = 0;    // of a token
  uint32_t span_octets = 0;   // the most that a tile and the rest of its vectors have
  uint32_t tile_vectors = 0;  // where a tile has whole vectors
  Divisor vector;             // octets of a vector
  HadamardBlock hadamard[8];
  // Affine only: groups of consecutive tokens of one channel, or of channels of one vector.
  bool columns = false;
  uint32_t group_tokens = 1;
  Divisor group;               // octets of a group within a vector
  uint32_t vector_scales = 1;  // groups of a vector
  float root = 1;              // sqrt(dim)
  // Codebook: the middles between entries, in ascending order, and from kEntries on the entries.
  // Levels: centroids from 0 outwards of 1, 2, 3, 4 bits, then the outermost of 5, 6, 7, 8.
  float table[kTableFloats] = {};
  size_t raw_offset = 0;                // within the raw bytes of a layer
  size_t body_offset[kMaxLevels] = {};  // within a layer's body of that level
};
inline constexpr uint32_t kEntries = 16, kOutermost = 15;

// The facts that all pages of one length share.
struct PageLayout {
  uint32_t layers = 0, parts = 0, tokens = 0;
  SlabPart part[2];
  size_t raw_layer_bytes = 0;
  size_t layer_bytes[kMaxLevels] = {};
  size_t level_offset[kMaxLevels + 1] = {};  // within the coded page; the last is its size

  constexpr uint32_t layer_tiles() const { return part[0].tiles + (parts > 1 ? part[1].tiles : 0); }
  constexpr uint32_t slabs() const { return layers * parts; }
  // Counts a layer's sums: each slab's energy and its error after each level, kSums a block.
  constexpr size_t layer_partials(uint32_t levels) const {
    const size_t blocks = part[0].blocks + (parts > 1 ? part[1].blocks : 0);
    return blocks * (levels + 1) * kSums;
  }
};

// One launch: up to kPagesALaunch pages of one number of tokens. Both of a page are aligned to 16.
struct PagePointers {
  uint8_t* raw = nullptr;
  uint8_t* coded = nullptr;
};
struct Launch {
  SlabOps ops;
  PageLayout layout;
  uint32_t pages = 0;
  uint32_t levels = 0;          // decoding: the first that many are there
  uint32_t* refused = nullptr;  // [pages]: set to 1 when a page cannot be coded, or is damaged
  // Encoding: partials of squared sums, [pages, layers * layer_partials], and what they add up to,
  // [pages, slabs, levels + 1]. Null when nobody asks for the error.
  float* partials = nullptr;
  double* totals = nullptr;
  PagePointers page[kPagesALaunch];
};
static_assert(sizeof(Launch) <= 4096, "a kernel's arguments");

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_DEVICE_SLAB_LAYOUT_H_
