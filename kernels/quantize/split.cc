#include "kernels/quantize/split.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/status_macros.h"
#include "kernels/entropy/bit_pack.h"
#include "kernels/quantize/combine.h"

namespace kvstow {
namespace {

// Cuts each vector by channels; which of them go first is said by `Choose` and `Read`.
class ChannelSplit : public Quantizer {
 public:
  explicit ChannelSplit(SplitPieces pieces) : pieces_(std::move(pieces)) {}

  uint32_t levels() const final {
    return std::max(pieces_.first->levels(), pieces_.rest->levels());
  }

  size_t LevelBytes(const SlabShape& shape, uint32_t level) const final {
    return First(shape).LevelBytes(level) + Rest(shape).LevelBytes(level) +
           (level == 0 ? SideBytes(shape) : 0);
  }

  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const final {
    const SlabShape& shape = tile.slab;
    std::vector<uint8_t*> at(bodies.begin(), bodies.end());
    const std::vector<uint8_t> goes_first = Choose(shape, values, at[0]);
    at[0] += SideBytes(shape);
    std::vector<float> first, rest;
    ForEach(shape, goes_first,
            [&](size_t i, bool is_first) { (is_first ? first : rest).push_back(values[i]); });
    return First(shape).Encode(first.data(), at) && Rest(shape).Encode(rest.data(), at);
  }

  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const final {
    const SlabShape& shape = tile.slab;
    std::vector<const uint8_t*> at(bodies.begin(), bodies.end());
    std::vector<uint8_t> goes_first;
    if (!Read(shape, at[0], goes_first)) return false;
    at[0] += SideBytes(shape);
    std::vector<float> first(First(shape).shape.values()), rest(Rest(shape).shape.values());
    if (!First(shape).Decode(first.data(), at) || !Rest(shape).Decode(rest.data(), at)) {
      return false;
    }
    const float *next_first = first.data(), *next_rest = rest.data();
    ForEach(shape, goes_first,
            [&](size_t i, bool is_first) { values[i] = is_first ? *next_first++ : *next_rest++; });
    return true;
  }

 protected:
  // How many channels of a vector go first.
  virtual uint32_t FirstChannels(const SlabShape& shape) const = 0;
  virtual size_t SideBytes(const SlabShape& shape) const = 0;
  // How many consecutive tokens share a choice.
  virtual uint32_t TokensAChoice(const SlabShape& shape) const = 0;
  // [group of tokens, head, channel], 1 = first; of each vector exactly FirstChannels.
  virtual std::vector<uint8_t> Choose(const SlabShape& shape, const float* values,
                                      uint8_t* side) const = 0;
  virtual bool Read(const SlabShape& shape, const uint8_t* side,
                    std::vector<uint8_t>& goes_first) const = 0;

 private:
  SubSlab First(const SlabShape& shape) const {
    SlabShape piece = shape;
    piece.dim = FirstChannels(shape);
    return {pieces_.first.get(), piece};
  }
  SubSlab Rest(const SlabShape& shape) const {
    SlabShape piece = shape;
    piece.dim = shape.dim - FirstChannels(shape);
    return {pieces_.rest.get(), piece};
  }

  // Calls f(index of a value, whether its channel goes first) for all values in order.
  template <typename F>
  void ForEach(const SlabShape& shape, const std::vector<uint8_t>& goes_first, F f) const {
    const size_t width = size_t{shape.heads} * shape.dim, group = TokensAChoice(shape);
    for (size_t i = 0; i < shape.values(); ++i) {
      f(i, goes_first[i / width / group * width + i % width] != 0);
    }
  }

  const SplitPieces pieces_;
};

class Outliers final : public ChannelSplit {
 public:
  Outliers(SplitPieces pieces, double share, uint32_t group)
      : ChannelSplit(std::move(pieces)), share_(share), group_(group) {}

 protected:
  uint32_t FirstChannels(const SlabShape& shape) const override {
    if (shape.dim < 2) return 0;
    return std::clamp<uint32_t>(static_cast<uint32_t>(std::lround(share_ * shape.dim)), 1,
                                shape.dim - 1);
  }
  size_t SideBytes(const SlabShape& shape) const override { return PackedBytes(Choices(shape), 1); }
  uint32_t TokensAChoice(const SlabShape& shape) const override {
    return std::min(group_, shape.tokens);
  }

  std::vector<uint8_t> Choose(const SlabShape& shape, const float* values,
                              uint8_t* side) const override {
    const size_t width = size_t{shape.heads} * shape.dim;
    std::vector<double> energy(Choices(shape));
    for (size_t i = 0; i < shape.values(); ++i) {
      energy[i / width / TokensAChoice(shape) * width + i % width] +=
          double{values[i]} * double{values[i]};
    }
    std::vector<uint8_t> goes_first(energy.size());
    std::vector<uint32_t> order(shape.dim);
    for (size_t begin = 0; begin < energy.size(); begin += shape.dim) {
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
        return energy[begin + a] > energy[begin + b];
      });
      for (uint32_t i = 0; i < FirstChannels(shape); ++i) goes_first[begin + order[i]] = 1;
    }
    PackBits(goes_first.data(), goes_first.size(), 1, side);
    return goes_first;
  }

