#include "kernels/quantize/combine.h"

#include <algorithm>

#include "base/status_macros.h"

namespace kvstow {
namespace {

class Chain final : public Quantizer {
 public:
  Chain(std::vector<std::unique_ptr<Transform>> transforms, std::unique_ptr<Quantizer> quantizer)
      : transforms_(std::move(transforms)), quantizer_(std::move(quantizer)) {}

  uint32_t levels() const override { return quantizer_->levels(); }

  size_t LevelBytes(const SlabShape& shape, uint32_t level) const override {
    return quantizer_->LevelBytes(shape, level) + (level == 0 ? SideBytes(shape) : 0);
  }

  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const override {
    const SlabShape& shape = tile.slab;
    std::vector<float> transformed(values, values + shape.values());
    std::vector<uint8_t*> at(bodies.begin(), bodies.end());
    for (const auto& t : transforms_) {
      if (!t->Forward(shape, transformed.data(), at[0])) return false;
      at[0] += t->SideBytes(shape);
    }
    return quantizer_->Encode(shape, transformed.data(), at);
  }

  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    const SlabShape& shape = tile.slab;
    std::vector<const uint8_t*> at(bodies.begin(), bodies.end());
    const uint8_t* side = at[0] += SideBytes(shape);
    if (!quantizer_->Decode(shape, at, values)) return false;
    for (auto t = transforms_.rbegin(); t != transforms_.rend(); ++t) {
      side -= (*t)->SideBytes(shape);
      if (!(*t)->Inverse(shape, side, values)) return false;
    }
    return true;
  }

 private:
  size_t SideBytes(const SlabShape& shape) const {
    size_t bytes = 0;
    for (const auto& t : transforms_) bytes += t->SideBytes(shape);
    return bytes;
  }

  const std::vector<std::unique_ptr<Transform>> transforms_;
  const std::unique_ptr<Quantizer> quantizer_;
};

class ByPart final : public Quantizer {
 public:
  ByPart(std::unique_ptr<Quantizer> k, std::unique_ptr<Quantizer> v)
      : k_(std::move(k)), v_(std::move(v)) {}

  uint32_t levels() const override { return std::max(k_->levels(), v_->levels()); }

  size_t LevelBytes(const SlabShape& shape, uint32_t level) const override {
    return Of(shape).LevelBytes(level);
  }

  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const override {
    const SlabShape& shape = tile.slab;
    std::vector<uint8_t*> at(bodies.begin(), bodies.end());
    return Of(shape).Encode(values, at);
  }

  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    const SlabShape& shape = tile.slab;
    std::vector<const uint8_t*> at(bodies.begin(), bodies.end());
    return Of(shape).Decode(values, at);
  }

 private:
  SubSlab Of(const SlabShape& shape) const {
    return {shape.part == Part::kK ? k_.get() : v_.get(), shape};
  }

  const std::unique_ptr<Quantizer> k_, v_;
};

class Residual final : public Quantizer {
 public:
  Residual(std::unique_ptr<Quantizer> first, std::unique_ptr<Quantizer> second)
      : first_(std::move(first)), second_(std::move(second)) {}

  uint32_t levels() const override { return first_->levels() + second_->levels(); }

  size_t LevelBytes(const SlabShape& shape, uint32_t level) const override {
    const uint32_t own = first_->levels();
    return level < own ? first_->LevelBytes(shape, level) : second_->LevelBytes(shape, level - own);
  }

  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const override {
    const SlabShape& shape = tile.slab;
    const auto own = bodies.first(first_->levels());
    if (!first_->Encode(shape, values, own)) return false;
    std::vector<float> rest(shape.values());
    const std::vector<const uint8_t*> coded(own.begin(), own.end());
    if (!first_->Decode(shape, coded, rest.data())) return false;
    for (size_t i = 0; i < rest.size(); ++i) rest[i] = values[i] - rest[i];
    return second_->Encode(shape, rest.data(), bodies.subspan(own.size()));
  }

  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    const SlabShape& shape = tile.slab;
    const size_t own = std::min<size_t>(bodies.size(), first_->levels());
    if (!first_->Decode(shape, bodies.first(own), values)) return false;
    if (own == bodies.size()) return true;
    std::vector<float> rest(shape.values());
    if (!second_->Decode(shape, bodies.subspan(own), rest.data())) return false;
    for (size_t i = 0; i < rest.size(); ++i) values[i] += rest[i];
    return true;
  }

 private:
  const std::unique_ptr<Quantizer> first_, second_;
};

