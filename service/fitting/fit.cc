#include "service/fitting/fit.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/codec/calibrate.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/ops.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/methods/divergence_meter.h"
#include "service/fitting/sound_pages.h"
#include "service/spaces/calibrations.h"
#include "service/spaces/space.h"
#include "service/spaces/space_record.h"

namespace kvstow {
namespace {

constexpr uint64_t kTokensPerValue = 2;  // that a run needs: a longer one learns the noise
constexpr int kMostTrials = 7;           // of a step
constexpr double kTolerance = 0.03;      // of the divergence
constexpr double kSteepness = 2;         // of the divergence by the step, in logarithms

// The forms, and the pages on which they are tested.
class Trials {
 public:
  static absl::StatusOr<Trials> Make(const std::vector<FitPage>& held_out, const ModelStats& stats,
                                     double target) {
    Trials out;
    out.target_ = target;
    out.stats_ = stats;
    for (const FitPage& page : held_out) {
      KVSTOW_ASSIGN_OR_RETURN(RawPage raw, DecodeFitPage(page));
      out.pages_.push_back(std::move(raw));
    }
    return out;
  }

  absl::StatusOr<FormFigures> Try(const Codec& codec, const CalibrationStore& calibrations) const {
    uint64_t raw_bytes = 0, stored = 0;
    DivergenceMeter meter(codec.spec(), stats_);
    for (const RawPage& page : pages_) {
      KVSTOW_ASSIGN_OR_RETURN(const EncodedPage encoded, codec.Encode(ToEncode(page)));
      ByteBlock decoded(page.raw.size());
      KVSTOW_RETURN_IF_ERROR(
          DecodePage(encoded.header, encoded.segments, decoded.span(), calibrations));
      raw_bytes += page.raw.size();
      stored += encoded.StoredBytes();
      KVSTOW_RETURN_IF_ERROR(meter.Add(ToEncode(page), {decoded.data(), decoded.size()}));
    }
    return FormFigures{.recipe = codec.recipe().pipeline(),
                       .ratio = static_cast<double>(raw_bytes) / static_cast<double>(stored),
                       .divergence = meter.Divergence()};
  }

  // Looks for the largest step whose form costs no more than the target, within the steps of the
  // op. `op` is a recipe up to its step. Returns figures with recipe "" when no step does.
  absl::StatusOr<FormFigures> Seek(absl::string_view op, const KvSpec& spec,
                                   const CalibrationStore& calibrations, StepRange steps) const {
    FormFigures best;
    double least = 0, most = steps.most, step = steps.usual;
    std::string text;
    for (int i = 0; i < kMostTrials; ++i) {
      std::string next_text = absl::StrFormat("%s,step=%.3f)", op, step);
      if (next_text == text) break;
      text = std::move(next_text);
      KVSTOW_ASSIGN_OR_RETURN(const Recipe parsed, ParseRecipe(text));
      KVSTOW_ASSIGN_OR_RETURN(const auto codec, MakeCodec(parsed, spec, calibrations));
      KVSTOW_ASSIGN_OR_RETURN(FormFigures figures, Try(*codec, calibrations));
      const double over = figures.divergence / target_;
      const bool good = over <= 1 + kTolerance;
      (good ? least : most) = step;
      if (good && figures.ratio > best.ratio) {
        best = std::move(figures);
        best.recipe = text;
      }
      if (good && over >= 1 - kTolerance) break;
      // A page that costs nothing at all says nothing of the step.
      const double next = over > 0 ? step * std::pow(over, -1 / kSteepness) : 4 * step;
      step = next > least && next < most ? next : std::sqrt(std::max(least, step / 4) * most);
      step = std::max(step, steps.least);
    }
    return best;
  }

