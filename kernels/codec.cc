#include "kernels/codec.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/calibration.h"
#include "kernels/importance/policy.h"
#include "kernels/importance/query_tables.h"
#include "kernels/kept_tokens.h"
#include "kernels/key_groups.h"
#include "kernels/ops.h"
#include "kernels/rate_codec.h"
#include "kernels/run_codec.h"

namespace kvstow {
namespace {

class PageCodec final : public Codec {
 public:
  PageCodec(Recipe recipe, KvSpec spec, uint32_t layers_per_run,
            std::unique_ptr<const RunCodec> run_codec, std::optional<ImportancePolicy> policy,
            std::shared_ptr<const QueryStatistics> queries, const CalibrationId& calibration,
            std::shared_ptr<const Codec> fallback)
      : recipe_(std::move(recipe)),
        spec_(std::move(spec)),
        layers_per_run_(layers_per_run),
        run_codec_(std::move(run_codec)),
        policy_(std::move(policy)),
        queries_(std::move(queries)),
        calibration_(calibration),
        fallback_(std::move(fallback)) {}

  const Recipe& recipe() const override { return recipe_; }
  const KvSpec& spec() const override { return spec_; }
  bool exact() const override { return run_codec_->exact(); }
  uint32_t levels() const override { return run_codec_->levels(); }

  absl::StatusOr<EncodedPage> Encode(const PageToEncode& page) const override {
    KVSTOW_RETURN_IF_ERROR(CheckPage(page));
    absl::StatusOr<EncodedPage> encoded = EncodeRuns(page);
    if (!absl::IsOutOfRange(encoded.status()) || fallback_ == nullptr) return encoded;
    KVSTOW_ASSIGN_OR_RETURN(EncodedPage exact, fallback_->Encode(page));
    exact.header.fell_back = true;
    exact.header_bytes = SharedBytes::Take(SerializePageHeader(exact.header));
    return exact;
  }

 private:
  absl::Status CheckPage(const PageToEncode& page) const {
    if (page.tokens < 1 || page.tokens > spec_.page_tokens) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a page of ", page.tokens, " tokens; this space has pages of 1 to ", spec_.page_tokens));
    }
    if (page.raw.size() != PageBytes(spec_, page.tokens)) {
      return absl::InvalidArgumentError(absl::StrCat("a page of ", page.tokens, " tokens has ",
                                                     PageBytes(spec_, page.tokens), " bytes, not ",
                                                     page.raw.size()));
    }
    if (page.key.size() > kMaxKeyBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a key of ", page.key.size(), " bytes; the limit is ", kMaxKeyBytes));
    }
    if (page.first_position > UINT64_MAX - page.tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("first_position ", page.first_position, " is out of range"));
    }
    return absl::OkStatus();
  }

  // What the policy scores a page's tokens, or nothing when nobody reported what it reads.
  absl::StatusOr<std::optional<ScoreMap>> KnownScores(const PageToScore& page) const {
    absl::StatusOr<ScoreMap> scores = policy_->Scores(page);
    if (absl::IsFailedPrecondition(scores.status())) return std::optional<ScoreMap>();
    KVSTOW_RETURN_IF_ERROR(scores.status());
    return std::optional<ScoreMap>(*std::move(scores));
  }

  // Known where the body is the run itself.
  static uint64_t DigestOf(const PageToEncode& page, size_t run, size_t runs,
                           const SharedBytes& body) {
    const bool in_page =
        body.data() >= page.raw.data() && body.data() < page.raw.data() + page.raw.size();
    return in_page && page.run_digests.size() == runs ? page.run_digests[run] : Xxh3(body.span());
  }

  // OUT_OF_RANGE when a run cannot be coded.
  absl::StatusOr<EncodedPage> EncodeRuns(const PageToEncode& page) const {
    const size_t layer_bytes = LayerBytes(spec_, page.tokens);
    std::vector<LayerRange> runs;
    std::vector<std::vector<EncodedLevel>> coded;
    const PageToScore to_score{.spec = spec_,
                               .raw = page.raw,
                               .tokens = page.tokens,
                               .first_position = page.first_position,
                               .columns = page.columns,
                               .queries = queries_ != nullptr ? queries_.get() : page.queries,
                               .protected_tokens = page.protected_tokens};
    Selection kept;
    std::optional<ScoreMap> scores;
    if (recipe_.drops_tokens()) {
      KVSTOW_ASSIGN_OR_RETURN(kept, policy_->Select(to_score));
    } else if (policy_.has_value()) {
      KVSTOW_ASSIGN_OR_RETURN(scores, KnownScores(to_score));
    }
    std::vector<float> log_steps;
    for (uint32_t first = 0; first < spec_.layers; first += layers_per_run_) {
      const LayerRange layers{first, std::min(layers_per_run_, spec_.layers - first)};
      if (scores.has_value()) log_steps = policy_->LogStepsOf(to_score, *scores, layers);
      KVSTOW_ASSIGN_OR_RETURN(
          std::vector<EncodedLevel> bodies,
          run_codec_->Encode(
              {layers, page.tokens, page.first_position, &kept, log_steps, page.raw_owner},
              page.raw.subspan(first * layer_bytes, layers.count * layer_bytes)));
      runs.push_back(layers);
      coded.push_back(std::move(bodies));
    }
    EncodedPage out;
    out.header = NewPageHeader(*this, page);
    out.header.calibration = calibration_;
    for (uint32_t level = 0; level < levels(); ++level) {
      for (size_t i = 0; i < runs.size(); ++i) {
        SharedBytes& body = coded[i][level].body;
        out.header.segments.push_back({.first_layer = static_cast<uint16_t>(runs[i].first),
                                       .layer_count = static_cast<uint16_t>(runs[i].count),
                                       .level = static_cast<uint8_t>(level),
                                       .bytes = static_cast<uint32_t>(body.size()),
                                       .gain = static_cast<float>(coded[i][level].gain),
                                       .digest = DigestOf(page, i, runs.size(), body)});
        out.segments.push_back(std::move(body));
      }
    }
    out.header_bytes = SharedBytes::Take(SerializePageHeader(out.header));
    return out;
  }

