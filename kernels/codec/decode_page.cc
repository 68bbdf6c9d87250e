#include "kernels/codec/decode_page.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/codec/ops.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/methods/kept_tokens.h"
#include "kernels/methods/run_codec.h"

namespace kvstow {
namespace {

// The calibration that a page names; null when it names none.
absl::StatusOr<std::shared_ptr<const Calibration>> CalibrationOf(
    const PageHeader& header, const Recipe& recipe, const CalibrationStore& calibrations) {
  KVSTOW_ASSIGN_OR_RETURN(const auto needs, CalibrationNeeds(recipe));
  const bool named = header.calibration != CalibrationId{};
  if (named != needs.has_value()) {
    return absl::DataLossError("page header: its calibration contradicts its pipeline");
  }
  if (!named) return std::shared_ptr<const Calibration>();
  auto found = calibrations.Find(header.calibration);
  if (found != nullptr) return found;
  return absl::FailedPreconditionError(absl::StrCat(
      "page was coded with calibration ", HexOf(header.calibration), ", which is not loaded"));
}

// The run codec that made a page.
absl::StatusOr<std::unique_ptr<const RunCodec>> RunCodecOf(const PageHeader& header,
                                                           const CalibrationStore& calibrations) {
  const auto damaged = [](const absl::Status& status) {
    return absl::DataLossError(absl::StrCat("page header: ", status.message()));
  };
  if (const absl::Status status = Validate(header); !status.ok()) return damaged(status);
  const absl::StatusOr<Recipe> recipe = ParseRecipe(header.pipeline);
  if (!recipe.ok()) return damaged(recipe.status());
  for (const Op& op : recipe->ops()) {
    if (IsOp(op.name)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("page was coded with op '", op.name, "', which this build lacks"));
  }
  const auto is_other = [](uint8_t c) { return c != 0; };
  if (std::any_of(header.token_classes.begin(), header.token_classes.end(), is_other)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "page has token classes, which '", header.pipeline, "' does not use in this build"));
  }
  KVSTOW_ASSIGN_OR_RETURN(auto calibration, CalibrationOf(header, *recipe, calibrations));
  auto codec = MakeRunCodec(*recipe, header.Geometry(), std::move(calibration));
  if (!codec.ok()) return damaged(codec.status());
  if ((*codec)->exact() != header.exact) {
    return absl::DataLossError("page header: its flag 'exact' contradicts its pipeline");
  }
  return codec;
}

// Bodies of the leading levels of the run that `base` begins: as many as are there.
absl::StatusOr<std::vector<SharedBytes>> Levels(
    const PageHeader& header, std::span<const std::optional<SharedBytes>> segments,
    const SegmentInfo& base) {
  std::vector<SharedBytes> bodies;
  for (size_t i = 0; i < segments.size(); ++i) {
    const SegmentInfo& s = header.segments[i];
    if (s.first_layer != base.first_layer || s.level != bodies.size()) continue;
    if (!segments[i].has_value()) break;
    if (segments[i]->size() != s.bytes) {
      return absl::DataLossError(absl::StrCat("segment ", i, " has ", segments[i]->size(),
                                              " bytes; the page header says ", s.bytes));
    }
    bodies.push_back(*segments[i]);
  }
  if (bodies.empty()) {
    return absl::DataLossError(
        absl::StrCat("the base level of layers from ", base.first_layer, " on is missing"));
  }
  return bodies;
}

// The wanted part of a run, from the whole of it where the codec knows no better.
absl::Status DecodeTokens(const RunCodec& codec, const PageHeader& header, const Run& run,
                          std::span<const SharedBytes> bodies, PageRange wanted,
                          std::span<uint8_t> out) {
  const absl::Status status = codec.DecodeTokens(run, bodies, wanted.layers, wanted.tokens, out);
  if (!absl::IsUnimplemented(status)) return status;
  const KvSpec spec = header.Geometry();
  ByteBlock all(wanted.layers.count * LayerBytes(spec, run.tokens));
  KVSTOW_RETURN_IF_ERROR(codec.Decode(run, bodies, wanted.layers, all.span()));
  CopyTokens(spec, wanted.layers.count, run.tokens, all.span(), wanted.tokens, out);
  return absl::OkStatus();
}

// Checks a range of `all` things and writes out a count of 0.
absl::Status Complete(absl::string_view what, uint32_t all, uint32_t first, uint32_t& count) {
  if (first >= all || count > all - first) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " ", first, " + ", count, " of a page of ", all));
  }
  if (count == 0) count = all - first;
  return absl::OkStatus();
}

}  // namespace

