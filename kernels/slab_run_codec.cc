#include "kernels/slab_run_codec.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/convert.h"
#include "kernels/squared_error.h"

namespace kvstow {
namespace {

class SlabRunCodec final : public RunCodec {
 public:
  SlabRunCodec(const KvSpec& spec, std::vector<std::unique_ptr<Transform>> transforms,
               std::unique_ptr<Quantizer> quantizer)
      : spec_(spec), transforms_(std::move(transforms)), quantizer_(std::move(quantizer)) {}

  bool exact() const override { return false; }
  uint32_t levels() const override { return quantizer_->levels(); }

  absl::StatusOr<std::vector<EncodedLevel>> Encode(const Run& run,
                                                   std::span<const uint8_t> raw) const override {
    std::vector<ByteBlock> bodies;
    std::vector<uint8_t*> at;
    for (uint32_t level = 0; level < levels(); ++level) {
      at.push_back(bodies.emplace_back(BodyBytes(run, level)).data());
    }
    std::vector<double> gains(levels());
    Scratch scratch(*this, run.tokens);
    for (uint32_t i = 0; i < run.layers.count; ++i) {
      for (const SlabShape& shape : Shapes(run.tokens)) {
        if (shape.dim == 0) continue;
        const uint8_t* slab = raw.data() + SlabOffset(spec_, i, shape.part, run.tokens);
        if (!EncodeSlab(shape, slab, scratch, at, gains)) {
          return absl::OutOfRangeError(absl::StrCat(
              "layer ", run.layers.first + i, " has NaN, Inf or values beyond the range of fp16"));
        }
      }
    }
    std::vector<EncodedLevel> out;
    for (uint32_t level = 0; level < levels(); ++level) {
      out.push_back({std::move(bodies[level]).Share(), gains[level]});
    }
    return out;
  }

  absl::Status Decode(const Run& run, std::span<const SharedBytes> bodies, LayerRange wanted,
                      std::span<uint8_t> raw) const override {
    KVSTOW_ASSIGN_OR_RETURN(std::vector<const uint8_t*> at, BodiesFrom(run, bodies, wanted.first));
    std::vector<float> values(MaxValues(run.tokens));
    for (uint32_t i = 0; i < wanted.count; ++i) {
      for (const SlabShape& shape : Shapes(run.tokens)) {
        if (shape.dim == 0) continue;
        if (!DecodeSlab(shape, at, values.data())) return NotFinite(wanted.first + i);
        StoreFloats(spec_.dtype, values.data(), shape.values(),
                    raw.data() + SlabOffset(spec_, i, shape.part, run.tokens));
      }
    }
    return absl::OkStatus();
  }

  absl::Status DecodeTokens(const Run& run, std::span<const SharedBytes> bodies, LayerRange wanted,
                            TokenRange tokens, std::span<uint8_t> raw) const override {
    if (!CanCutTokens(run.tokens)) return absl::UnimplementedError("slabs decode whole");
    KVSTOW_ASSIGN_OR_RETURN(std::vector<const uint8_t*> at, BodiesFrom(run, bodies, wanted.first));
    std::vector<float> values;
    for (uint32_t i = 0; i < wanted.count; ++i) {
      for (const SlabShape& shape : Shapes(run.tokens)) {
        if (shape.dim == 0) continue;
        const TokenRange cut = CutOf(shape, bodies.size(), tokens);
        const SlabShape part{shape.part, cut.count, shape.heads, shape.dim};
        values.resize(part.values());
        if (!DecodeCut(shape, part, cut, at, values.data())) return NotFinite(wanted.first + i);
        const size_t token = size_t{shape.heads} * shape.dim;
        StoreFloats(spec_.dtype, &values[(tokens.first - cut.first) * token], tokens.count * token,
                    raw.data() + SlabOffset(spec_, i, shape.part, tokens.count));
      }
    }
    return absl::OkStatus();
  }

 private:
  // Buffers of one slab, allocated once a run.
  struct Scratch {
    Scratch(const SlabRunCodec& codec, uint32_t tokens)
        : values(codec.MaxValues(tokens)), decoded(codec.MaxValues(tokens)) {}
    std::vector<float> values, decoded;
  };

  std::array<SlabShape, 2> Shapes(uint32_t tokens) const {
    return {SlabShape{Part::kK, tokens, spec_.kv_heads, spec_.head_dim_k},
            SlabShape{Part::kV, tokens, spec_.kv_heads, spec_.head_dim_v}};
  }

  size_t MaxValues(uint32_t tokens) const {
    return std::max(SlabValues(spec_, Part::kK, tokens), SlabValues(spec_, Part::kV, tokens));
  }

  size_t BodyBytes(const Run& run, uint32_t level) const {
    size_t layer = 0;
    for (const SlabShape& shape : Shapes(run.tokens)) {
      if (shape.dim == 0) continue;
      layer += quantizer_->LevelBytes(shape, level) + (level == 0 ? SideBytes(shape) : 0);
    }
    return layer * run.layers.count;
  }

  size_t SideBytes(const SlabShape& shape) const {
    size_t bytes = 0;
    for (const auto& t : transforms_) bytes += t->SideBytes(shape);
    return bytes;
  }

