#include "kernels/methods/predict_run_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "kernels/calibration/calibration_basis.h"
#include "kernels/calibration/calibration_fields.h"
#include "kernels/entropy/bit_pack.h"
#include "kernels/methods/calibration_sample.h"
#include "kernels/methods/vector_run_codec.h"
#include "kernels/page/convert.h"
#include "kernels/page/half.h"
#include "kernels/page/split_mix.h"
#include "kernels/quantize/codebook.h"
#include "kernels/quantize/loops.h"
#include "kernels/transform/dense_product.h"
#include "kernels/transform/hadamard.h"

namespace kvstow {
namespace {

constexpr uint32_t kFirstLayerBits = 4;
constexpr size_t kLongestBlock = kMaxHeadDim;
constexpr uint32_t kNoDimension = 0;  // of LloydMax: the Gaussian's

// Predicts a slab: bias + inputs * map.
struct Predictor {
  std::vector<float> bias;  // [outputs]
  PackedMatrix map;         // [inputs, outputs]; no inputs: the bias alone
};

struct PredictTables final : CalibratedTables {
  std::vector<Predictor>
      slabs;  // K of the first layer, its V if there is one, K of the second, ...
};

// How many values a slab is predicted from.
size_t Inputs(Part part, bool first_of_run, size_t k_width, size_t v_width) {
  if (part == Part::kK) return first_of_run ? 0 : k_width;
  return k_width + (first_of_run ? 0 : v_width);
}

// Rows of values, decoded or to be coded.
struct Rows {
  size_t width = 0;
  std::vector<float> values;  // [tokens, width]
};

// [tokens, inputs]: K' of this layer or of the one before, and V' of the one before.
std::vector<float> InputRows(Part part, bool first_of_run, const Rows& k, const Rows& v,
                             size_t tokens) {
  const size_t inputs = Inputs(part, first_of_run, k.width, v.width);
  std::vector<float> out(tokens * inputs);
  for (size_t t = 0; t < tokens && inputs > 0; ++t) {
    std::copy_n(k.values.data() + t * k.width, k.width, out.data() + t * inputs);
    if (inputs == k.width) continue;
    std::copy_n(v.values.data() + t * v.width, v.width, out.data() + t * inputs + k.width);
  }
  return out;
}

std::vector<float> Predict(const Predictor& predictor, const std::vector<float>& inputs,
                           size_t tokens) {
  const size_t width = predictor.bias.size();
  std::vector<float> out(tokens * width);
  if (predictor.map.rows() > 0) {
    MultiplyRows(inputs.data(), tokens, predictor.map, {0, width}, out.data(), width);
  }
  for (size_t i = 0; i < out.size(); ++i) out[i] += predictor.bias[i % width];
  return out;
}

size_t RestBytes(size_t width, size_t tokens, uint32_t bits) {
  size_t bytes = 0;
  for (size_t left = width; left > 0;) {
    const size_t n = std::bit_floor(std::min(left, kLongestBlock));
    bytes += 2 * tokens + PackedBytes(tokens * n, bits);
    left -= n;
  }
  return bytes;
}

// Calls visit(column, size) for each block of a row.
template <typename Visit>
void ForEachBlock(size_t width, const Visit& visit) {
  for (size_t at = 0; at < width;) {
    const size_t n = std::bit_floor(std::min(width - at, kLongestBlock));
    visit(at, n);
    at += n;
  }
}

// In place, each row of `n` values, a power of two. `hadamard` of recipes, and its inverse.
void ApplySigns(size_t rows, size_t n, float* values) {
  for (size_t i = 0; i < rows * n; ++i) values[i] *= SplitMix64(i % n) & 1 ? -1.0f : 1.0f;
}
void SignedHadamard(size_t rows, size_t n, float* values) {
  ApplySigns(rows, n, values);
  HadamardBlocks(rows, n, values);
}
void InverseSignedHadamard(size_t rows, size_t n, float* values) {
  HadamardBlocks(rows, n, values);
  ApplySigns(rows, n, values);
}

// Codes `rest` [tokens, width], appended to `out`.
bool EncodeRest(const std::vector<float>& rest, size_t width, uint32_t bits, std::string& out) {
  const size_t tokens = rest.size() / width;
  const std::vector<float> entries = LloydMax(bits, kNoDimension);
  size_t at = out.size();
  out.resize(at + RestBytes(width, tokens, bits));
  bool ok = true;
  ForEachBlock(width, [&](size_t column, size_t n) {
    std::vector<float> values(tokens * n), scales(tokens);
    std::vector<uint8_t> codes(values.size());
    for (size_t t = 0; t < tokens; ++t) {
      std::copy_n(rest.data() + t * width + column, n, values.data() + t * n);
    }
    SignedHadamard(tokens, n, values.data());
    const float root = std::sqrt(static_cast<float>(n));
    for (size_t t = 0; t < tokens; ++t) {
      const float* const x = values.data() + t * n;
      const uint16_t half = FloatToHalf(
          static_cast<float>(std::sqrt(CodebookLoops::Best().squared_length(x, n))) / root);
      ok = ok && IsFiniteHalf(half);
      scales[t] = HalfToFloat(half);
      CodebookLoops::Best().nearest(entries, x, n, scales[t] > 0 ? 1 / scales[t] : 0,
                                    codes.data() + t * n);
    }
    auto* const body = reinterpret_cast<uint8_t*>(out.data()) + at;
    StoreHalves(scales.data(), tokens, body);
    PackBits(codes.data(), codes.size(), bits, body + 2 * tokens);
    at += 2 * tokens + PackedBytes(codes.size(), bits);
  });
  return ok;
}

// Adds what RestBytes at `body` hold to `values` [tokens, width].
bool AddRest(const uint8_t* body, size_t width, size_t tokens, uint32_t bits, float* values) {
  const std::vector<float> entries = LloydMax(bits, kNoDimension);
  bool ok = true;
  ForEachBlock(width, [&](size_t column, size_t n) {
    std::vector<float> rest(tokens * n), scales(tokens);
    std::vector<uint8_t> codes(rest.size());
    ok = ok && LoadHalves(body, tokens, scales.data());
    UnpackBits(body + 2 * tokens, codes.size(), bits, codes.data());
    body += 2 * tokens + PackedBytes(codes.size(), bits);
    for (size_t t = 0; t < tokens; ++t) {
      CodebookLoops::Best().scaled(entries, codes.data() + t * n, n, scales[t],
                                   rest.data() + t * n);
    }
    InverseSignedHadamard(tokens, n, rest.data());
    for (size_t t = 0; t < tokens; ++t) {
      for (size_t i = 0; i < n; ++i) values[t * width + column + i] += rest[t * n + i];
    }
  });
  return ok;
}

class PredictCoder final : public VectorCoder {
 public:
  PredictCoder(const KvSpec& spec, std::shared_ptr<const PredictTables> tables, uint32_t bits)
      : spec_(spec), tables_(std::move(tables)), bits_(bits) {}