absl::Status DecodePage(const PageHeader& header,
                        std::span<const std::optional<SharedBytes>> segments, PageRange wanted,
                        std::span<uint8_t> out, const CalibrationStore& calibrations) {
  KVSTOW_ASSIGN_OR_RETURN(const auto codec, RunCodecOf(header, calibrations));
  auto& [layers, tokens] = wanted;
  KVSTOW_RETURN_IF_ERROR(Complete("layers", header.layers, layers.first, layers.count));
  KVSTOW_RETURN_IF_ERROR(Complete("tokens", header.tokens, tokens.first, tokens.count));
  const size_t layer_bytes = LayerBytes(header.Geometry(), tokens.count);
  if (out.size() != layers.count * layer_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        layers.count, " layers take ", layers.count * layer_bytes, " bytes, not ", out.size()));
  }
  if (segments.size() > header.segments.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(segments.size(), " segments for a page of ", header.segments.size()));
  }
  for (const SegmentInfo& s : header.segments) {
    if (s.level > 0) break;
    const LayerRange of_run = s.Overlap(layers);
    if (of_run.count == 0) continue;
    KVSTOW_ASSIGN_OR_RETURN(const std::vector<SharedBytes> bodies, Levels(header, segments, s));
    const Run run{.layers = {s.first_layer, s.layer_count},
                  .tokens = header.tokens,
                  .first_position = header.first_position,
                  .token_ids = header.token_ids};
    const auto part =
        out.subspan((of_run.first - layers.first) * layer_bytes, of_run.count * layer_bytes);
    KVSTOW_RETURN_IF_ERROR(tokens.count == header.tokens
                               ? codec->Decode(run, bodies, of_run, part)
                               : DecodeTokens(*codec, header, run, bodies, {of_run, tokens}, part));
  }
  const bool whole = layers.count == header.layers && tokens.count == header.tokens;
  if (header.exact && whole && Xxh3_128(out) != header.raw_digest) {
    return absl::DataLossError("the decoded page does not match its raw digest");
  }
  return absl::OkStatus();
}

absl::Status DecodePage(const PageHeader& header, std::span<const SharedBytes> segments,
                        std::span<uint8_t> out, const CalibrationStore& calibrations) {
  const std::vector<std::optional<SharedBytes>> all(segments.begin(), segments.end());
  return DecodePage(header, all, PageRange{}, out, calibrations);
}

absl::StatusOr<std::optional<std::vector<SharedBytes>>> PageInPlace(
    const PageHeader& header, std::span<const std::optional<SharedBytes>> segments,
    LayerRange wanted, const CalibrationStore& calibrations) {
  KVSTOW_ASSIGN_OR_RETURN(const auto codec, RunCodecOf(header, calibrations));
  KVSTOW_RETURN_IF_ERROR(Complete("layers", header.layers, wanted.first, wanted.count));
  std::vector<SharedBytes> parts;
  for (const SegmentInfo& s : header.segments) {
    if (s.level > 0) break;
    const LayerRange of_run = s.Overlap(wanted);
    if (of_run.count == 0) continue;
    KVSTOW_ASSIGN_OR_RETURN(const std::vector<SharedBytes> bodies, Levels(header, segments, s));
    const Run run{{s.first_layer, s.layer_count}, header.tokens, header.first_position};
    KVSTOW_ASSIGN_OR_RETURN(auto part, codec->InPlace(run, bodies, of_run));
    if (!part.has_value()) return std::nullopt;
    parts.push_back(*std::move(part));
  }
  return parts;
}

absl::StatusOr<std::optional<Selection>> KeptTokens(
    const PageHeader& header, std::span<const std::optional<SharedBytes>> segments,
    PageRange wanted) {
  const absl::StatusOr<Recipe> recipe = ParseRecipe(header.pipeline);
  if (!recipe.ok())
    return absl::DataLossError(absl::StrCat("page header: ", recipe.status().message()));
  if (!recipe->drops_tokens()) return std::optional<Selection>();
  auto& [layers, tokens] = wanted;
  KVSTOW_RETURN_IF_ERROR(Complete("layers", header.layers, layers.first, layers.count));
  KVSTOW_RETURN_IF_ERROR(Complete("tokens", header.tokens, tokens.first, tokens.count));
  Selection out{layers.count, tokens.count, header.kv_heads, {}};
  for (const SegmentInfo& s : header.segments) {
    if (s.level > 0) break;
    const LayerRange of_run = s.Overlap(layers);
    if (of_run.count == 0) continue;
    KVSTOW_ASSIGN_OR_RETURN(const std::vector<SharedBytes> bodies, Levels(header, segments, s));
    KVSTOW_ASSIGN_OR_RETURN(const Selection run, ReadKept(bodies[0].span(), s.layer_count,
                                                          header.tokens, header.kv_heads));
    for (uint32_t i = 0; i < of_run.count; ++i) {
      const uint32_t layer = of_run.first - s.first_layer + i;
      const auto first = run.keep.begin() + (size_t{layer} * run.tokens + tokens.first) * run.heads;
      out.keep.insert(out.keep.end(), first, first + size_t{tokens.count} * run.heads);
    }
  }
  return std::optional<Selection>(std::move(out));
}

}  // namespace kvstow
