#include "kernels/methods/slab_run_codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/page/convert.h"
#include "kernels/page/squared_error.h"
#include "kernels/quantize/tile_array.h"

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
    Scratch scratch;
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
    Scratch scratch;
    bool ok = true;
    uint32_t i = 0;
    for (; i < wanted.count && ok; ++i) {
      for (const SlabShape& shape : Shapes(run.tokens)) {
        if (shape.dim == 0) continue;
        uint8_t* const slab = raw.data() + SlabOffset(spec_, i, shape.part, run.tokens);
        ok = ok && DecodeSlab(shape, at, scratch, slab);
      }
    }
    FinishStreams();
    return ok ? absl::OkStatus() : NotFinite(wanted.first + i - 1);
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
  // Buffers of one tile, kept for a run.
  struct Scratch {
    std::vector<float> values, decoded;
    std::vector<uint8_t> raw;
  };

  // Squared sums over the tiles of a slab that are done.
  struct Measure {
    double energy = 0;           // of the slab as it was put
    std::vector<double> errors;  // left by each leading part of the levels
  };

  std::array<SlabShape, 2> Shapes(uint32_t tokens) const {
    return {SlabShape{Part::kK, tokens, spec_.kv_heads, spec_.head_dim_k},
            SlabShape{Part::kV, tokens, spec_.kv_heads, spec_.head_dim_v}};
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

  // Tokens of a tile: about kTileValues values, whole groups, whole blocks of the squared sums.
  uint32_t TileTokens(const SlabShape& shape) const {
    uint64_t tokens = quantizer_->TileTokens(shape);
    for (const auto& t : transforms_) tokens = std::lcm(tokens, t->TileTokens(shape));
    if (tokens >= shape.tokens) return shape.tokens;
    const size_t a_token = size_t{shape.heads} * shape.dim;
    tokens *= kSquaredBlock / std::gcd(kSquaredBlock, tokens * a_token);
    tokens *= std::max<size_t>(1, kTileValues / (tokens * a_token));
    return static_cast<uint32_t>(std::min<uint64_t>(tokens, shape.tokens));
  }

  // Calls f for the slab's tiles in order, as long as it returns true.
  template <typename F>
  bool ForTiles(const SlabShape& shape, F f) const {
    const uint32_t tokens = TileTokens(shape);
    for (uint32_t first = 0; first < shape.tokens; first += tokens) {
      if (!f(SlabTile(shape, first, std::min(tokens, shape.tokens - first)))) return false;
    }
    return true;
  }

  RawValues Raw() const {
    return {spec_.dtype, transforms_.empty() ? nullptr : transforms_[0]->hadamard_signs()};
  }
  // Returns the quantizer's raw forms where they do all that this recipe does to a tile, else null.
  const RawQuantizer* RawForms(const SlabTile& tile) const {
    const RawQuantizer* const forms = quantizer_->raw_forms();
    const RawValues raw = Raw();
    const bool alone = raw.signs == nullptr ? transforms_.empty() : transforms_.size() == 1;
    return alone && forms != nullptr && forms->TakesRaw(tile, raw) ? forms : nullptr;
  }

  // Writes the slab's bodies at `at`, moves `at` past them and adds what each level gains.
  bool EncodeSlab(const SlabShape& shape, const uint8_t* raw, Scratch& scratch,
                  std::vector<uint8_t*>& at, std::vector<double>& gains) const {
    uint8_t* const side = at[0];
    at[0] += SideBytes(shape);
    Measure measure{0, std::vector<double>(levels())};
    const size_t width = DTypeBytes(spec_.dtype);
    if (!ForTiles(shape, [&](const SlabTile& tile) {
          const uint8_t* const from = raw + tile.first_value() * width;
          return EncodeTile(tile, from, scratch, side, at, measure);
        })) {
      return false;
    }
    AddGains(shape, measure, gains);
    Advance(shape, at);
    return true;
  }

  bool EncodeTile(const SlabTile& tile, const uint8_t* raw, Scratch& scratch, uint8_t* side,
                  const std::vector<uint8_t*>& bodies, Measure& measure) const {
    if (const RawQuantizer* const forms = RawForms(tile); forms != nullptr) {
      return forms->EncodeRaw(tile, Raw(), raw, bodies, &measure.energy, &measure.errors[0]) &&
             std::isfinite(measure.energy);
    }
    const SlabShape shape = tile.shape();
    const size_t count = tile.values();
    scratch.values.resize(count);
    scratch.decoded.resize(count);
    float *const values = scratch.values.data(), *const decoded = scratch.decoded.data();
    if (!LoadFloats(spec_.dtype, raw, count, values)) return false;
    // Side parts carry energy; a rotation alone leaves it in the values.
    const bool shifted = SideBytes(tile.slab) > 0;
    if (shifted) measure.energy = SquaredSum(values, count, measure.energy);
    for (const auto& t : transforms_) {
      if (!t->Forward(shape, values, side)) return false;
      side += t->SideBytes(tile.slab);
    }
    if (!shifted) measure.energy = SquaredSum(values, count, measure.energy);
    // Values whose squares overflow may have become NaN on their way, or will within the quantizer.
    if (!std::isfinite(measure.energy)) return false;
    if (!quantizer_->Encode(tile, values, bodies)) return false;
    const std::vector<const uint8_t*> written(bodies.begin(), bodies.end());
    for (uint32_t level = 0; level < levels(); ++level) {
      quantizer_->Decode(tile, std::span(written).first(level + 1), decoded);
      measure.errors[level] = SquaredError(values, decoded, count, measure.errors[level]);
    }
    return true;
  }

  // Reads the slab's bodies at `at` and moves past them. False when they are damaged.
  bool DecodeSlab(const SlabShape& shape, std::vector<const uint8_t*>& at, Scratch& scratch,
                  uint8_t* raw) const {
    const uint8_t* const side = at[0] += SideBytes(shape);
    const size_t width = DTypeBytes(spec_.dtype);
    const bool ok = ForTiles(shape, [&](const SlabTile& tile) {
      scratch.raw.resize(tile.values() * width);
      if (!DecodeTile(tile, at, side, scratch.values, scratch.raw.data())) return false;
      StreamBytes(scratch.raw.data(), scratch.raw.size(), raw + tile.first_value() * width);
      return true;
    });
    Advance(shape, at);
    return ok;
  }

  bool DecodeTile(const SlabTile& tile, std::span<const uint8_t* const> bodies,
                  const uint8_t* side_end, std::vector<float>& values, uint8_t* raw) const {
    if (const RawQuantizer* const forms = RawForms(tile); forms != nullptr) {
      return forms->DecodeRaw(tile, Raw(), bodies, raw);
    }
    values.resize(tile.values());
    if (!quantizer_->Decode(tile, bodies, values.data())) return false;
    if (!InvertTransforms(tile.shape(), side_end, values.data())) return false;
    StoreFloats(spec_.dtype, values.data(), tile.values(), raw);
    return true;
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

  // A slab of zeros has no energy to measure against: its base level removes everything.
  void AddGains(const SlabShape& shape, const Measure& measure, std::vector<double>& gains) const {
    double left = 1;
    for (uint32_t level = 0; level < levels(); ++level) {
      const double now = measure.energy > 0 ? measure.errors[level] / measure.energy : 0;
      gains[level] += shape.tokens * std::max(left - now, 0.0);
      left = std::min(left, now);
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