  bool Encode(LayerRange layers, const float* x, size_t tokens, std::string& out) const override {
    return ForEachSlab(layers, tokens, [&](const Place& place, std::vector<float>& values) {
      std::vector<float> rest(values.size());
      for (size_t i = 0; i < rest.size(); ++i) {
        rest[i] = x[i / place.width * place.stride + place.column + i % place.width] - values[i];
      }
      const size_t at = out.size();
      return EncodeRest(rest, place.width, place.bits, out) &&
             AddRest(reinterpret_cast<const uint8_t*>(out.data()) + at, place.width, tokens,
                     place.bits, values.data());
    });
  }

  absl::Status Decode(LayerRange layers, std::span<const uint8_t> body, size_t tokens,
                      float* x) const override {
    const bool ok =
        ForEachSlab(layers, tokens, [&](const Place& place, std::vector<float>& values) {
          const size_t bytes = RestBytes(place.width, tokens, place.bits);
          if (body.size() < bytes ||
              !AddRest(body.data(), place.width, tokens, place.bits, values.data())) {
            return false;
          }
          body = body.subspan(bytes);
          for (size_t t = 0; t < tokens; ++t) {
            std::copy_n(values.data() + t * place.width, place.width,
                        x + t * place.stride + place.column);
          }
          return true;
        });
    if (ok && body.empty()) return absl::OkStatus();
    return absl::DataLossError("rests are damaged, cut off or followed by other bytes");
  }

 private:
  // The place of a slab in the vectors of its run.
  struct Place {
    size_t column = 0, width = 0, stride = 0;
    uint32_t bits = 0;
  };

  // Calls code(place, prediction), which makes decoded values of the prediction, for K and V of one
  // layer after the other. False as soon as it is.
  template <typename Code>
  bool ForEachSlab(LayerRange layers, size_t tokens, const Code& code) const {
    Rows k{SlabValues(spec_, Part::kK, 1), {}}, v{SlabValues(spec_, Part::kV, 1), {}};
    const size_t parts = v.width > 0 ? 2 : 1;
    for (uint32_t i = 0; i < layers.count; ++i) {
      for (const Part part : {Part::kK, Part::kV}) {
        const bool is_k = part == Part::kK;
        Rows& rows = is_k ? k : v;
        if (rows.width == 0) continue;
        const std::vector<float> inputs = InputRows(part, i == 0, k, v, tokens);
        rows.values =
            Predict(tables_->slabs[(layers.first + i) * parts + (is_k ? 0 : 1)], inputs, tokens);
        const Place place{is_k ? i * k.width : layers.count * k.width + i * v.width, rows.width,
                          layers.count * (k.width + v.width), i == 0 ? kFirstLayerBits : bits_};
        if (!code(place, rows.values)) return false;
      }
    }
    return true;
  }

