#include "kernels/quantize/levels.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/entropy/bit_pack.h"
#include "kernels/page/convert.h"
#include "kernels/quantize/loops.h"
#include "kernels/quantize/tile_array.h"

namespace kvstow {
namespace {

constexpr uint32_t kMaxBits = 8;

// Centroids of the cells from 0 outwards, 2^(b-1) of them for b = 1..4, one after another.
constexpr float kInner[] = {0.297201f, 0.214719f, 0.673201f, 0.120330f, 0.361082f,
                            0.602105f, 0.878808f, 0.061909f, 0.185728f, 0.309549f,
                            0.433374f, 0.557204f, 0.681041f, 0.804886f, 0.963113f};
constexpr uint32_t kTabulatedBits = 4;
// The outermost cell of b = 5..8.
constexpr float kOutermost[] = {0.990014f, 0.997427f, 0.999349f, 0.999836f};

// The `bits` bits above the `below` lowest of each code.
void TakeBits(const uint8_t* codes, size_t count, uint32_t below, uint32_t bits, uint8_t* part) {
  const auto mask = static_cast<uint8_t>((1u << bits) - 1);
  for (size_t i = 0; i < count; ++i) part[i] = static_cast<uint8_t>(codes[i] >> below) & mask;
}

// Appends `bits` bits to each code.
void AppendBits(const uint8_t* part, size_t count, uint32_t bits, uint8_t* codes) {
  for (size_t i = 0; i < count; ++i) codes[i] = static_cast<uint8_t>(codes[i] << bits | part[i]);
}

class Levels final : public Quantizer {
 public:
  explicit Levels(std::vector<uint32_t> bits) : bits_(std::move(bits)) {
    for (const uint32_t b : bits_) {
      total_ += b;
      centroids_.push_back(LevelCentroids(total_));
    }
  }

  uint32_t levels() const override { return static_cast<uint32_t>(bits_.size()); }
  size_t LevelBytes(const SlabShape& shape, uint32_t level) const override {
    return (level == 0 ? ScaleBytes(shape) : 0) + PackedBytes(shape.values(), bits_[level]);
  }
  std::vector<BodyPart> Parts(const SlabShape& shape, uint32_t level) const override {
    const BodyPart codes{bits_[level] * (shape.values() / shape.tokens)};
    if (level > 0) return {codes};
    return {{uint64_t{16} * shape.heads}, codes};
  }

  uint32_t TileTokens(const SlabShape&) const override { return 1; }

  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const override {
    FloatArray tops(tile.vectors());
    CodeArray codes(tile.values());
    if (!MagnitudeLoops::Best().tops(values, tops.size(), tile.slab.dim, tops.data())) return false;
    LevelLoops::Best().encode(values, tops.size(), tile.slab.dim, tops.data(), total_,
                              codes.data());
    StoreHalves(tops.data(), tops.size(), bodies[0] + 2 * tile.first_vector());
    CodeArray part(levels() > 1 ? codes.size() : 0);
    uint32_t below = total_;
    for (uint32_t level = 0; level < levels(); ++level) {
      below -= bits_[level];
      uint8_t* const packed = bodies[level] + CodesAt(tile, level);
      if (levels() == 1) {
        PackBits(codes.data(), codes.size(), bits_[level], packed);
        break;
      }
      TakeBits(codes.data(), codes.size(), below, bits_[level], part.data());
      PackBits(part.data(), part.size(), bits_[level], packed);
    }
    return true;
  }

  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    FloatArray tops(tile.vectors());
    if (!LoadHalves(bodies[0] + 2 * tile.first_vector(), tops.size(), tops.data())) return false;
    CodeArray codes(tile.values());
    UnpackBits(bodies[0] + CodesAt(tile, 0), codes.size(), bits_[0], codes.data());
    CodeArray part(bodies.size() > 1 ? codes.size() : 0);
    for (uint32_t level = 1; level < bodies.size(); ++level) {
      UnpackBits(bodies[level] + CodesAt(tile, level), part.size(), bits_[level], part.data());
      AppendBits(part.data(), part.size(), bits_[level], codes.data());
    }
    uint32_t bits = 0;
    for (size_t level = 0; level < bodies.size(); ++level) bits += bits_[level];
    LevelLoops::Best().decode(codes.data(), tops.size(), tile.slab.dim, tops.data(), bits,
                              centroids_[bodies.size() - 1].data(), values);
    return true;
  }

 private:
  size_t CodesAt(const SlabTile& tile, uint32_t level) const {
    return (level == 0 ? ScaleBytes(tile.slab) : 0) + PackedBytes(tile.first_value(), bits_[level]);
  }

  static size_t ScaleBytes(const SlabShape& shape) { return 2 * shape.vectors(); }

  const std::vector<uint32_t> bits_;
  uint32_t total_ = 0;
  std::vector<std::vector<float>> centroids_;  // of each level and those before it
};

void Encode(const float* values, size_t count, size_t dim, const float* tops, uint32_t bits,
            uint8_t* codes) {
  const auto half = static_cast<float>(1u << (bits - 1));
  const auto last = static_cast<int>((1u << bits) - 1);
  for (size_t v = 0; v < count; ++v) {
    const float scale = tops[v] > 0 ? half / tops[v] : 0.0f;
    for (size_t i = 0; i < dim; ++i) {
      // The top may have been rounded down, so both ends are cut off.
      const int cell = static_cast<int>(*values++ * scale + half);
      *codes++ = static_cast<uint8_t>(std::clamp(cell, 0, last));
    }
  }
}

void Decode(const uint8_t* codes, size_t count, size_t dim, const float* tops, uint32_t,
            const float* centroids, float* values) {
  for (size_t v = 0; v < count; ++v) {
    for (size_t i = 0; i < dim; ++i) *values++ = centroids[*codes++] * tops[v];
  }
}

}  // namespace

const LevelLoops& LevelLoops::Reference() {
  static constexpr LevelLoops kLoops{Encode, Decode};
  return kLoops;
}

std::vector<float> LevelCentroids(uint32_t bits) {
  const size_t half = size_t{1} << (bits - 1);
  std::vector<float> centroids(2 * half);
  for (size_t i = 0; i < half; ++i) {
    float c = (static_cast<float>(i) + 0.5f) / static_cast<float>(half);
    if (bits <= kTabulatedBits) {
      c = kInner[half - 1 + i];
    } else if (i == half - 1) {
      c = kOutermost[bits - kTabulatedBits - 1];
    }
    centroids[half + i] = c;
    centroids[half - 1 - i] = -c;
  }
  return centroids;
}

absl::StatusOr<std::unique_ptr<Quantizer>> MakeLevels(const OpArguments& arguments) {
  std::vector<uint32_t> bits;
  uint32_t total = 0;
  for (const OpArgument& argument : arguments.op().arguments) {
    uint32_t value = 0;
    if (!argument.name.empty() || !absl::SimpleAtoi(argument.value, &value) || value < 1 ||
        value > kMaxBits - total) {
      return absl::InvalidArgumentError(absl::StrCat(
          "op 'levels' takes the bits of each level, 1 to 8 in all, as in levels(2,2,4); not '",
          argument.name, argument.name.empty() ? "" : "=", argument.value, "' after ", total,
          " bits"));
    }
    total += value;
    bits.push_back(value);
  }
  if (bits.empty()) {
    return absl::InvalidArgumentError(
        "op 'levels' needs the bits of each level, as in levels(2,2,4)");
  }
  return std::make_unique<Levels>(std::move(bits));
}

}  // namespace kvstow
