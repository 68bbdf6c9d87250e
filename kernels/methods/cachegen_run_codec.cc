#include "kernels/methods/cachegen_run_codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/entropy/plane_coder.h"
#include "kernels/page/convert.h"
#include "kernels/page/half.h"
#include "kernels/page/squared_error.h"
#include "kernels/quantize/dead_zone.h"

namespace kvstow {
namespace {

constexpr uint32_t kTokensPerStream = 64;

// How a slab is quantized.
struct SlabPlan {
  uint32_t every = 1;  // 1 = all tokens are anchors
  float top = 127;     // greatest code of an anchor
  double step = 1;     // of the other tokens, in rms of their differences
};

// A slab of a run, and where its channels begin among those of a token.
struct Slab {
  uint32_t layer = 0;  // of the page
  Part part = Part::kK;
  uint32_t channels = 0, first_channel = 0;
};

// The scales of a slab, which its bytes hold beside the codes.
struct SlabScales {
  std::vector<float> tops;  // of each anchor
  float step = 0;           // of the other tokens
};

class CachegenRunCodec : public RunCodec {
 public:
  explicit CachegenRunCodec(const KvSpec& spec) : spec_(spec) {}

  bool exact() const final { return false; }
  uint32_t levels() const final { return 1; }
  absl::StatusOr<std::vector<EncodedLevel>> Encode(const Run& run,
                                                   std::span<const uint8_t> raw) const final;
  absl::Status Decode(const Run& run, std::span<const SharedBytes> bodies, LayerRange wanted,
                      std::span<uint8_t> raw) const final;

 protected:
  virtual uint32_t Every() const = 0;
  virtual SlabPlan PlanOf(const Slab& slab) const = 0;
  const KvSpec& spec() const { return spec_; }

 private:
  std::vector<Slab> SlabsOf(LayerRange layers) const;
  // Returns the tokens that are coded together: anchors, or the others.
  std::vector<uint32_t> TokensOf(uint32_t tokens, bool anchors) const;
  // Quantizes a slab's values [tokens, channels]: codes of anchors and others into their columns
  // of [tokens of the kind, width]; values become what they decode to. False when beyond fp16.
  bool Quantize(const Slab& slab, uint32_t tokens, size_t width, std::vector<float>& values,
                SlabScales& scales, std::array<std::vector<int32_t>, 2>& q) const;
  void Dequantize(const Slab& slab, uint32_t tokens, size_t width, const SlabScales& scales,
                  const std::array<std::vector<int32_t>, 2>& q, std::vector<float>& values) const;

