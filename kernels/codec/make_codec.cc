#include "kernels/codec/make_codec.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/shared_bytes.h"
#include "base/status_macros.h"
#include "kernels/calibration/model_stats.h"
#include "kernels/calibration/page_end.h"
#include "kernels/calibration/query_means.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/key_groups.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/codec/rate_codec.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/importance/foretold_attention.h"
#include "kernels/importance/policy.h"
#include "kernels/importance/query_needs.h"
#include "kernels/importance/query_tables.h"
#include "kernels/importance/token_steps.h"
#include "kernels/methods/divergence_meter.h"
#include "kernels/methods/run_codec.h"

namespace kvstow {
namespace {

class PageCodec final : public Codec {
 public:
  PageCodec(Recipe recipe, KvSpec spec, uint32_t layers_per_run,
            std::unique_ptr<const RunCodec> run_codec, std::optional<ImportancePolicy> policy,
            std::shared_ptr<const QueryStatistics> queries,
            std::shared_ptr<const Calibration> calibration, std::shared_ptr<const Codec> fallback)
      : recipe_(std::move(recipe)),
        spec_(std::move(spec)),
        layers_per_run_(layers_per_run),
        run_codec_(std::move(run_codec)),
        policy_(std::move(policy)),
        queries_(std::move(queries)),
        calibration_(std::move(calibration)),
        query_means_(calibration_ == nullptr ? nullptr : QueryMeansOf(*calibration_)),
        end_steps_(EndLogSteps(spec_.page_tokens)),
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

  // The policy's scores of a page, or nothing when nobody reported the columns that it reads.
  absl::StatusOr<std::optional<ScoreMap>> KnownScores(const PageToScore& page) const {
    absl::StatusOr<ScoreMap> scores = policy_->Scores(page);
    if (absl::IsFailedPrecondition(scores.status())) return std::optional<ScoreMap>();
    KVSTOW_RETURN_IF_ERROR(scores.status());
    return std::optional<ScoreMap>(*std::move(scores));
  }

  // The attention of a page's tokens. A report goes first. Without one the calibration foretells,
  // if it can.
  struct Attention {
    std::optional<ScoreMap> reported, foretold;
  };
  absl::StatusOr<Attention> AttentionOf(const PageToScore& page) const {
    Attention out;
    if (policy_.has_value()) {
      KVSTOW_ASSIGN_OR_RETURN(out.reported, KnownScores(page));
    }
    if (!out.reported.has_value() && query_means_ != nullptr) {
      KVSTOW_ASSIGN_OR_RETURN(out.foretold, ForetoldAttention(*query_means_, page));
    }
    return out;
  }
  // How finely each token is coded in a run of layers; empty where nothing is known.
  std::vector<float> StepsOf(const PageToScore& page, const Attention& known,
                             LayerRange layers) const {
    if (known.reported.has_value()) return policy_->LogStepsOf(page, *known.reported, layers);
    if (!known.foretold.has_value()) return {};
    return LogSteps(*known.foretold, layers, kForetoldPower, Protection{}, page.protected_tokens);
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
    Attention attention;
    if (recipe_.drops_tokens()) {
      KVSTOW_ASSIGN_OR_RETURN(kept, policy_->Select(to_score));
    } else {
      KVSTOW_ASSIGN_OR_RETURN(attention, AttentionOf(to_score));
    }
    const std::vector<TokenId> token_ids = run_codec_->TokenIds(page);
    const PageGuess guess = run_codec_->Guess(page);
    std::span<const float> end_steps;
    if (!attention.reported.has_value()) {
      end_steps = std::span(end_steps_).last(page.tokens);
    }
    for (uint32_t first = 0; first < spec_.layers; first += layers_per_run_) {
      const LayerRange layers{first, std::min(layers_per_run_, spec_.layers - first)};
      std::vector<float> log_steps = StepsOf(to_score, attention, layers);
      if (log_steps.empty()) log_steps = guess.log_steps;
      KVSTOW_ASSIGN_OR_RETURN(
          std::vector<EncodedLevel> bodies,
          run_codec_->Encode({layers, page.tokens, page.first_position, &kept, log_steps, end_steps,
                              token_ids, guess.felt, page.raw_owner},
                             page.raw.subspan(first * layer_bytes, layers.count * layer_bytes)));
      const auto is_number = [](const EncodedLevel& level) { return std::isfinite(level.gain); };
      if (!std::ranges::all_of(bodies, is_number)) {
        return absl::OutOfRangeError(
            absl::StrCat("layers from ", first, " on have values whose squares overflow"));
      }
      runs.push_back(layers);
      coded.push_back(std::move(bodies));
    }
    EncodedPage out;
    out.header = NewPageHeader(*this, page);
    if (calibration_ != nullptr) out.header.calibration = calibration_->id();
    out.header.token_ids = token_ids;
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
  const std::shared_ptr<const Calibration> calibration_;  // null = none
  const QueryMeans* const query_means_;                   // of the calibration; null without them
  const std::vector<float> end_steps_;                    // of a whole page
  const std::shared_ptr<const Codec> fallback_;           // null when exact
};

// Refuses a recipe whose pages no reader takes: their header has room for so many levels, and for
// a pipeline as long as a recipe may be. The calibration's name counts where pages may carry it.
absl::Status CheckFitsHeader(const Recipe& recipe, uint32_t levels,
                             const Calibration* calibration) {
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("recipe '", recipe.text(), "': ", why));
  };
  if (levels > kMaxLevels) {
    return wrong(absl::StrCat("it has ", levels, " levels; a page has at most ", kMaxLevels));
  }
  Recipe named = recipe;
  if (calibration != nullptr) {
    KVSTOW_ASSIGN_OR_RETURN(named, NameCalibration(recipe, HexOf(calibration->id())));
  }
  const absl::Status read = ParseRecipe(named.pipeline()).status();
  if (read.ok()) return absl::OkStatus();
  return wrong(absl::StrCat("pages say all of its arguments by name, and that does not fit: ",
                            read.message()));
}

absl::StatusOr<std::shared_ptr<const Codec>> MakePageCodec(
    const Recipe& recipe, const KvSpec& spec, std::shared_ptr<const Calibration> calibration,
    std::shared_ptr<const QueryStatistics> queries, std::shared_ptr<const Codec> fallback) {
  KVSTOW_ASSIGN_OR_RETURN(auto run_codec, MakeRunCodec(recipe, spec, calibration));
  KVSTOW_RETURN_IF_ERROR(CheckFitsHeader(recipe, run_codec->levels(), calibration.get()));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t layers, LayersPerRun(recipe, spec, run_codec->levels()));
  if (run_codec->exact()) fallback = nullptr;
  std::optional<ImportancePolicy> policy;
  if (!recipe.policy_ops().empty()) {
    KVSTOW_ASSIGN_OR_RETURN(policy, ImportancePolicy::Make(recipe.policy_ops()));
  }
  return std::make_shared<PageCodec>(recipe, spec, layers, std::move(run_codec), std::move(policy),
                                     std::move(queries), std::move(calibration),
                                     std::move(fallback));
}