  const KvSpec spec_;
  const std::shared_ptr<const PredictTables> tables_;
  const uint32_t bits_;
};

// Fits the predictors of one run after the other on what the ones before leave decoded.
std::string FitPredictors(const KvSpec& spec, const CalibrationShape& shape, uint32_t bits,
                          const TokenSample& sample) {
  ByteWriter out;
  Rows k{SlabValues(spec, Part::kK, 1), {}}, v{SlabValues(spec, Part::kV, 1), {}};
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    const bool first = layer % shape.layers_per_run == 0;
    for (const Part part : {Part::kK, Part::kV}) {
      Rows& rows = part == Part::kK ? k : v;
      if (rows.width == 0) continue;
      const size_t column =
          part == Part::kK ? layer * k.width : spec.layers * k.width + layer * v.width;
      const std::vector<float> x = sample.Columns(column, rows.width);
      const std::vector<float> inputs = InputRows(part, first, k, v, sample.tokens());
      const LinearMap fitted = FitLinear(inputs, x, sample.tokens());
      Predictor predictor{fitted.bias, PackedMatrix(fitted.inputs, rows.width)};
      std::vector<float> scales, row(rows.width);
      std::vector<uint16_t> halves;
      HalveRows(fitted.map, rows.width, scales, halves);
      PutFloats(fitted.bias, out);
      PutFloats(scales, out);
      PutHalves(halves, out);
      for (size_t i = 0; i < fitted.inputs; ++i) {
        for (size_t j = 0; j < rows.width; ++j) {
          row[j] = HalfToFloat(halves[i * rows.width + j]) * scales[i];
        }
        predictor.map.SetRow(i, row);
      }
      rows.values = Predict(predictor, inputs, sample.tokens());
      std::vector<float> rest(x.size());
      for (size_t i = 0; i < x.size(); ++i) rest[i] = x[i] - rows.values[i];
      std::string coded;
      const uint32_t b = first ? kFirstLayerBits : bits;
      if (EncodeRest(rest, rows.width, b, coded)) {
        AddRest(reinterpret_cast<const uint8_t*>(coded.data()), rows.width, sample.tokens(), b,
                rows.values.data());
      }
    }
  }
  return std::move(out).Take();
}

bool ReadPredictor(ByteReader& in, size_t inputs, size_t outputs, Predictor& predictor) {
  const size_t bytes = 4 * (inputs + outputs) + 2 * inputs * outputs;
  if (in.remaining() < bytes) return false;
  std::vector<float> scales;
  if (!ReadFloats(in, outputs, predictor.bias) || !ReadFloats(in, inputs, scales)) return false;
  predictor.map = PackedMatrix(inputs, outputs);
  return ReadRows(in, scales, outputs,
                  [&](size_t i, std::span<const float> row) { predictor.map.SetRow(i, row); });
}

absl::StatusOr<uint32_t> ReadBits(const OpArguments& arguments) {
  return arguments.Number("bits", 2, 2, 4);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const RunCodec>> MakePredictRunCodec(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"bits", "run", "first", "last", "blob"}));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t bits, ReadBits(arguments));
  KVSTOW_ASSIGN_OR_RETURN(const RawTokens raw_tokens, ReadRawTokens(arguments, 4));
  KVSTOW_ASSIGN_OR_RETURN(const CalibrationNeed need, ReadCalibrationNeed(arguments));
  KVSTOW_ASSIGN_OR_RETURN(auto tables,
                          TablesFor<PredictTables>(arguments, spec, std::move(calibration)));
  const uint32_t layers = std::min(need.layers_per_run, spec.layers);
  return MakeVectorRunCodec(spec, layers, raw_tokens,
                            std::make_unique<PredictCoder>(spec, std::move(tables), bits));
}

absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParsePredictTables(
    const CalibrationShape& shape, std::span<const uint8_t> body) {
  ByteReader in(body);
  const auto tables = std::make_shared<PredictTables>();
  const size_t k = size_t{shape.kv_heads} * shape.head_dim_k;
  const size_t v = size_t{shape.kv_heads} * shape.head_dim_v;
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    const bool first = layer % shape.layers_per_run == 0;
    for (const Part part : {Part::kK, Part::kV}) {
      const size_t width = part == Part::kK ? k : v;
      if (width == 0) continue;
      if (!ReadPredictor(in, Inputs(part, first, k, v), width, tables->slabs.emplace_back())) {
        return absl::DataLossError(absl::StrCat("layer ", layer, " is damaged"));
      }
    }
  }
  if (in.remaining() > 0) return absl::DataLossError("bytes follow its last layer");
  return tables;
}

absl::StatusOr<std::unique_ptr<CalibrationFit>> StartPredictFit(const KvSpec& spec,
                                                                const OpArguments& arguments,
                                                                const ModelStats& stats) {
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t bits, ReadBits(arguments));
  KVSTOW_ASSIGN_OR_RETURN(const CalibrationNeed need, ReadCalibrationNeed(arguments));
  const CalibrationShape shape = ShapeFor(spec, need.layers_per_run);
  return MakeSampledFit(
      spec, stats, need.layers_per_run, "predict", [spec, shape, bits](const TokenSample& sample) {
        return absl::StatusOr<std::string>(FitPredictors(spec, shape, bits, sample));
      });
}

}  // namespace kvstow