  const KvSpec spec_;
};

std::vector<Slab> CachegenRunCodec::SlabsOf(LayerRange layers) const {
  std::vector<Slab> slabs;
  uint32_t channel = 0;
  for (uint32_t layer = layers.first; layer < layers.first + layers.count; ++layer) {
    for (const auto& [part, dim] :
         {std::pair{Part::kK, spec_.head_dim_k}, std::pair{Part::kV, spec_.head_dim_v}}) {
      if (dim == 0) continue;
      slabs.push_back({layer, part, spec_.kv_heads * dim, channel});
      channel += slabs.back().channels;
    }
  }
  return slabs;
}

std::vector<uint32_t> CachegenRunCodec::TokensOf(uint32_t tokens, bool anchors) const {
  std::vector<uint32_t> out;
  for (uint32_t t = 0; t < tokens; ++t) {
    if ((t % Every() == 0) == anchors) out.push_back(t);
  }
  return out;
}

float Inverse(float step) { return step > 0 ? 1 / step : 0.0f; }

bool CachegenRunCodec::Quantize(const Slab& slab, uint32_t tokens, size_t width,
                                std::vector<float>& values, SlabScales& scales,
                                std::array<std::vector<int32_t>, 2>& q) const {
  const SlabPlan plan = PlanOf(slab);
  const size_t n = slab.channels;
  for (const uint32_t t : TokensOf(tokens, true)) {
    float* const x = &values[t * n];
    float top = 0;
    for (size_t c = 0; c < n; ++c) top = std::max(top, std::abs(x[c]));
    const uint16_t half = FloatToHalf(top);
    if (!IsFiniteHalf(half)) return false;
    scales.tops.push_back(HalfToFloat(half));
    const float step = scales.tops.back() / plan.top, inverse = Inverse(step);
    int32_t* const codes = &q[0][t / plan.every * width + slab.first_channel];
    for (size_t c = 0; c < n; ++c) {
      // A top rounded down leaves values beyond it.
      codes[c] =
          static_cast<int32_t>(std::clamp(std::nearbyint(x[c] * inverse), -plan.top, plan.top));
      x[c] = static_cast<float>(codes[c]) * step;
    }
  }
  const std::vector<uint32_t> others = TokensOf(tokens, false);
  double squares = 0;
  for (const uint32_t t : others) {
    const float *const x = &values[t * n], *const anchor = &values[t / plan.every * plan.every * n];
    for (size_t c = 0; c < n; ++c)
      squares += (double{x[c]} - anchor[c]) * (double{x[c]} - anchor[c]);
  }
  if (others.empty()) return true;
  const double rms = std::sqrt(squares / static_cast<double>(others.size() * n));
  const uint16_t half = FloatToHalf(static_cast<float>(plan.step * rms));
  if (!IsFiniteHalf(half)) return false;
  scales.step = HalfToFloat(half);
  const float inverse = Inverse(scales.step);
  for (size_t i = 0; i < others.size(); ++i) {
    const uint32_t t = others[i];
    float *const x = &values[t * n], *const anchor = &values[t / plan.every * plan.every * n];
    int32_t* const codes = &q[1][i * width + slab.first_channel];
    for (size_t c = 0; c < n; ++c) {
      constexpr float kMost = kPlaneMaxMagnitude - 1;
      const float code = std::nearbyint((x[c] - anchor[c]) * inverse);
      codes[c] = static_cast<int32_t>(std::clamp(code, -kMost, kMost));
      x[c] = anchor[c] + static_cast<float>(codes[c]) * scales.step;
    }
  }
  return true;
}

void CachegenRunCodec::Dequantize(const Slab& slab, uint32_t tokens, size_t width,
                                  const SlabScales& scales,
                                  const std::array<std::vector<int32_t>, 2>& q,
                                  std::vector<float>& values) const {
  const SlabPlan plan = PlanOf(slab);
  const size_t n = slab.channels;
  size_t other = 0;
  for (uint32_t t = 0; t < tokens; ++t) {
    float* const x = &values[t * n];
    const uint32_t group = t / plan.every;
    if (t % plan.every == 0) {
      const float step = scales.tops[group] / plan.top;
      const int32_t* const codes = &q[0][group * width + slab.first_channel];
      for (size_t c = 0; c < n; ++c) x[c] = static_cast<float>(codes[c]) * step;
      continue;
    }
    const float* const anchor = &values[group * plan.every * n];
    const int32_t* const codes = &q[1][other++ * width + slab.first_channel];
    for (size_t c = 0; c < n; ++c) x[c] = anchor[c] + static_cast<float>(codes[c]) * scales.step;
  }
}

// The table row of each column of q [tokens, width], by its rms.
std::vector<int16_t> RowsOf(const std::vector<int32_t>& q, size_t width) {
  std::vector<double> squares(width);
  for (size_t i = 0; i < q.size(); ++i) squares[i % width] += double{1} * q[i] * q[i];
  std::vector<int16_t> rows(width);
  for (size_t c = 0; c < width; ++c) {
    const double rms = std::sqrt(squares[c] / static_cast<double>(q.size() / width));
    const int row = rms > 0 ? kPlaneUnitRow + RoundLog2(rms, 4) : 0;
    rows[c] = static_cast<int16_t>(std::clamp(row, 0, kPlaneMaxRow));
  }
  return rows;
}

PlaneCoder CoderOf(std::vector<int16_t> rows) {
  return PlaneCoder({.rows = std::move(rows), .tokens_per_stream = kTokensPerStream},
                    UniversalPlaneTables(), PlaneLookups::Universal());
}

// The plane coder has the tokens of a column together.
std::vector<int32_t> ByColumn(const std::vector<int32_t>& q, size_t width) {
  const size_t tokens = q.size() / width, stride = PlaneStride(tokens);
  std::vector<int32_t> out(width * stride);
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t c = 0; c < width; ++c) out[c * stride + t] = q[t * width + c];
  }
  return out;
}