class Merge final : public Quantizer {
 public:
  Merge(uint32_t group, std::unique_ptr<Quantizer> quantizer)
      : group_(group), quantizer_(std::move(quantizer)) {}

  uint32_t levels() const override { return quantizer_->levels(); }
  size_t LevelBytes(const SlabShape& shape, uint32_t level) const override {
    return quantizer_->LevelBytes(Merged(shape), level);
  }
  bool Encode(const SlabTile& tile, const float* values,
              std::span<uint8_t* const> bodies) const override {
    return quantizer_->Encode(Merged(tile.slab), values, bodies);
  }
  bool Decode(const SlabTile& tile, std::span<const uint8_t* const> bodies,
              float* values) const override {
    return quantizer_->Decode(Merged(tile.slab), bodies, values);
  }

 private:
  SlabShape Merged(SlabShape shape) const {
    uint32_t heads = group_;
    while (heads > 1 && (shape.heads % heads != 0 || heads * shape.dim > kMaxHeadDim)) --heads;
    shape.heads /= heads;
    shape.dim *= heads;
    return shape;
  }

  const uint32_t group_;
  const std::unique_ptr<Quantizer> quantizer_;
};

// Runs `code` on the levels that the sub-slab's quantizer has, and moves `at` past its bodies.
template <typename Pointer, typename F>
bool OnLevels(const SubSlab& slab, std::vector<Pointer>& at, F code) {
  if (slab.empty()) return true;
  const size_t levels = std::min<size_t>(at.size(), slab.quantizer->levels());
  const bool ok = code(std::span<const Pointer>(at).first(levels));
  for (uint32_t level = 0; level < levels; ++level) at[level] += slab.LevelBytes(level);
  return ok;
}

}  // namespace

bool SubSlab::Encode(const float* values, std::vector<uint8_t*>& at) const {
  return OnLevels(*this, at, [&](auto bodies) { return quantizer->Encode(shape, values, bodies); });
}

bool SubSlab::Decode(float* values, std::vector<const uint8_t*>& at) const {
  return OnLevels(*this, at, [&](auto bodies) { return quantizer->Decode(shape, bodies, values); });
}

std::unique_ptr<Quantizer> MakeChain(std::vector<std::unique_ptr<Transform>> transforms,
                                     std::unique_ptr<Quantizer> quantizer) {
  if (transforms.empty()) return quantizer;
  return std::make_unique<Chain>(std::move(transforms), std::move(quantizer));
}

std::unique_ptr<Quantizer> MakeParts(std::unique_ptr<Quantizer> k, std::unique_ptr<Quantizer> v) {
  return std::make_unique<ByPart>(std::move(k), std::move(v));
}

std::unique_ptr<Quantizer> MakeResidual(std::unique_ptr<Quantizer> first,
                                        std::unique_ptr<Quantizer> second) {
  return std::make_unique<Residual>(std::move(first), std::move(second));
}

absl::StatusOr<std::unique_ptr<Quantizer>> MakeMerge(const OpArguments& arguments,
                                                     std::unique_ptr<Quantizer> quantizer) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"heads"}));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t group, arguments.Number("heads", 4, 2, 64));
  return std::make_unique<Merge>(group, std::move(quantizer));
}

}  // namespace kvstow