  // Where layer `layer` begins in the body of each level, once their sizes are checked.
  absl::StatusOr<std::vector<const uint8_t*>> BodiesFrom(const Run& run,
                                                         std::span<const SharedBytes> bodies,
                                                         uint32_t layer) const {
    if (bodies.empty() || bodies.size() > levels()) {
      return absl::DataLossError(
          absl::StrCat(bodies.size(), " levels where the recipe has ", levels()));
    }
    std::vector<const uint8_t*> at;
    for (uint32_t level = 0; level < bodies.size(); ++level) {
      const size_t expected = BodyBytes(run, level);
      if (bodies[level].size() != expected) {
        return absl::DataLossError(absl::StrCat("level ", level, " has ", bodies[level].size(),
                                                " bytes; its shape needs ", expected));
      }
      at.push_back(bodies[level].data() +
                   (layer - run.layers.first) * (expected / run.layers.count));
    }
    return at;
  }

  static absl::Status NotFinite(uint32_t layer) {
    return absl::DataLossError(absl::StrCat("layer ", layer, " has a scale that is not finite"));
  }

  bool CanCutTokens(uint32_t tokens) const {
    return !quantizer_->Parts(Shapes(tokens)[0], 0).empty() &&
           std::all_of(transforms_.begin(), transforms_.end(),
                       [](const auto& t) { return t->EachTokenAlone(); });
  }

  // The tokens to decode where `wanted` are wanted of the leading levels.
  TokenRange CutOf(const SlabShape& shape, size_t levels, TokenRange wanted) const {
    std::vector<BodyPart> parts;
    for (uint32_t level = 0; level < levels; ++level) {
      const std::vector<BodyPart> of_level = quantizer_->Parts(shape, level);
      parts.insert(parts.end(), of_level.begin(), of_level.end());
    }
    return CutAround(parts, shape.tokens, wanted);
  }

  // Moves past the quantizer's bodies of a slab.
  template <typename Pointer>
  void Advance(const SlabShape& shape, std::vector<Pointer>& at) const {
    for (uint32_t level = 0; level < at.size(); ++level) {
      at[level] += quantizer_->LevelBytes(shape, level);
    }
  }

  // Writes the slab's bodies at `at`, moves `at` past them and adds what each level gains.
  bool EncodeSlab(const SlabShape& shape, const uint8_t* raw, Scratch& scratch,
                  std::vector<uint8_t*>& at, std::vector<double>& gains) const {
    float* const values = scratch.values.data();
    if (!LoadFloats(spec_.dtype, raw, shape.values(), values)) return false;
    // Side parts carry energy; a rotation alone leaves it in the values.
    const bool shifted = SideBytes(shape) > 0;
    double energy = shifted ? SquaredSum(values, shape.values()) : 0;
    for (const auto& t : transforms_) {
      if (!t->Forward(shape, values, at[0])) return false;
      at[0] += t->SideBytes(shape);
    }
    if (!quantizer_->Encode(shape, values, at)) return false;
    if (!shifted) energy = SquaredSum(values, shape.values());
    AddGains(shape, values, energy, scratch.decoded.data(), at, gains);
    Advance(shape, at);
    return true;
  }

  // Reads the slab's bodies at `at` and moves past them. False when they are damaged.
  bool DecodeSlab(const SlabShape& shape, std::vector<const uint8_t*>& at, float* values) const {
    const uint8_t* const side = at[0] += SideBytes(shape);
    if (!quantizer_->Decode(shape, at, values)) return false;
    Advance(shape, at);
    return InvertTransforms(shape, side, values);
  }

  // DecodeSlab of the tokens `cut` of the slab, which alone have the shape `part`.
  bool DecodeCut(const SlabShape& shape, const SlabShape& part, TokenRange cut,
                 std::vector<const uint8_t*>& at, float* values) const {
    const uint8_t* const side = at[0] += SideBytes(shape);
    std::vector<std::vector<uint8_t>> bodies;
    std::vector<const uint8_t*> pointers;
    for (uint32_t level = 0; level < at.size(); ++level) {
      bodies.push_back(CutBody(quantizer_->Parts(shape, level), shape.tokens, cut, at[level]));
      pointers.push_back(bodies.back().data());
    }
    Advance(shape, at);
    return quantizer_->Decode(part, pointers, values) && InvertTransforms(part, side, values);
  }

  // `side` is the end of the side parts.
  bool InvertTransforms(const SlabShape& shape, const uint8_t* side, float* values) const {
    for (auto t = transforms_.rbegin(); t != transforms_.rend(); ++t) {
      side -= (*t)->SideBytes(shape);
      if (!(*t)->Inverse(shape, side, values)) return false;
    }
    return true;
  }

  // Decodes every leading part of the levels; `energy` is that of the slab as it was put. A slab
  // of zeros has no energy to measure against: its base level removes everything.
  void AddGains(const SlabShape& shape, const float* values, double energy, float* decoded,
                const std::vector<uint8_t*>& at, std::vector<double>& gains) const {
    const std::vector<const uint8_t*> bodies(at.begin(), at.end());
    double left = 1;
    for (uint32_t level = 0; level < levels(); ++level) {
      quantizer_->Decode(shape, std::span(bodies).first(level + 1), decoded);
      const double error = SquaredError(values, decoded, shape.values());
      const double now = energy > 0 ? error / energy : 0;
      gains[level] += shape.tokens * std::max(left - now, 0.0);
      left = now;
    }
  }

  const KvSpec spec_;
  const std::vector<std::unique_ptr<Transform>> transforms_;
  const std::unique_ptr<Quantizer> quantizer_;
};

}  // namespace

std::unique_ptr<const RunCodec> MakeSlabRunCodec(const KvSpec& spec,
                                                 std::vector<std::unique_ptr<Transform>> transforms,
                                                 std::unique_ptr<Quantizer> quantizer) {
  return std::make_unique<SlabRunCodec>(spec, std::move(transforms), std::move(quantizer));
}

}  // namespace kvstow