  const Recipe recipe_;
  const KvSpec spec_;
  const uint32_t layers_per_run_;
  const std::unique_ptr<const RunCodec> run_codec_;
  const std::optional<ImportancePolicy> policy_;
  const std::shared_ptr<const QueryStatistics> queries_;  // null: those of each page
  const CalibrationId calibration_;                       // all zero = none
  const std::shared_ptr<const Codec> fallback_;           // null when exact
};

absl::StatusOr<std::shared_ptr<const Codec>> MakePageCodec(
    const Recipe& recipe, const KvSpec& spec, std::shared_ptr<const Calibration> calibration,
    std::shared_ptr<const QueryStatistics> queries, std::shared_ptr<const Codec> fallback) {
  const CalibrationId id = calibration == nullptr ? CalibrationId{} : calibration->id();
  KVSTOW_ASSIGN_OR_RETURN(auto run_codec, MakeRunCodec(recipe, spec, std::move(calibration)));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t layers, LayersPerRun(recipe, spec, run_codec->levels()));
  if (run_codec->exact()) fallback = nullptr;
  std::optional<ImportancePolicy> policy;
  if (!recipe.policy_ops().empty()) {
    KVSTOW_ASSIGN_OR_RETURN(policy, ImportancePolicy::Make(recipe.policy_ops()));
  }
  return std::make_shared<PageCodec>(recipe, spec, layers, std::move(run_codec), std::move(policy),
                                     std::move(queries), id, std::move(fallback));
}

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
  const absl::StatusOr<Recipe> recipe = Recipe::Parse(header.pipeline);
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

size_t KeptRunBytes(const Codec& codec, uint32_t tokens) {
  const auto ops = codec.recipe().codec_ops();
  if (ops.empty() || ops.back().name != "raw") return 0;
  const auto layers = LayersPerRun(codec.recipe(), codec.spec(), codec.levels());
  return layers.ok() ? *layers * LayerBytes(codec.spec(), tokens) : 0;
}

PageHeader NewPageHeader(const Codec& codec, const PageToEncode& page) {
  const KvSpec& spec = codec.spec();
  PageHeader header;
  header.key = std::string(page.key);
  header.pipeline = codec.recipe().pipeline();
  header.exact = codec.exact();
  header.layers = spec.layers;
  header.kv_heads = spec.kv_heads;
  header.head_dim_k = spec.head_dim_k;
  header.head_dim_v = spec.head_dim_v;
  header.dtype = spec.dtype;
  header.rope = spec.rope;
  header.tokens = page.tokens;
  header.first_position = page.first_position;
  header.raw_digest = page.raw_digest.has_value() ? *page.raw_digest : Xxh3_128(page.raw);
  return header;
}

const CalibrationStore& NoCalibrations() { return CalibrationStore::Empty(); }

absl::StatusOr<std::shared_ptr<const Codec>> MakeCodec(const Recipe& recipe, const KvSpec& spec,
                                                       const CalibrationStore& calibrations) {
  KVSTOW_RETURN_IF_ERROR(Validate(spec));
  KVSTOW_ASSIGN_OR_RETURN(const Recipe raw, Recipe::Parse("raw"));
  KVSTOW_ASSIGN_OR_RETURN(auto fallback, MakePageCodec(raw, spec, nullptr, nullptr, nullptr));
  KVSTOW_ASSIGN_OR_RETURN(const auto needs, CalibrationNeeds(recipe));
  std::shared_ptr<const Calibration> calibration;
  if (needs.has_value()) {
    if (IsFloat8(spec.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("recipe '", recipe.text(),
                                                     "': ", DTypeName(spec.dtype),
                                                     " pages take only 'raw' and 'lossless'"));
    }
    KVSTOW_ASSIGN_OR_RETURN(calibration, calibrations.Choose(spec, *needs));
  }
  KVSTOW_ASSIGN_OR_RETURN(const auto queries, QueriesOf(recipe, spec, calibrations));
  KVSTOW_ASSIGN_OR_RETURN(const auto target, RateTargetOf(recipe));
  const auto make = [=](const Recipe& stepped) {
    return MakePageCodec(stepped, spec, calibration, queries, fallback);
  };
  const auto choosing = [=](const Recipe& stepped) -> absl::StatusOr<std::shared_ptr<const Codec>> {
    KVSTOW_ASSIGN_OR_RETURN(auto codec, make(stepped));
    KVSTOW_ASSIGN_OR_RETURN(const auto for_means, WithKeyChannels(stepped));
    if (!for_means.has_value()) return codec;
    KVSTOW_ASSIGN_OR_RETURN(auto finer, make(*for_means));
    KVSTOW_ASSIGN_OR_RETURN(KeyGroups groups, KeyGroups::Make(stepped, spec));
    return MakeKeyGroupsCodec(std::move(groups), std::move(codec), std::move(finer));
  };
  return target.has_value() ? MakeRateCodec(recipe, *target, choosing) : choosing(recipe);
}

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
    const Run run{{s.first_layer, s.layer_count}, header.tokens, header.first_position};
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
  const absl::StatusOr<Recipe> recipe = Recipe::Parse(header.pipeline);
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
