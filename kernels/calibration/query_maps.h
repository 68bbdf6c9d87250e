// Maps from K and V of a token to its queries: section `query_maps` of a calibration blob
// (calibration.h).
//
// A layer makes K before RoPE, V and queries of a token out of the same hidden state, each by a
// linear map. So K and V tell most of a query, on texts of any kind: 60 to 90 % of its variance in
// SmolLM2-135M. An encoder then knows which tokens of a page get attention, and no worker need tell
// it (importance/foretold_attention.h). Decoders do not read the section.
//
// Which tokens matter changes slowly from layer to layer. Some layers have a map, and the others
// stand between two of these. `kvstow-calibrate` makes the maps by regression.
//
// Immutable: thread-safe. docs/FORMAT.md has the bytes.
#ifndef KVSTOW_KERNELS_CALIBRATION_QUERY_MAPS_H_
#define KVSTOW_KERNELS_CALIBRATION_QUERY_MAPS_H_

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/calibration/calibration.h"
#include "kernels/transform/dense_product.h"

namespace kvstow {

inline constexpr absl::string_view kQueryMapsSection = "query_maps";
inline constexpr uint32_t kMaxQueryHeads = 1 << 14;  // of a layer, here and in section `queries`

// The map of one layer. A query is before RoPE, and scaled as logits are: q k is a logit. It has
// query heads of head_dim_k; those of a KV head stand together.
struct QueryMap {
  uint32_t layer = 0;
  PackedMatrix weights;         // [kv_heads * (head_dim_k + head_dim_v), heads * head_dim_k]
  std::vector<float> constant;  // [heads * head_dim_k]
};

struct QueryMaps final : CalibratedTables {
  uint32_t heads = 0;            // of queries; a multiple of the KV heads
  std::vector<QueryMap> layers;  // ascending, at least one
};
// Returns the section of a calibration, which lives as long as that; null without one.
const QueryMaps* QueryMapsOf(const Calibration& calibration);

// What a map is made of.
struct QueryMapParts {
  uint32_t layer = 0;
  std::vector<float> weights;   // [heads * head_dim_k, kv_heads * (head_dim_k + head_dim_v)]
  std::vector<float> constant;  // [heads * head_dim_k]
};
// Rounds weights to fp16; each row has a scale. Fails with INVALID_ARGUMENT for sizes that do not
// fit the shape, for layers that do not ascend, and for values that are not finite.
absl::StatusOr<CalibrationSection> QueryMapsSection(const CalibrationShape& shape, uint32_t heads,
                                                    std::span<const QueryMapParts> maps);
// The section's parser (codec/calibrate.h).
absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParseQueryMaps(
    const CalibrationShape& shape, std::span<const uint8_t> body);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_QUERY_MAPS_H_
