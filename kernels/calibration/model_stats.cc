#include "kernels/calibration/model_stats.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "kernels/calibration/calibration_fields.h"
#include "kernels/calibration/query_means.h"

namespace kvstow {
namespace {

size_t HeadsOf(const CalibrationShape& shape) { return size_t{shape.layers} * shape.kv_heads; }

bool AllFinite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
}

// Costs of errors as large as codecs may leave stay finite in F32: values go up to 65,504.
constexpr double kMostCost = 1e20;

bool CostsFit(std::span<const float> metric, std::span<const float> gain) {
  const size_t each = metric.size() / std::max<size_t>(gain.size(), 1);
  for (size_t i = 0; i < metric.size(); ++i) {
    const double square = double{gain[i / each]} * gain[i / each];
    if (square > kMostCost || square * std::abs(metric[i]) > kMostCost) return false;
  }
  return true;
}

bool Fits(const std::vector<float>& metric, const std::vector<float>& gain, size_t heads,
          size_t dim) {
  return metric.size() == heads * dim * dim && gain.size() == (dim > 0 ? heads : 0) &&
         AllFinite(metric) && AllFinite(gain) &&
         std::ranges::all_of(gain, [](float x) { return x > 0; }) && CostsFit(metric, gain);
}

// Appends the gain of a head and the lower triangle of its metric.
void PutHead(std::span<const float> metric, float gain, size_t dim, ByteWriter& out) {
  PutFloats({&gain, 1}, out);
  for (size_t r = 0; r < dim; ++r) PutFloats(metric.subspan(r * dim, r + 1), out);
}

// Reads what PutHead wrote. Returns false for a value that is not finite, or bytes that are cut
// off.
bool ReadHead(ByteReader& in, size_t dim, std::vector<float>& gains, std::vector<float>& metrics) {
  const size_t at = metrics.size();
  std::vector<float> row;
  if (!ReadFloats(in, 1, row)) return false;
  gains.push_back(row[0]);
  metrics.resize(at + dim * dim);
  for (size_t r = 0; r < dim; ++r) {
    if (!ReadFloats(in, r + 1, row)) return false;
    for (size_t c = 0; c <= r; ++c) {
      metrics[at + r * dim + c] = metrics[at + c * dim + r] = row[c];
    }
  }
  return true;
}

// Slopes stand behind the heads: of each layer those of K, then those of V.
bool ReadSlopes(ByteReader& in, const CalibrationShape& shape, ModelStats& stats) {
  std::vector<float> row;
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    if (!ReadFloats(in, size_t{shape.kv_heads} * shape.head_dim_k, row)) return false;
    stats.slope_k.insert(stats.slope_k.end(), row.begin(), row.end());
    if (!ReadFloats(in, size_t{shape.kv_heads} * shape.head_dim_v, row)) return false;
    stats.slope_v.insert(stats.slope_v.end(), row.begin(), row.end());
  }
  return true;
}

bool SlopesFit(const CalibrationShape& shape, const ModelStats& stats) {
  if (!stats.has_slopes()) return true;
  const size_t heads = HeadsOf(shape);
  return stats.slope_k.size() == heads * shape.head_dim_k &&
         stats.slope_v.size() == heads * shape.head_dim_v && AllFinite(stats.slope_k) &&
         AllFinite(stats.slope_v);
}

// Values of the vector that foretells the entropy.
size_t EntropyWidth(const CalibrationShape& shape) {
  return size_t{shape.kv_heads} * (shape.head_dim_k + shape.head_dim_v) + 1;
}

bool EntropyFits(const CalibrationShape& shape, const ModelStats& stats) {
  return stats.entropy.empty() || (stats.has_slopes() && AllFinite(stats.entropy) &&
                                   stats.entropy.size() == EntropyWidth(shape));
}

bool PowerFits(const ModelStats& stats) {
  return stats.power == 1 ||
         (!stats.entropy.empty() && stats.power >= kLeastPower && stats.power <= kMostPower);
}

// Returns the values of a rank. `all` has those of its model: [layers, heads, width].
std::vector<float> PartOf(const std::vector<float>& all, size_t heads, size_t width,
                          size_t first_layer, size_t first_head, const KvSpec& spec) {
  std::vector<float> out;
  if (all.empty()) return out;
  for (size_t layer = first_layer; layer < first_layer + spec.layers; ++layer) {
    const auto from = all.begin() + static_cast<ptrdiff_t>((layer * heads + first_head) * width);
    out.insert(out.end(), from, from + static_cast<ptrdiff_t>(spec.kv_heads * width));
  }
  return out;
}

bool SameRopes(const CalibrationShape& model, const KvSpec& spec, uint32_t first_layer) {
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    const RopeSpec& of = RopeOfLayer(model.rope, model.other_rope, first_layer + layer);
    if (of != RopeOfLayer(spec, layer)) return false;
  }
  return true;
}