// Returns the query statistics that the recipe's policy uses for all pages. Returns null when the
// policy asks for none, or names none and none is loaded: pages may then bring their own. Errors
// are those of CalibrationStore::Choose.
absl::StatusOr<std::shared_ptr<const QueryStatistics>> QueriesOf(
    const Recipe& recipe, const KvSpec& spec, const CalibrationStore& calibrations) {
  std::shared_ptr<const QueryStatistics> out;
  KVSTOW_ASSIGN_OR_RETURN(const auto need, QueryNeeds(recipe));
  if (!need.has_value()) return out;
  const auto found = calibrations.Choose(spec, *need);
  if (absl::IsFailedPrecondition(found.status()) && need->blob.empty()) return out;
  KVSTOW_RETURN_IF_ERROR(found.status());
  const auto* tables = static_cast<const QueryTables*>((*found)->Tables(kQuerySection));
  return std::shared_ptr<const QueryStatistics>(*found, &tables->statistics);
}

// Returns what decodes a page and asks the meter, by the statistics of the model if the calibration
// has them.
PredictDivergence PredictionOf(const Recipe& recipe, const KvSpec& spec,
                               std::shared_ptr<const Calibration> calibration) {
  const auto store = std::make_shared<CalibrationStore>();
  ModelStats stats{.normed_keys = IsForNormedKeys(recipe)};
  if (calibration != nullptr) {
    if (const ModelStats* const known = StatsOf(*calibration)) stats = *known;
    store->Add(std::move(calibration));
  }
  return [spec, store, stats = std::move(stats)](
             const PageToEncode& page, const EncodedPage& encoded) -> absl::StatusOr<double> {
    ByteBlock decoded(page.raw.size());
    KVSTOW_RETURN_IF_ERROR(DecodePage(encoded.header, encoded.segments, decoded.span(), *store));
    DivergenceMeter meter(spec, stats);
    KVSTOW_RETURN_IF_ERROR(meter.Add(page, decoded.span()));
    return meter.Divergence();
  };
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Codec>> MakeCodec(const Recipe& recipe, const KvSpec& spec,
                                                       const CalibrationStore& calibrations) {
  KVSTOW_RETURN_IF_ERROR(Validate(spec));
  KVSTOW_ASSIGN_OR_RETURN(const Recipe raw, ParseRecipe("raw"));
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
  if (target.has_value()) {
    const bool predicts = target->rate == Rate::kDivergence;
    return MakeRateCodec(recipe, *target, make,
                         predicts ? PredictionOf(recipe, spec, calibration) : nullptr);
  }
  KVSTOW_ASSIGN_OR_RETURN(auto codec, make(recipe));
  KVSTOW_ASSIGN_OR_RETURN(const auto for_means, WithKeyChannels(recipe));
  if (!for_means.has_value()) return codec;
  KVSTOW_ASSIGN_OR_RETURN(auto by_channel, make(*for_means));
  KVSTOW_ASSIGN_OR_RETURN(KeyGroups groups, KeyGroups::Make(recipe, spec));
  return MakeKeyGroupsCodec(std::move(groups), std::move(codec), std::move(by_channel));
}

}  // namespace kvstow