void ByToken(const std::vector<int32_t>& columns, size_t width, std::vector<int32_t>& q) {
  const size_t tokens = q.size() / width, stride = PlaneStride(tokens);
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t c = 0; c < width; ++c) q[t * width + c] = columns[c * stride + t];
  }
}

absl::StatusOr<std::vector<EncodedLevel>> CachegenRunCodec::Encode(
    const Run& run, std::span<const uint8_t> raw) const {
  const std::vector<Slab> slabs = SlabsOf(run.layers);
  const size_t width = slabs.back().first_channel + slabs.back().channels;
  std::array<std::vector<int32_t>, 2> q;
  for (const bool anchors : {true, false})
    q[anchors ? 0 : 1].resize(TokensOf(run.tokens, anchors).size() * width);
  ByteWriter body;
  double gain = 0;
  std::vector<float> values, before;
  for (const Slab& slab : slabs) {
    values.resize(size_t{run.tokens} * slab.channels);
    const uint8_t* const from =
        raw.data() + SlabOffset(spec_, slab.layer - run.layers.first, slab.part, run.tokens);
    SlabScales scales;
    bool fits = LoadFloats(spec_.dtype, from, values.size(), values.data());
    before = values;
    fits = fits && Quantize(slab, run.tokens, width, values, scales, q);
    if (!fits) {
      return absl::OutOfRangeError(
          absl::StrCat("layer ", slab.layer, " has NaN, Inf or values beyond the range of fp16"));
    }
    for (const float top : scales.tops) body.Put(FloatToHalf(top));
    if (!q[1].empty()) body.Put(FloatToHalf(scales.step));
    const double energy = SquaredSum(before.data(), before.size());
    const double error = SquaredError(before.data(), values.data(), values.size());
    gain += run.tokens * (energy > 0 ? std::max(1 - error / energy, 0.0) : 1.0);
  }
  for (const std::vector<int32_t>& codes : q) {
    if (codes.empty()) continue;
    std::vector<int16_t> rows = RowsOf(codes, width);
    for (const int16_t row : rows) body.Put(static_cast<uint8_t>(row));
    const auto tokens = static_cast<uint32_t>(codes.size() / width);
    const std::string coded =
        CoderOf(std::move(rows)).Encode(ByColumn(codes, width), {}, tokens)[0];
    body.Put(static_cast<uint32_t>(coded.size()));
    body.PutBytes(AsBytes(coded));
  }
  std::vector<EncodedLevel> out;
  out.push_back({SharedBytes::Take(std::move(body).Take()), gain});
  return out;
}

absl::Status CachegenRunCodec::Decode(const Run& run, std::span<const SharedBytes> bodies,
                                      LayerRange wanted, std::span<uint8_t> raw) const {
  if (bodies.size() != 1) return absl::DataLossError("the recipe has one level");
  const std::vector<Slab> slabs = SlabsOf(run.layers);
  const size_t width = slabs.back().first_channel + slabs.back().channels;
  ByteReader reader(bodies[0].span());
  std::array<size_t, 2> tokens;
  for (const bool anchors : {true, false})
    tokens[anchors ? 0 : 1] = TokensOf(run.tokens, anchors).size();
  std::vector<SlabScales> scales(slabs.size());
  for (SlabScales& slab : scales) {
    const std::span<const uint8_t> tops = reader.GetBytes(2 * tokens[0]);
    slab.tops.resize(tokens[0]);
    bool finite = reader.ok() && LoadHalves(tops.data(), tokens[0], slab.tops.data());
    if (tokens[1] > 0) {
      const uint16_t step = reader.Get<uint16_t>();
      slab.step = HalfToFloat(step);
      finite &= IsFiniteHalf(step);
    }
    if (!finite || !reader.ok()) return absl::DataLossError("a scale is missing or not finite");
  }
  std::array<std::vector<int32_t>, 2> q;
  for (size_t kind = 0; kind < 2; ++kind) {
    if (tokens[kind] == 0) continue;
    const std::span<const uint8_t> rows = reader.GetBytes(width);
    const std::span<const uint8_t> coded = reader.GetBytes(reader.Get<uint32_t>());
    const auto beyond = [](uint8_t row) { return row > kPlaneMaxRow; };
    if (!reader.ok() || std::any_of(rows.begin(), rows.end(), beyond))
      return absl::DataLossError("the codes are cut, or a channel has no table");
    q[kind].resize(tokens[kind] * width);
    const auto count = static_cast<uint32_t>(tokens[kind]);
    std::vector<int32_t> columns(width * PlaneStride(count));
    KVSTOW_RETURN_IF_ERROR(
        CoderOf({rows.begin(), rows.end()}).Decode({{coded}}, count, {0, count}, columns, {}));
    ByToken(columns, width, q[kind]);
  }
  if (reader.remaining() > 0) return absl::DataLossError("bytes are left over");
  std::vector<float> values;
  for (size_t s = 0; s < slabs.size(); ++s) {
    const Slab& slab = slabs[s];
    if (slab.layer < wanted.first || slab.layer >= wanted.first + wanted.count) continue;
    values.resize(size_t{run.tokens} * slab.channels);
    Dequantize(slab, run.tokens, width, scales[s], q, values);
    StoreFloats(spec_.dtype, values.data(), values.size(),
                raw.data() + SlabOffset(spec_, slab.layer - wanted.first, slab.part, run.tokens));
  }
  return absl::OkStatus();
}