// Returns how many times as many heads of layers the model has as the rank. A rank's pages may cost
// what the space says, and know nothing of those of other ranks. So what they cost is told as if
// all the model's heads had their errors. What the model loses is then the mean of what ranks say,
// also where ranks share heads.
double ModelOverRank(const CalibrationShape& model, const KvSpec& spec) {
  return static_cast<double>(HeadsOf(model)) / static_cast<double>(HeadsOf(ShapeFor(spec, 1)));
}

absl::Status CheckRank(const CalibrationShape& model, const KvSpec& spec, const RankOfModel& rank) {
  const auto refused = [](absl::string_view what, uint64_t has, uint64_t wants) {
    return absl::InvalidArgumentError(absl::StrCat("the statistics are of a model of ", has, " ",
                                                   what, ", and the rank wants ", wants));
  };
  if (model.head_dim_k != spec.head_dim_k) {
    return refused("values of K a head", model.head_dim_k, spec.head_dim_k);
  }
  if (model.head_dim_v != spec.head_dim_v) {
    return refused("values of V a head", model.head_dim_v, spec.head_dim_v);
  }
  const uint64_t end = uint64_t{rank.first_layer} + spec.layers;
  if (end > model.layers) return refused("layers", model.layers, end);
  if (rank.tensor_rank >= rank.tensor_size) {
    return absl::InvalidArgumentError(absl::StrCat("tensor rank ", rank.tensor_rank, " of ",
                                                   rank.tensor_size, " is none: they begin at 0"));
  }
  const uint32_t heads = std::max(1u, model.kv_heads / rank.tensor_size);
  const bool even = model.kv_heads % rank.tensor_size == 0 || model.kv_heads < rank.tensor_size;
  if (!even || heads != spec.kv_heads) {
    return refused("KV heads a layer", model.kv_heads, uint64_t{spec.kv_heads} * rank.tensor_size);
  }
  if (!SameRopes(model, spec, rank.first_layer)) {
    return absl::InvalidArgumentError("the statistics are of a model with another RoPE");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckModelStats(const CalibrationShape& shape, const ModelStats& stats) {
  const bool sensitivity = stats.sensitivity.size() % shape.layers == 0 &&
                           AllFinite(stats.sensitivity) &&
                           std::ranges::all_of(stats.sensitivity, [](float s) { return s >= 0; });
  if (!sensitivity) {
    return absl::InvalidArgumentError(
        "the model's sensitivities are not finite numbers for every layer of a token");
  }
  if (!SlopesFit(shape, stats)) {
    return absl::InvalidArgumentError(
        "the model's slopes of tokens do not fit the pages' layers, KV heads and head_dim, or are "
        "not finite");
  }
  if (!EntropyFits(shape, stats)) {
    return absl::InvalidArgumentError(
        "what foretells the model's entropy does not fit the pages' KV heads and head_dim, is not "
        "finite, or has no slopes beside it");
  }
  if (!PowerFits(stats)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the power of the model's costs, ", stats.power, ", is not within ", kLeastPower, " and ",
        kMostPower, ", or has nothing beside it that foretells the entropy"));
  }
  const size_t heads = HeadsOf(shape);
  const bool none = stats.empty() && stats.metric_k.empty() && stats.metric_v.empty();
  if (none || (Fits(stats.metric_k, stats.gain_k, heads, shape.head_dim_k) &&
               Fits(stats.metric_v, stats.gain_v, heads, shape.head_dim_v))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "the model's statistics do not fit the pages' layers, KV heads and head_dim, or hold a gain "
      "that is not positive, or costs above 1e20");
}

const ModelStats* StatsOf(const Calibration& calibration) {
  const CalibratedTables* const tables = calibration.Tables(kStatsSection);
  return tables == nullptr ? nullptr : &static_cast<const StatsTables*>(tables)->stats;
}

absl::StatusOr<CalibrationSection> StatsSection(const CalibrationShape& shape,
                                                const ModelStats& stats) {
  KVSTOW_RETURN_IF_ERROR(CheckModelStats(shape, stats));
  if (stats.empty()) return absl::InvalidArgumentError("there are no statistics of the model");
  const size_t k = shape.head_dim_k, v = shape.head_dim_v, heads = shape.kv_heads;
  ByteWriter body;
  for (size_t layer = 0; layer < shape.layers; ++layer) {
    for (size_t i = layer * heads; i < (layer + 1) * heads; ++i) {
      PutHead(std::span(stats.metric_k).subspan(i * k * k, k * k), stats.gain_k[i], k, body);
    }
    for (size_t i = layer * heads; v > 0 && i < (layer + 1) * heads; ++i) {
      PutHead(std::span(stats.metric_v).subspan(i * v * v, v * v), stats.gain_v[i], v, body);
    }
  }
  for (size_t layer = 0; stats.has_slopes() && layer < shape.layers; ++layer) {
    PutFloats(std::span(stats.slope_k).subspan(layer * heads * k, heads * k), body);
    PutFloats(std::span(stats.slope_v).subspan(layer * heads * v, heads * v), body);
  }
  PutFloats(stats.entropy, body);
  if (stats.power != 1) PutFloats({&stats.power, 1}, body);
  return CalibrationSection{std::string(kStatsSection), std::move(body).Take()};
}