 private:
  std::vector<RawPage> pages_;
  ModelStats stats_;
  double target_ = 0;
};

// Reads pages one at a time: many decoded ones would not fit into memory.
absl::StatusOr<std::string> Fit(const std::vector<FitPage>& pages, const Recipe& recipe,
                                const KvSpec& spec, const ModelStats& stats) {
  KVSTOW_ASSIGN_OR_RETURN(const auto fit, StartCalibration(recipe, spec, stats));
  for (int pass = 0; pass < fit->passes(); ++pass) {
    for (const FitPage& page : pages) {
      KVSTOW_ASSIGN_OR_RETURN(const RawPage raw, DecodeFitPage(page));
      KVSTOW_RETURN_IF_ERROR(fit->Add(ToEncode(raw)));
    }
    KVSTOW_RETURN_IF_ERROR(fit->EndPass());
  }
  return fit->Finish();
}

// The most that tables of runs of `run` layers take: two matrices of fp16 a run.
uint64_t MostTableBytes(const KvSpec& spec, uint32_t run) {
  const CalibrationShape shape = ShapeFor(spec, run);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < shape.runs(); ++i) {
    const uint64_t width = shape.WidthOfRun(i);
    bytes += 4 * width * width;
  }
  return bytes;
}

// Returns lengths of runs that are worth a fit to so many tokens, the longest first. None: `why`
// says so.
std::vector<uint32_t> RunLengths(const FitJob& job, const KvSpec& spec, uint64_t tokens,
                                 std::string& why) {
  const size_t width = ShapeFor(spec, 1).WidthOfRun(0);
  const size_t most = std::min<size_t>(kMostFitWidth, tokens / kTokensPerValue) / width;
  if (most < 1) {
    why = absl::StrCat("a layer has ", width, " values a token and needs ", kTokensPerValue * width,
                       " tokens of ", tokens, " (at most ", kMostFitWidth,
                       " values): more of them may come, or fit-bytes may be too small");
    return {};
  }
  std::set<uint32_t, std::greater<>> out;
  for (auto longest = static_cast<uint32_t>(std::min<size_t>(most, spec.layers)); longest >= 1;
       --longest) {
    // Runs of equal length: the last one would else be fitted apart, and short.
    const uint32_t runs = (spec.layers + longest - 1) / longest;
    const uint32_t equal = (spec.layers + runs - 1) / runs;
    if (MostTableBytes(spec, equal) > job.most_table_bytes) continue;
    out.insert({equal, 1});
    break;
  }
  if (out.empty()) {
    why = absl::StrCat("tables may take ", MostTableBytes(spec, 1) >> 20,
                       " MiB, which is more than ", job.most_table_bytes >> 20,
                       ": raise fit-bytes, or drop spaces that nobody needs");
  }
  return {out.begin(), out.end()};
}

// The form that was fitted before, as it does on pages of now.
absl::StatusOr<FormFigures> TryBefore(const FitJob& job, const Trials& trials, const KvSpec& spec) {
  CalibrationStore calibrations;
  CalibrationId id{};
  if (!job.blob.empty()) {
    KVSTOW_ASSIGN_OR_RETURN(const auto calibration, calibrations.Add(AsBytes(job.blob)));
    id = calibration->id();
  }
  KVSTOW_ASSIGN_OR_RETURN(const auto codec, CodecOfForm(job.recipe, id, spec, calibrations));
  KVSTOW_ASSIGN_OR_RETURN(FormFigures figures, trials.Try(*codec, calibrations));
  figures.recipe = job.recipe;
  return figures;
}

struct FittedRuns {
  FormFigures figures;
  std::string blob;
};

// Fits runs of so many layers, and looks for their step.
absl::StatusOr<FittedRuns> FitRuns(uint32_t run, const std::vector<FitPage>& pages,
                                   const Trials& trials, const Space& space,
                                   const ModelStats& stats) {
  FittedRuns out;
  const std::string op = absl::StrCat("kvstow-cal(run=", run, ",levels=", space.cold->levels());
  KVSTOW_ASSIGN_OR_RETURN(const Recipe finest, ParseRecipe(absl::StrCat(op, ",step=1)")));
  KVSTOW_ASSIGN_OR_RETURN(out.blob, Fit(pages, finest, space.spec, stats));
  CalibrationStore calibrations;
  KVSTOW_RETURN_IF_ERROR(calibrations.Add(AsBytes(out.blob)).status());
  KVSTOW_ASSIGN_OR_RETURN(out.figures,
                          trials.Seek(op, space.spec, calibrations, FindOp("joint")->steps));
  return out;
}

// Fits each length of run, and keeps the best form in `outcome`. A length that fails leaves the
// form that was found before, and `why` says what went wrong.
void TryFits(const FitJob& job, const std::vector<FitPage>& pages, const Trials& trials,
             const Space& space, const ModelStats& stats, FitOutcome& outcome) {
  for (const uint32_t run : RunLengths(job, space.spec, outcome.tokens, outcome.why)) {
    absl::StatusOr<FittedRuns> fitted = FitRuns(run, pages, trials, space, stats);
    if (!fitted.ok()) {
      outcome.why = absl::StrCat("runs of ", run, " layers: ", fitted.status().message());
    } else if (fitted->figures.ratio > outcome.best.ratio) {
      outcome.best = std::move(fitted->figures);
      outcome.blob = std::move(fitted->blob);
    }
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Codec>> CodecOfForm(const std::string& recipe,
                                                         const CalibrationId& calibration,
                                                         const KvSpec& spec,
                                                         const CalibrationStore& calibrations) {
  KVSTOW_ASSIGN_OR_RETURN(Recipe named, ParseRecipe(recipe));
  if (calibration != CalibrationId{}) {
    KVSTOW_ASSIGN_OR_RETURN(named, NameCalibration(named, HexOf(calibration)));
  }
  return MakeCodec(named, spec, calibrations);
}

uint64_t LeastFitTokens(const KvSpec& spec) {
  const uint64_t width = ShapeFor(spec, 1).WidthOfRun(0);
  return width > kMostFitWidth ? kLeastFitTokens
                               : std::max(kLeastFitTokens, kTokensPerValue * width);
}

absl::StatusOr<FitOutcome> RunFit(const FitJob& job) {
  Calibrations none("");
  KVSTOW_ASSIGN_OR_RETURN(const auto space, ParseSpace(AsBytes(job.space), none));
  const KvSpec& spec = space->spec;
  FitOutcome out;
  KVSTOW_ASSIGN_OR_RETURN(const SoundPages pages, TakeSoundPages(job, spec));
  out.left_out = pages.left_out;
  const bool step_alone = job.fitted_on.empty();
  if ((pages.tokens < kLeastFitTokens && !step_alone) ||
      pages.held_out_tokens < kLeastHeldOutTokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        pages.tokens, " and ", pages.held_out_tokens, " tokens: too few for a fit and its test",
        pages.left_out == 0 ? ""
                            : absl::StrCat("; ", pages.left_out,
                                           " pages were left out, the last one as ", pages.why)));
  }
  ModelStats stats;  // empty: the job has none
  if (!job.statistics.empty()) {
    KVSTOW_ASSIGN_OR_RETURN(stats, ParseModelStats(AsBytes(job.statistics), spec));
  }
  stats.normed_keys = IsForNormedKeys(space->cold->recipe());
  KVSTOW_ASSIGN_OR_RETURN(const Trials trials, Trials::Make(pages.held_out, stats, job.divergence));
  const auto seek_step = [&] {
    return trials.Seek(
        absl::StrCat("kvstow(levels=", space->cold->levels(), stats.normed_keys ? ",keys=2" : ""),
        spec, none.store(), FindOp("planes")->steps);
  };
  if (step_alone) {
    KVSTOW_ASSIGN_OR_RETURN(out.best, seek_step());
    return out;
  }
  KVSTOW_ASSIGN_OR_RETURN(out.own, trials.Try(*space->cold, none.store()));
  if (!job.recipe.empty()) {
    KVSTOW_ASSIGN_OR_RETURN(out.before, TryBefore(job, trials, spec));
    if (!job.refit && out.before.divergence <= kHolds * job.divergence) {
      out.why = "the form before holds";
      return out;
    }
  }
  out.tokens = pages.tokens;
  absl::StatusOr<FormFigures> step = seek_step();
  if (step.ok()) {
    out.best = *std::move(step);
  } else {
    out.why = absl::StrCat("no step: ", step.status().message());
  }
  TryFits(job, pages.fitted_on, trials, *space, stats, out);
  if (out.best.recipe.empty() && out.why.empty()) out.why = "no step costs as little";
  return out;
}

}  // namespace kvstow
