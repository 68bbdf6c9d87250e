// What a model feels of errors in its K and V, and section `stats` of a calibration blob
// (calibration.h), which brings that to a server.
//
// It belongs to the model. A fit of tables takes it (calibration_fit.h), and so does the prediction
// of what lossy pages cost (methods/divergence_meter.h). No page needs it for decoding. The section
// has no sensitivities: these belong to the tokens of some texts. Slopes foretell them for any text
// (token_slopes.h). docs/FORMAT.md has the bytes.
//
// Values and immutable tables; free functions, thread-safe.
#ifndef KVSTOW_KERNELS_CALIBRATION_MODEL_STATS_H_
#define KVSTOW_KERNELS_CALIBRATION_MODEL_STATS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/calibration/calibration.h"
#include "kernels/page/page.h"

namespace kvstow {

inline constexpr absl::string_view kStatsSection = "stats";

class Vocabulary;
struct QueryMeans;

// All empty = not known.
struct ModelStats {
  // [layers, kv_heads, d, d], symmetric, of trace d: x' M x is the cost of an error x of K before
  // RoPE, or of V.
  std::vector<float> metric_k, metric_v;
  // [layers, kv_heads]: the square root of the damage (a KL divergence, in nats) that noise does in
  // that slab alone, when x' M x of its vectors is d on average. An error x so costs
  // gain^2 x' M x / d.
  std::vector<float> gain_k, gain_v;
  // [layers, kv_heads, d]: how the logarithm of a token's sensitivity grows with its K before RoPE,
  // and with its V. Both empty = not known.
  std::vector<float> slope_k, slope_v;
  // [kv_heads (K), d + kv_heads (V), d + 1]: the entropy of the model's next token, over its mean
  // over texts, is the product of this and (K before RoPE and V of the last layer, 1). What
  // errors of a text cost grows with it. Only where there are slopes; empty = not known.
  std::vector<float> entropy;
  // A KL divergence may grow faster than squared errors. Where errors cost c nats by the above, the
  // divergence is kPowerNats (c / kPowerNats)^power. Other than 1 only beside `entropy`.
  float power = 1;
  // [tokens, layers] of all pages in the order in which they are added: the cost of errors of that
  // token in that layer, in any unit; 0 = not known. Tokens are only compared within their page.
  // May be empty by itself: slopes then stand in.
  std::vector<float> sensitivity;
  // Whether keys pass a norm (QK-norm: Gemma 3, Qwen 3). Only what K and V alone say goes by it
  // (cost_prior.h), so only where metrics and gains are not known. In no section.
  bool normed_keys = false;
  // For codes of `joint`; null = not known. They have sections of their own (query_means.h,
  // vocabulary.h).
  std::shared_ptr<const QueryMeans> queries = nullptr;
  std::shared_ptr<const Vocabulary> vocabulary = nullptr;

  bool empty() const { return gain_k.empty() && gain_v.empty(); }
  bool has_slopes() const { return !slope_k.empty() || !slope_v.empty(); }
};

// Fails with INVALID_ARGUMENT when the statistics are neither empty nor of this shape.
absl::Status CheckModelStats(const CalibrationShape& shape, const ModelStats& stats);

inline constexpr float kLeastPower = 0.5f, kMostPower = 2;
inline constexpr double kPowerNats = 0.01;

struct StatsTables final : CalibratedTables {
  ModelStats stats;
};
// Returns what the section of a calibration says, which lives as long as that; null without one.
const ModelStats* StatsOf(const Calibration& calibration);

// Returns the section, without sensitivities. Reads only [r][c], c <= r, of a metric. Fails with
// INVALID_ARGUMENT for statistics that are empty or do not fit the shape.
absl::StatusOr<CalibrationSection> StatsSection(const CalibrationShape& shape,
                                                const ModelStats& stats);
// Returns a blob with this section, and with mean queries where they are known.
absl::StatusOr<std::string> StatsCalibration(const KvSpec& spec, const ModelStats& stats);

// Where the layers and the KV heads of an engine's rank stand in its model: it has the layers from
// `first_layer` on and, as one of `tensor_size` ranks, an equal part of each layer's heads. Of
// fewer heads than ranks it has one, and others have it too.
struct RankOfModel {
  uint32_t first_layer = 0, tensor_rank = 0, tensor_size = 1;
};
// Returns a blob with the rank's part of the statistics `whole` of a model of shape `model`. Errors
// of the part cost as if all heads of the model had them, and a part has no power (decision 0117).
// It has mean queries where its layers have any. `spec` is that of the rank's pages.
// Fails with INVALID_ARGUMENT where the rank's layers, heads, widths or RoPE are not the model's.
absl::StatusOr<std::string> StatsOfRank(const CalibrationShape& model, const ModelStats& whole,
                                        const KvSpec& spec, const RankOfModel& rank);

// The section's parser (codec/calibrate.h).
absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParseStatsTables(
    const CalibrationShape& shape, std::span<const uint8_t> body);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_MODEL_STATS_H_