absl::StatusOr<std::string> StatsCalibration(const KvSpec& spec, const ModelStats& stats) {
  KVSTOW_RETURN_IF_ERROR(Validate(spec));
  const CalibrationShape shape = ShapeFor(spec, 1);
  std::vector<CalibrationSection> sections(1);
  KVSTOW_ASSIGN_OR_RETURN(sections[0], StatsSection(shape, stats));
  if (stats.queries != nullptr) {
    KVSTOW_ASSIGN_OR_RETURN(sections.emplace_back(), QueryMeansSection(shape, *stats.queries));
  }
  return SerializeCalibration(shape, sections);
}

absl::StatusOr<std::string> StatsOfRank(const CalibrationShape& model, const ModelStats& whole,
                                        const KvSpec& spec, const RankOfModel& rank) {
  KVSTOW_RETURN_IF_ERROR(Validate(spec));
  KVSTOW_RETURN_IF_ERROR(CheckModelStats(model, whole));
  KVSTOW_RETURN_IF_ERROR(CheckRank(model, spec, rank));
  const size_t first_head = uint64_t{rank.tensor_rank} * model.kv_heads / rank.tensor_size;
  const auto part = [&](const std::vector<float>& all, size_t width) {
    return PartOf(all, model.kv_heads, width, rank.first_layer, first_head, spec);
  };
  const size_t k = model.head_dim_k, v = model.head_dim_v;
  // A part of the last layer's heads does not foretell the entropy.
  const bool last = rank.first_layer + spec.layers == model.layers;
  const bool entropy = last && spec.kv_heads == model.kv_heads;
  const bool all = entropy && rank.first_layer == 0;
  const auto gains = [&](const std::vector<float>& of_model) {
    std::vector<float> out = part(of_model, 1);
    const auto factor = static_cast<float>(std::sqrt(ModelOverRank(model, spec)));
    for (float& gain : out) gain *= factor;
    return out;
  };
  std::shared_ptr<const QueryMeans> queries;
  if (whole.queries != nullptr) {
    queries = QueryMeansOfRank(model, *whole.queries, spec, rank.first_layer, first_head);
  }
  return StatsCalibration(spec, {.metric_k = part(whole.metric_k, k * k),
                                 .metric_v = part(whole.metric_v, v * v),
                                 .gain_k = gains(whole.gain_k),
                                 .gain_v = gains(whole.gain_v),
                                 .slope_k = part(whole.slope_k, k),
                                 .slope_v = part(whole.slope_v, v),
                                 .entropy = entropy ? whole.entropy : std::vector<float>(),
                                 .power = all ? whole.power : 1,
                                 .sensitivity = {},
                                 .queries = std::move(queries)});
}

absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParseStatsTables(
    const CalibrationShape& shape, std::span<const uint8_t> body) {
  const size_t k = shape.head_dim_k, v = shape.head_dim_v;
  const auto floats = [](size_t dim) { return dim > 0 ? 1 + dim * (dim + 1) / 2 : 0; };
  const size_t size = HeadsOf(shape) * (floats(k) + floats(v)) * sizeof(float);
  const size_t with_slopes = size + HeadsOf(shape) * (k + v) * sizeof(float);
  const size_t with_entropy = with_slopes + EntropyWidth(shape) * sizeof(float);
  const size_t with_power = with_entropy + sizeof(float);
  if (body.size() != size && body.size() != with_slopes && body.size() != with_entropy &&
      body.size() != with_power) {
    return absl::DataLossError(absl::StrCat(
        body.size(), " bytes for a shape that takes ", size, ", ", with_slopes, " with slopes, ",
        with_entropy, " with slopes and entropy, or ", with_power, " with these and a power"));
  }
  ByteReader in(body);
  auto out = std::make_shared<StatsTables>();
  ModelStats& stats = out->stats;
  bool finite = true;
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (uint32_t head = 0; finite && head < shape.kv_heads; ++head) {
      finite = ReadHead(in, k, stats.gain_k, stats.metric_k);
    }
    for (uint32_t head = 0; finite && v > 0 && head < shape.kv_heads; ++head) {
      finite = ReadHead(in, v, stats.gain_v, stats.metric_v);
    }
  }
  if (finite && body.size() >= with_slopes) finite = ReadSlopes(in, shape, stats);
  if (finite && body.size() >= with_entropy) {
    finite = ReadFloats(in, EntropyWidth(shape), stats.entropy);
  }
  std::vector<float> power;
  if (finite && body.size() == with_power) finite = ReadFloats(in, 1, power);
  if (!power.empty()) stats.power = power[0];
  if (!finite) return absl::DataLossError("a statistic is not finite");
  const absl::Status fits = CheckModelStats(shape, stats);
  if (!fits.ok()) return absl::DataLossError(fits.message());
  return out;
}

}  // namespace kvstow
