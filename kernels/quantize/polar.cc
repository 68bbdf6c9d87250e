#include "kernels/quantize/polar.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/status_macros.h"
#include "kernels/entropy/bit_pack.h"
#include "kernels/page/convert.h"
#include "kernels/page/half.h"

namespace kvstow {
namespace {

constexpr uint32_t kBlock = 16, kFirst = 8, kLater = 7;  // values and codes of a block

// The first quadrant: borders of its four sectors as tangents, cosines of their middles. The
// sine of an entry is the cosine of its mirror image about pi / 4.
struct Quadrant {
  std::array<float, 3> borders;
  std::array<float, 4> cosines;
};
constexpr Quadrant kSectors = {{0.4142136f, 1.0f, 2.4142136f},
                               {0.9807853f, 0.8314696f, 0.5555702f, 0.1950903f}};
constexpr std::array<Quadrant, 3> kLevels = {
    {{{0.510318f, 1.0f, 1.959561f}, {0.952408f, 0.805676f, 0.592356f, 0.304826f}},
     {{0.613542f, 1.0f, 1.629880f}, {0.910523f, 0.781091f, 0.624417f, 0.413459f}},
     {{0.706480f, 1.0f, 1.415468f}, {0.865718f, 0.761022f, 0.648726f, 0.500533f}}}};

// Returns the entry of the angle of (x, y). Both are 0 or more.
uint8_t EntryOf(const Quadrant& q, float x, float y) {
  uint8_t entry = 0;
  for (const float border : q.borders) entry += y > x * border ? 1 : 0;
  return entry;
}

uint8_t SectorOf(float x, float y) {
  const uint8_t entry = EntryOf(kSectors, std::abs(x), std::abs(y));
  if (y >= 0) return x >= 0 ? entry : 7 - entry;
  return x < 0 ? 8 + entry : 15 - entry;
}

// Turns radius r at `sector` back into a pair.
void FromSector(uint8_t sector, float r, float* x, float* y) {
  const uint8_t entry = sector & 4 ? 3 - (sector & 3) : sector & 3;
  *x = (sector >= 4 && sector < 12 ? -r : r) * kSectors.cosines[entry];
  *y = (sector >= 8 ? -r : r) * kSectors.cosines[3 - entry];
}

float Radius(float x, float y) { return std::sqrt(x * x + y * y); }

// Codes of the block `x` of 16 values; its radius.
float EncodeBlock(const float* x, uint8_t* first, uint8_t* later) {
  std::array<float, kFirst> r;
  for (uint32_t i = 0; i < kFirst; ++i) {
    first[i] = SectorOf(x[2 * i], x[2 * i + 1]);
    r[i] = Radius(x[2 * i], x[2 * i + 1]);
  }
  uint32_t pairs = kFirst / 2;
  for (const Quadrant& level : kLevels) {
    for (uint32_t i = 0; i < pairs; ++i) {
      *later++ = EntryOf(level, r[2 * i], r[2 * i + 1]);
      r[i] = Radius(r[2 * i], r[2 * i + 1]);
    }
    pairs /= 2;
  }
  return r[0];
}

void DecodeBlock(float radius, const uint8_t* first, const uint8_t* later, float* x) {
  std::array<float, kFirst> r{radius};
  later += kLater;
  for (uint32_t level = kLevels.size(); level-- > 0;) {
    const uint32_t pairs = 4u >> level;
    later -= pairs;
    for (uint32_t i = pairs; i-- > 0;) {
      const float whole = r[i];
      r[2 * i] = whole * kLevels[level].cosines[later[i]];
      r[2 * i + 1] = whole * kLevels[level].cosines[3 - later[i]];
    }
  }
  for (uint32_t i = 0; i < kFirst; ++i) FromSector(first[i], r[i], &x[2 * i], &x[2 * i + 1]);
}

class Polar final : public Quantizer {
 public:
  uint32_t levels() const override { return 1; }

  size_t LevelBytes(const SlabShape& shape, uint32_t) const override {
    const size_t blocks = Blocks(shape);
    return 2 * blocks + PackedBytes(blocks * kFirst, 4) + PackedBytes(blocks * kLater, 2);
  }

  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const override {
    const SlabShape& shape = tile.slab;
    const size_t blocks = Blocks(shape);
    std::vector<float> radii(blocks);
    std::vector<uint8_t> first(blocks * kFirst), later(blocks * kLater);
    std::array<float, kBlock> block;
    for (size_t b = 0; b < blocks; ++b) {
      const auto [from, count] = PlaceOf(shape, b);
      block.fill(0);
      std::copy_n(values + from, count, block.begin());
      const uint16_t half =
          FloatToHalf(EncodeBlock(block.data(), &first[b * kFirst], &later[b * kLater]));
      if (!IsFiniteHalf(half)) return false;
      radii[b] = HalfToFloat(half);
    }
    uint8_t* const out = bodies[0];
    StoreHalves(radii.data(), blocks, out);
    PackBits(first.data(), first.size(), 4, out + 2 * blocks);
    PackBits(later.data(), later.size(), 2, out + 2 * blocks + PackedBytes(first.size(), 4));
    return true;
  }

  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    const SlabShape& shape = tile.slab;
    const size_t blocks = Blocks(shape);
    const uint8_t* const in = bodies[0];
    std::vector<float> radii(blocks);
    std::vector<uint8_t> first(blocks * kFirst), later(blocks * kLater);
    if (!LoadHalves(in, blocks, radii.data())) return false;
    UnpackBits(in + 2 * blocks, first.size(), 4, first.data());
    UnpackBits(in + 2 * blocks + PackedBytes(first.size(), 4), later.size(), 2, later.data());
    std::array<float, kBlock> block;
    for (size_t b = 0; b < blocks; ++b) {
      const auto [from, count] = PlaceOf(shape, b);
      DecodeBlock(radii[b], &first[b * kFirst], &later[b * kLater], block.data());
      std::copy_n(block.begin(), count, values + from);
    }
    return true;
  }

 private:
  static size_t BlocksAVector(const SlabShape& shape) { return (shape.dim + kBlock - 1) / kBlock; }
  static size_t Blocks(const SlabShape& shape) { return shape.vectors() * BlocksAVector(shape); }
  // The first value of a block, and how many it has.
  static std::pair<size_t, size_t> PlaceOf(const SlabShape& shape, size_t block) {
    const size_t vector = block / BlocksAVector(shape);
    const size_t channel = block % BlocksAVector(shape) * kBlock;
    return {vector * shape.dim + channel, std::min<size_t>(kBlock, shape.dim - channel)};
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Quantizer>> MakePolar(const OpArguments& arguments) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({}));
  return std::make_unique<Polar>();
}

}  // namespace kvstow
