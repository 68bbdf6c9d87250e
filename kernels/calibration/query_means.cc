#include "kernels/calibration/query_means.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/calibration/calibration_fields.h"

namespace kvstow {

LayersBeside LayersWithQueries(const QueryMeans& queries, uint32_t layer) {
  const auto& layers = queries.layers;
  const auto at = std::ranges::lower_bound(layers, layer, {}, &QueryMeans::Layer::layer);
  const auto found = static_cast<size_t>(at - layers.begin());
  const size_t behind = std::min(found, layers.size() - 1);
  const uint32_t b = layers[behind].layer;
  if (behind == 0 || b <= layer) return {.before = behind, .behind = behind};
  const uint32_t a = layers[behind - 1].layer;
  return {.before = behind - 1,
          .behind = behind,
          .share = static_cast<float>(layer - a) / static_cast<float>(b - a)};
}

const QueryMeans* QueryMeansOf(const Calibration& calibration) {
  return static_cast<const QueryMeans*>(calibration.Tables(kQueryMeansSection));
}

absl::StatusOr<CalibrationSection> QueryMeansSection(const CalibrationShape& shape,
                                                     const QueryMeans& queries) {
  const size_t values = size_t{queries.heads} * shape.head_dim_k;
  ByteWriter body;
  body.Put(queries.heads);
  body.Put(static_cast<uint32_t>(queries.layers.size()));
  for (const QueryMeans::Layer& layer : queries.layers) {
    if (layer.means.size() != values) {
      return absl::InvalidArgumentError(absl::StrCat("mean queries of layer ", layer.layer,
                                                     " have ", layer.means.size(), " values, not ",
                                                     values));
    }
    body.Put(layer.layer);
    PutFloats(layer.means, body);
  }
  CalibrationSection out{std::string(kQueryMeansSection), std::move(body).Take()};
  const absl::Status readable = ParseQueryMeans(shape, AsBytes(out.body)).status();
  if (readable.ok()) return out;
  return absl::InvalidArgumentError(absl::StrCat("mean queries: ", readable.message()));
}

std::shared_ptr<const QueryMeans> QueryMeansOfRank(const CalibrationShape& model,
                                                   const QueryMeans& whole, const KvSpec& rank,
                                                   uint32_t first_layer, size_t first_head) {
  const size_t group = whole.heads / model.kv_heads, dim = model.head_dim_k;
  auto out = std::make_shared<QueryMeans>();
  out->heads = static_cast<uint32_t>(rank.kv_heads * group);
  for (const QueryMeans::Layer& layer : whole.layers) {
    if (layer.layer < first_layer || layer.layer - first_layer >= rank.layers) continue;
    const std::span<const float> part =
        std::span(layer.means).subspan(first_head * group * dim, out->heads * dim);
    out->layers.push_back({layer.layer - first_layer, {part.begin(), part.end()}});
  }
  return out->layers.empty() ? nullptr : out;
}

absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParseQueryMeans(
    const CalibrationShape& shape, std::span<const uint8_t> body) {
  ByteReader in(body);
  auto out = std::make_shared<QueryMeans>();
  out->heads = in.Get<uint32_t>();
  const auto count = in.Get<uint32_t>();
  if (!in.ok() || out->heads < 1 || out->heads > kMaxQueryHeads ||
      out->heads % shape.kv_heads != 0) {
    return absl::DataLossError(
        absl::StrCat(out->heads, " query heads for ", shape.kv_heads, " KV heads"));
  }
  if (count < 1 || count > shape.layers) {
    return absl::DataLossError(absl::StrCat(count, " of ", shape.layers, " layers"));
  }
  for (uint32_t i = 0; i < count; ++i) {
    QueryMeans::Layer layer{.layer = in.Get<uint32_t>(), .means = {}};
    if (!in.ok() || layer.layer >= shape.layers ||
        (i > 0 && layer.layer <= out->layers.back().layer)) {
      return absl::DataLossError(absl::StrCat("number ", i, " is of no layer, or out of order"));
    }
    if (!ReadFloats(in, size_t{out->heads} * shape.head_dim_k, layer.means)) {
      return absl::DataLossError(absl::StrCat("layer ", layer.layer, " is cut off or not finite"));
    }
    out->layers.push_back(std::move(layer));
  }
  if (in.remaining() != 0) return absl::DataLossError("bytes follow its end");
  return out;
}

}  // namespace kvstow
