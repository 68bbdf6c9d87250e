#include "kernels/codec/calibrate.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/calibration/model_stats.h"
#include "kernels/calibration/query_means.h"
#include "kernels/calibration/vocabulary.h"
#include "kernels/codec/ops.h"
#include "kernels/importance/query_needs.h"
#include "kernels/importance/query_tables.h"

namespace kvstow {
namespace {

// Section `query_means` stands in its place since. Pages still name calibrations that have it.
constexpr absl::string_view kQueryMapsSection = "query_maps";

absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParseNothing(const CalibrationShape&,
                                                                     std::span<const uint8_t>) {
  return std::make_shared<const CalibratedTables>();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Calibration>> ParseCalibration(std::span<const uint8_t> blob) {
  return Calibration::Parse(blob, [](absl::string_view section) -> SectionParser {
    if (section == kQuerySection) return ParseQueryTables;
    if (section == kStatsSection) return ParseStatsTables;
    if (section == kQueryMeansSection) return ParseQueryMeans;
    if (section == kQueryMapsSection) return ParseNothing;
    if (section == kVocabularySection) return ParseVocabularyTables;
    const OpInfo* const op = FindOp(section);
    return op == nullptr ? nullptr : op->parse_tables;
  });
}

std::optional<ModelStats> ModelStatsOf(const Calibration& calibration) {
  const ModelStats* const stats = StatsOf(calibration);
  if (stats == nullptr) return std::nullopt;
  ModelStats out = *stats;
  if (const QueryMeans* const queries = QueryMeansOf(calibration)) {
    out.queries = std::make_shared<const QueryMeans>(*queries);
  }
  if (const VocabularyTables* const tables = VocabularyOf(calibration)) {
    out.vocabulary = tables->vocabulary;
  }
  return out;
}

absl::StatusOr<ModelStats> ParseModelStats(std::span<const uint8_t> blob, const KvSpec& spec) {
  KVSTOW_ASSIGN_OR_RETURN(const auto read, ParseCalibration(blob));
  CalibrationShape shape = read->shape();
  shape.layers_per_run = 1;
  std::optional<ModelStats> stats = ModelStatsOf(*read);
  if (!stats.has_value() || shape != ShapeFor(spec, 1)) {
    return absl::InvalidArgumentError(
        "these are no statistics of a model whose K and V have this shape and RoPE");
  }
  return *std::move(stats);
}

absl::StatusOr<std::string> WithScaledCosts(std::span<const uint8_t> blob, double factor,
                                            double power) {
  KVSTOW_ASSIGN_OR_RETURN(const auto read, ParseCalibration(blob));
  const ModelStats* const found = StatsOf(*read);
  if (found == nullptr) {
    return absl::InvalidArgumentError("the calibration has no statistics of a model");
  }
  if (!(factor > 0) || !std::isfinite(factor)) {
    return absl::InvalidArgumentError(
        absl::StrCat("costs cannot be scaled by ", factor, ": the factor must be above 0"));
  }
  ModelStats stats = *found;
  for (std::vector<float>* gains : {&stats.gain_k, &stats.gain_v}) {
    for (float& gain : *gains) gain *= static_cast<float>(std::sqrt(factor));
  }
  stats.power = static_cast<float>(power);
  KVSTOW_ASSIGN_OR_RETURN(const CalibrationSection section, StatsSection(read->shape(), stats));
  return WithOtherSection(blob, section);
}

absl::StatusOr<std::unique_ptr<CalibrationFit>> StartCalibration(const Recipe& recipe,
                                                                 const KvSpec& spec,
                                                                 const ModelStats& stats) {
  for (const Op& op : recipe.ops()) {
    const OpInfo* const info = FindOp(op.name);
    if (info != nullptr && info->start_fit != nullptr) {
      return info->start_fit(spec, OpArguments(op), stats);
    }
  }
  KVSTOW_ASSIGN_OR_RETURN(const auto queries, QueryNeeds(recipe));
  if (queries.has_value()) return StartQueryFit(spec, OpArguments(Op{}), stats);
  return absl::InvalidArgumentError(
      absl::StrCat("recipe '", recipe.text(), "' needs no calibration"));
}

}  // namespace kvstow
