#include "kernels/calibration/query_maps.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "kernels/calibration/calibration_fields.h"
#include "kernels/calibration/calibration_fit.h"

namespace kvstow {
namespace {

bool HeadsFit(const CalibrationShape& shape, uint32_t heads) {
  return heads >= 1 && heads <= kMaxQueryHeads && heads % shape.kv_heads == 0;
}

// Values of K and V of a token in one layer.
size_t Values(const CalibrationShape& shape) {
  return size_t{shape.kv_heads} * (shape.head_dim_k + shape.head_dim_v);
}

bool Finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
}

}  // namespace

const QueryMaps* QueryMapsOf(const Calibration& calibration) {
  return static_cast<const QueryMaps*>(calibration.Tables(kQueryMapsSection));
}

absl::StatusOr<CalibrationSection> QueryMapsSection(const CalibrationShape& shape, uint32_t heads,
                                                    std::span<const QueryMapParts> maps) {
  const size_t outputs = size_t{heads} * shape.head_dim_k, values = Values(shape);
  if (!HeadsFit(shape, heads)) {
    return absl::InvalidArgumentError(
        absl::StrCat("maps to ", heads, " query heads do not fit ", shape.kv_heads, " KV heads"));
  }
  ByteWriter body;
  body.Put(heads);
  body.Put(static_cast<uint32_t>(maps.size()));
  for (const QueryMapParts& map : maps) {
    if (map.weights.size() != outputs * values || map.constant.size() != outputs ||
        !Finite(map.weights) || !Finite(map.constant)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the map to queries of layer ", map.layer,
                       " does not fit the pages, or has a value that is not finite"));
    }
    std::vector<float> scales;
    std::vector<uint16_t> halves;
    HalveRows(map.weights, values, scales, halves);
    body.Put(map.layer);
    PutFloats(map.constant, body);
    PutFloats(scales, body);
    PutHalves(halves, body);
  }
  CalibrationSection out{std::string(kQueryMapsSection), std::move(body).Take()};
  const absl::Status readable = ParseQueryMaps(shape, AsBytes(out.body)).status();
  if (readable.ok()) return out;
  return absl::InvalidArgumentError(absl::StrCat("maps to queries: ", readable.message()));
}

absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParseQueryMaps(
    const CalibrationShape& shape, std::span<const uint8_t> body) {
  ByteReader in(body);
  auto out = std::make_shared<QueryMaps>();
  out->heads = in.Get<uint32_t>();
  const auto count = in.Get<uint32_t>();
  if (!in.ok() || !HeadsFit(shape, out->heads)) {
    return absl::DataLossError(
        absl::StrCat(out->heads, " query heads for ", shape.kv_heads, " KV heads"));
  }
  if (count < 1 || count > shape.layers) {
    return absl::DataLossError(absl::StrCat(count, " maps for ", shape.layers, " layers"));
  }
  const size_t outputs = size_t{out->heads} * shape.head_dim_k, values = Values(shape);
  for (uint32_t i = 0; i < count; ++i) {
    const auto layer = in.Get<uint32_t>();
    if (!in.ok() || layer >= shape.layers || (i > 0 && layer <= out->layers.back().layer)) {
      return absl::DataLossError(absl::StrCat("map ", i, " is of no layer, or out of order"));
    }
    std::vector<float> constant, scales;
    if (in.remaining() < outputs * (2 * sizeof(float) + 2 * values) ||
        !ReadFloats(in, outputs, constant) || !ReadFloats(in, outputs, scales, 0)) {
      return absl::DataLossError(
          absl::StrCat("the map of layer ", layer, " is cut off or not finite"));
    }
    PackedMatrix weights(values, outputs);
    if (!ReadRows(in, scales, values, [&](size_t column, std::span<const float> row) {
          weights.SetColumn(column, row);
        })) {
      return absl::DataLossError(absl::StrCat("a weight of layer ", layer, " is not finite"));
    }
    out->layers.push_back({layer, std::move(weights), std::move(constant)});
  }
  if (in.remaining() != 0) return absl::DataLossError("bytes follow its end");
  return out;
}

}  // namespace kvstow