  bool Read(const SlabShape& shape, const uint8_t* side,
            std::vector<uint8_t>& goes_first) const override {
    goes_first.resize(Choices(shape));
    UnpackBits(side, goes_first.size(), 1, goes_first.data());
    for (auto at = goes_first.begin(); at != goes_first.end(); at += shape.dim) {
      if (std::count(at, at + shape.dim, 1) != FirstChannels(shape)) return false;
    }
    return true;
  }

 private:
  size_t Choices(const SlabShape& shape) const {
    const uint32_t group = TokensAChoice(shape);
    return size_t{(shape.tokens + group - 1) / group} * shape.heads * shape.dim;
  }

  const double share_;
  const uint32_t group_;
};

class Latent final : public ChannelSplit {
 public:
  Latent(SplitPieces pieces, uint32_t rope) : ChannelSplit(std::move(pieces)), rope_(rope) {}

 protected:
  uint32_t FirstChannels(const SlabShape& shape) const override {
    return shape.dim - std::min(rope_, shape.dim);
  }
  size_t SideBytes(const SlabShape&) const override { return 0; }
  uint32_t TokensAChoice(const SlabShape& shape) const override { return shape.tokens; }
  std::vector<uint8_t> Choose(const SlabShape& shape, const float*, uint8_t*) const override {
    std::vector<uint8_t> goes_first(size_t{shape.heads} * shape.dim);
    for (size_t i = 0; i < goes_first.size(); ++i) {
      goes_first[i] = i % shape.dim < FirstChannels(shape) ? 1 : 0;
    }
    return goes_first;
  }
  bool Read(const SlabShape& shape, const uint8_t*,
            std::vector<uint8_t>& goes_first) const override {
    goes_first = Choose(shape, nullptr, nullptr);
    return true;
  }

 private:
  const uint32_t rope_;
};

class Anchor final : public Quantizer {
 public:
  Anchor(SplitPieces pieces, uint32_t every) : pieces_(std::move(pieces)), every_(every) {}

  uint32_t levels() const override {
    return std::max(pieces_.first->levels(), pieces_.rest->levels());
  }

  size_t LevelBytes(const SlabShape& shape, uint32_t level) const override {
    return Anchors(shape).LevelBytes(level) + Others(shape).LevelBytes(level);
  }

  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const override {
    const SlabShape& shape = tile.slab;
    const size_t row = size_t{shape.heads} * shape.dim;
    std::vector<uint8_t*> at(bodies.begin(), bodies.end());
    const SubSlab anchors = Anchors(shape);
    std::vector<float> anchor(anchors.shape.values()), other;
    for (size_t t = 0; t < shape.tokens; t += every_) {
      std::copy_n(values + t * row, row, &anchor[t / every_ * row]);
    }
    std::vector<const uint8_t*> coded(bodies.begin(), bodies.end());
    if (!anchors.Encode(anchor.data(), at) || !anchors.Decode(anchor.data(), coded)) return false;
    for (size_t t = 0; t < shape.tokens; ++t) {
      if (t % every_ == 0) continue;
      for (size_t c = 0; c < row; ++c) {
        other.push_back(values[t * row + c] - anchor[t / every_ * row + c]);
      }
    }
    return Others(shape).Encode(other.data(), at);
  }

  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    const SlabShape& shape = tile.slab;
    const size_t row = size_t{shape.heads} * shape.dim;
    std::vector<const uint8_t*> at(bodies.begin(), bodies.end());
    const SubSlab anchors = Anchors(shape), others = Others(shape);
    std::vector<float> anchor(anchors.shape.values()), other(others.shape.values());
    if (!anchors.Decode(anchor.data(), at) || !others.Decode(other.data(), at)) return false;
    const float* next = other.data();
    for (size_t t = 0; t < shape.tokens; ++t) {
      for (size_t c = 0; c < row; ++c) {
        const float base = anchor[t / every_ * row + c];
        *values++ = t % every_ == 0 ? base : base + *next++;
      }
    }
    return true;
  }

 private:
  SubSlab Anchors(const SlabShape& shape) const {
    SlabShape piece = shape;
    piece.tokens = (shape.tokens + every_ - 1) / every_;
    return {pieces_.first.get(), piece};
  }
  SubSlab Others(const SlabShape& shape) const {
    SlabShape piece = shape;
    piece.tokens = shape.tokens - (shape.tokens + every_ - 1) / every_;
    return {pieces_.rest.get(), piece};
  }

  const SplitPieces pieces_;
  const uint32_t every_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Quantizer>> MakeOutliers(const OpArguments& arguments,
                                                        SplitPieces pieces) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"share", "group"}));
  KVSTOW_ASSIGN_OR_RETURN(const double share, arguments.Real("share", 0.25, 0.01, 0.99));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t group,
                          arguments.Number("group", kMaxPageTokens, 1, kMaxPageTokens));
  return std::make_unique<Outliers>(std::move(pieces), share, group);
}

absl::StatusOr<std::unique_ptr<Quantizer>> MakeLatent(const OpArguments& arguments,
                                                      SplitPieces pieces) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"rope"}));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t rope, arguments.Number("rope", 64, 1, kMaxHeadDim));
  return std::make_unique<Latent>(std::move(pieces), rope);
}

absl::StatusOr<std::unique_ptr<Quantizer>> MakeAnchor(const OpArguments& arguments,
                                                      SplitPieces pieces) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"every"}));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t every, arguments.Number("every", 10, 2, kMaxPageTokens));
  return std::make_unique<Anchor>(std::move(pieces), every);
}

}  // namespace kvstow
