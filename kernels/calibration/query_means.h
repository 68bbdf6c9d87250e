// Mean queries of a model's layers: section `query_means` of a calibration blob (calibration.h).
//
// Which tokens of a page get attention depends little on who asks. The mean query of a head, before
// RoPE, finds them nearly as well as the page's own queries do. So an encoder lets it ask, and no
// worker need tell what gets attention (importance/foretold_attention.h). Decoders do not read the
// section.
//
// Which tokens matter changes slowly from layer to layer. Some layers have mean queries, and the
// others stand between two of these. `kvstow-calibrate` makes them, and so does `kvstow.hf`.
//
// Immutable: thread-safe. docs/FORMAT.md has the bytes.
#ifndef KVSTOW_KERNELS_CALIBRATION_QUERY_MEANS_H_
#define KVSTOW_KERNELS_CALIBRATION_QUERY_MEANS_H_

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/calibration/calibration.h"

namespace kvstow {

inline constexpr absl::string_view kQueryMeansSection = "query_means";
inline constexpr uint32_t kMaxQueryHeads = 1 << 14;  // of a layer, here and in section `queries`

struct QueryMeans final : CalibratedTables {
  struct Layer {
    uint32_t layer = 0;
    // [heads, head_dim_k], before RoPE, and scaled as logits are: q k is a logit. Query heads of a
    // KV head stand together.
    std::vector<float> means;
  };
  uint32_t heads = 0;         // of queries in each of these layers; a multiple of the KV heads
  std::vector<Layer> layers;  // ascending, at least one
};
// Between which of these layers a layer stands, by their indices: the same one twice for a layer
// that is one of them, or that has none before it or behind it.
struct LayersBeside {
  size_t before = 0, behind = 0;
  float share = 0;  // of the scores of the one behind
};
LayersBeside LayersWithQueries(const QueryMeans& queries, uint32_t layer);
// Returns the section of a calibration, which lives as long as that; null without one.
const QueryMeans* QueryMeansOf(const Calibration& calibration);

// Fails with INVALID_ARGUMENT for sizes that do not fit the shape, for no layer or layers that do
// not ascend, and for values that are not finite.
absl::StatusOr<CalibrationSection> QueryMeansSection(const CalibrationShape& shape,
                                                     const QueryMeans& queries);
// Returns the mean queries of an engine's rank, which has the model's layers and KV heads from
// these on; null where none of its layers has any.
std::shared_ptr<const QueryMeans> QueryMeansOfRank(const CalibrationShape& model,
                                                   const QueryMeans& whole, const KvSpec& rank,
                                                   uint32_t first_layer, size_t first_head);
// The section's parser (codec/calibrate.h).
absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParseQueryMeans(
    const CalibrationShape& shape, std::span<const uint8_t> body);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_QUERY_MEANS_H_