class Deltas final : public CachegenRunCodec {
 public:
  Deltas(const KvSpec& spec, uint32_t every, uint32_t bins, std::array<double, 3> steps)
      : CachegenRunCodec(spec), every_(every), bins_(bins), steps_(steps) {}

 protected:
  uint32_t Every() const override { return every_; }
  SlabPlan PlanOf(const Slab& slab) const override {
    return {every_, static_cast<float>(bins_ / 2 - 1),
            steps_[size_t{slab.layer} * 3 / spec().layers]};
  }

 private:
  const uint32_t every_, bins_;
  const std::array<double, 3> steps_;
};

// Bins of a part: `first` before layer `from`, `then` from there on.
struct BinTable {
  uint32_t first = 0, then = 0, from = 0;
};

class Bins final : public CachegenRunCodec {
 public:
  Bins(const KvSpec& spec, BinTable k, BinTable v) : CachegenRunCodec(spec), k_(k), v_(v) {}

 protected:
  uint32_t Every() const override { return 1; }
  SlabPlan PlanOf(const Slab& slab) const override {
    const BinTable& table = slab.part == Part::kK ? k_ : v_;
    const uint32_t bins = slab.layer < table.from ? table.first : table.then;
    return {1, static_cast<float>(bins / 2 - 1), 0};
  }

 private:
  const BinTable k_, v_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeDeltas(const OpArguments& arguments,
                                                           const KvSpec& spec) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"every", "bins", "early", "middle", "late"}));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t every, arguments.Number("every", 10, 2, kMaxPageTokens));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t bins, arguments.Number("bins", 256, 4, 256));
  KVSTOW_ASSIGN_OR_RETURN(const double early, arguments.Real("early", 0.5, 0.01, 8));
  KVSTOW_ASSIGN_OR_RETURN(const double middle, arguments.Real("middle", 1, 0.01, 8));
  KVSTOW_ASSIGN_OR_RETURN(const double late, arguments.Real("late", 1.5, 0.01, 8));
  return std::make_unique<Deltas>(spec, every, bins, std::array{early, middle, late});
}

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeBins(const OpArguments& arguments,
                                                         const KvSpec& spec) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"k", "k_then", "k_from", "v", "v_then", "v_from"}));
  BinTable k, v;
  KVSTOW_ASSIGN_OR_RETURN(k.first, arguments.Number("k", 32, 4, 256));
  KVSTOW_ASSIGN_OR_RETURN(k.then, arguments.Number("k_then", 16, 4, 256));
  KVSTOW_ASSIGN_OR_RETURN(k.from, arguments.Number("k_from", 10, 0, kMaxLayers));
  KVSTOW_ASSIGN_OR_RETURN(v.first, arguments.Number("v", 32, 4, 256));
  KVSTOW_ASSIGN_OR_RETURN(v.then, arguments.Number("v_then", 16, 4, 256));
  KVSTOW_ASSIGN_OR_RETURN(v.from, arguments.Number("v_from", 2, 0, kMaxLayers));
  return std::make_unique<Bins>(spec, k, v);
}

}  // namespace kvstow
