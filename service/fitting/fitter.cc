#include "service/fitting/fitter.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/codec/rate_codec.h"
#include "service/fitting/fit.h"
#include "service/spaces/space_record.h"

namespace kvstow {
namespace {

constexpr int kLowestPriority = 19;
constexpr int kRests = 4;               // times as long as a fit took
constexpr int kRestsOfTest = 20;        // times as long as it took to see that the form holds
constexpr double kClearly = 1.05;       // times the ratio of the form before
constexpr uint64_t kMoreTokens = 2;     // times those of the last fit
constexpr uint64_t kStepTokens = 1024;  // of the first pages, for a step alone

// Notes why nothing is fitted now. Two notes stay: that of a space with a form, which tells how the
// form came, and one that says `why` already.
void SayWaits(const Space& space, std::string why) {
  const FittedForm::State now = space.fitted->state();
  if (!now.recipe.empty() || now.note == why) return;
  if (const auto step = space.fitted->codec(); step != nullptr) {
    absl::StrAppend(&why, "; until then ", step->recipe().text());
  }
  space.fitted->SetNote(std::move(why));
}

// Returns whether the space's own cold form looks for a step page by page.
bool SeeksSteps(const Space& space) {
  const auto target = RateTargetOf(space.cold->recipe());
  return target.ok() && target->has_value() && (*target)->rate == Rate::kDivergence;
}

std::string Figures(const FormFigures& form) {
  return absl::StrFormat("%s: %.1f x at %.4f nats", form.recipe, form.ratio, form.divergence);
}

}  // namespace

Fitter::Fitter(Options options, TieredStore& store, const Spaces& spaces,
               Calibrations& calibrations)
    : options_(std::move(options)), store_(store), spaces_(spaces), calibrations_(calibrations) {
  for (const auto& space : AutoSpaces()) Restore(*space, states_[space->id]);
  thread_ = std::thread([this] { Loop(); });
}

Fitter::~Fitter() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

bool Fitter::stopping() {
  MutexLock lock(mu_);
  return stop_;
}

std::vector<MetricRow> Fitter::Rows() const {
  const Calibrations::Unread unread = calibrations_.unread();
  return {{"fits_total", "fits of cold forms that ended well", fits_},
          {"fit_switches_total", "spaces of recipe auto that took another cold form", switches_},
          {"fit_failures_total", "fits of cold forms that failed", failures_},
          {"fit_milliseconds_total", "time that fits took", milliseconds_},
          {"fit_locked_tables_total", "files of tables whose key is not here", unread.locked},
          {"fit_damaged_tables_total",
           "files of tables that were changed, moved or renamed, or lie in clear among sealed ones",
           unread.damaged}};
}

void Fitter::Loop() {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLowestPriority);
  for (;;) {
    {
      MutexLock lock(mu_);
      const Time until = Clock::Real().Now() + options_.look_every;
      for (Time now; !stop_ && (now = Clock::Real().Now()) < until;) {
        changed_.WaitFor(mu_, until - now);
      }
      if (stop_) return;
    }
    const auto spaces = AutoSpaces();
    std::erase_if(states_, [&](const auto& state) {
      return std::ranges::none_of(spaces, [&](const auto& s) { return s->id == state.first; });
    });
    for (const auto& space : spaces) {
      if (!stopping()) LookAt(*space);
    }
  }
}

// Returns the spaces of recipe `auto`. What was fitted to others, which are gone, is erased.
std::vector<std::shared_ptr<const Space>> Fitter::AutoSpaces() {
  std::vector<std::shared_ptr<const Space>> out = spaces_.All();
  std::erase_if(out, [](const auto& space) { return space->fitted == nullptr; });
  std::set<FitName> names;
  for (const auto& space : out) names.insert(FitNameOf(*space));
  calibrations_.KeepFitted(names);
  return out;
}

void Fitter::Restore(const Space& space, State& state) {
  const auto last = calibrations_.LastFitted(FitNameOf(space));
  if (last == nullptr) return;
  const FitNote& note = *last->fit_note();
  const auto codec = CodecOfForm(note.recipe, last->id(), space.spec, calibrations_.store());
  state.last_number = note.number;
  if (!codec.ok()) {
    space.fitted->SetNote(std::string(codec.status().message()));
    return;
  }
  state.calibration = last->id();
  space.fitted->Set(*codec, {.recipe = note.recipe, .note = "fitted before the server started"});
}

uint64_t Fitter::TokensOf(const Space& space) {
  return store_.residency().Usage(space.id).raw_bytes / BytesPerToken(space.spec);
}

bool Fitter::HasEnough(const Space& space) {
  const uint64_t tokens = TokensOf(space);
  const uint64_t least = LeastFitTokens(space.spec) + kLeastHeldOutTokens;
  if (tokens >= least) return true;
  SayWaits(space, absl::StrCat("waits for pages: ", tokens, " tokens of ", least));
  return false;
}

void Fitter::LookAt(const Space& space) {
  if (!options_.off.empty()) return space.fitted->SetNote(options_.off);
  const auto [it, is_new] = states_.try_emplace(space.id);
  State& state = it->second;
  if (is_new) Restore(space, state);
  const Time begin = options_.clock->Now();
  const auto stats = calibrations_.StatisticsOf(FitNameOf(space));
  if (stats != nullptr && stats->id() != state.heard) {
    state.heard = stats->id();
    state.due = begin;
  }
  if (begin < state.due) return;
  const bool has_step = space.fitted->codec() != nullptr || state.sought_step;
  if (!has_step && SeeksSteps(space)) SeekStep(space, state, stats.get());
  if (!HasEnough(space)) return;
  const absl::Status keeps = calibrations_.CanKeep(space.tenant);
  absl::StatusOr<FitJob> job = keeps.ok() ? JobOf(space, state, stats.get()) : keeps;
  if (!job.ok()) {
    SayWaits(space, std::string(job.status().message()));
    state.due = begin + options_.least_rest / 4;
    return;
  }
  SayWaits(space, absl::StrCat("a fit to ", job->fitted_on.size(), " pages runs"));
  absl::StatusOr<FitOutcome> outcome = Run(space, *job);
  if (absl::IsCancelled(outcome.status())) return;
  if (stats != nullptr) state.statistics = stats->id();
  const Duration took = options_.clock->Now() - begin;
  const bool fitted = !outcome.ok() || outcome->tokens > 0;
  const absl::Status done =
      outcome.ok() ? Take(space, *std::move(outcome), state) : outcome.status();
  ++(done.ok() ? fits_ : failures_);
  if (!done.ok()) {
    space.fitted->SetNote(absl::StrCat("a fit failed: ", done.message()));
    Log().warn("space '{}': no cold form was fitted: {}", space.name, std::string(done.message()));
  }
  const Duration rest = (fitted ? kRests : kRestsOfTest) * took;
  state.due = options_.clock->Now() + std::max(options_.least_rest, rest);
}

absl::StatusOr<FitOutcome> Fitter::Run(const Space& space, const FitJob& job) {
  const auto gone = [&] { return spaces_.Find(space.id) == nullptr; };
  const Time begin = options_.clock->Now();
  absl::StatusOr<FitOutcome> outcome = options_.run(job, [&] { return stopping() || gone(); });
  const Duration took = options_.clock->Now() - begin;
  milliseconds_ +=
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(took).count());
  // Nothing is kept of a space that was dropped meanwhile: its keys may be erased.
  if (gone()) return absl::CancelledError("the space was dropped");
  return outcome;
}

// The form stays the space's own: it has no note of a fit, and no figures.
void Fitter::SeekStep(const Space& space, State& state, const Calibration* stats) {
  if (TokensOf(space) < kLeastHeldOutTokens) return;
  FitSampleLimits limits = options_.sample;
  limits.tokens = kStepTokens;
  limits.held_out_tokens = 0;
  FitSample sample = TakeFitSample(store_, space.id, limits);
  if (sample.tokens < kLeastHeldOutTokens) return;
  FitJob job = EmptyJob(space, stats);
  job.held_out = std::move(sample.fitted_on);
  const absl::StatusOr<FitOutcome> outcome = Run(space, job);
  state.sought_step = true;  // once: the own form does without
  if (!outcome.ok() && !absl::IsCancelled(outcome.status())) {
    Log().warn("space '{}': no step was found: {}", space.name, outcome.status().ToString());
  }
  if (!outcome.ok() || outcome->best.recipe.empty()) return;
  const auto codec =
      CodecOfForm(outcome->best.recipe, CalibrationId{}, space.spec, calibrations_.store());
  if (!codec.ok()) return;
  Log().info("space '{}' codes cold pages as {} until there is a fit", space.name,
             Figures(outcome->best));
  space.fitted->Set(*codec, space.fitted->state());
}

FitJob Fitter::EmptyJob(const Space& space, const Calibration* stats) {
  FitJob job{.space = SerializeSpace(space),
             .divergence = space.fitted->target(),
             .recipe = {},
             .blob = {},
             .statistics = {},
             .most_table_bytes = options_.most_table_bytes,
             .fitted_on = {},
             .held_out = {}};
  if (stats == nullptr) return job;
  const auto blob = calibrations_.Blob(stats->id());
  if (blob.ok()) job.statistics = std::string(AsString(blob->span()));
  return job;
}

// Takes a sample. UNAVAILABLE: there is nothing to do, as it says.
absl::StatusOr<FitJob> Fitter::JobOf(const Space& space, const State& state,
                                     const Calibration* stats) {
  FitSample sample = TakeFitSample(store_, space.id, options_.sample);
  // With as many pages as memory allows, `kvstow` gets its step at least.
  const uint64_t least = sample.full ? kLeastFitTokens : LeastFitTokens(space.spec);
  if (sample.tokens < least || sample.held_out_tokens < kLeastHeldOutTokens) {
    return absl::UnavailableError(
        absl::StrCat("waits for pages in their hot form: ", sample.tokens + sample.held_out_tokens,
                     " tokens of ", least + kLeastHeldOutTokens));
  }
  const FittedForm::State now = space.fitted->state();
  const bool news = stats != nullptr && stats->id() != state.statistics;
  const bool refit = news || sample.tokens >= kMoreTokens * state.fitted_tokens;
  if (now.recipe.empty() && !refit) return absl::UnavailableError(now.note);
  FitJob job = EmptyJob(space, stats);
  job.recipe = now.recipe;
  job.refit = refit;
  job.fitted_on = std::move(sample.fitted_on);
  job.held_out = std::move(sample.held_out);
  if (state.calibration != CalibrationId{}) {
    const auto blob = calibrations_.Blob(state.calibration);
    if (blob.ok()) {
      job.blob = std::string(AsString(blob->span()));
    } else {  // its file went: there is nothing to compare with
      job.recipe.clear();
      job.refit = true;
    }
  }
  return job;
}

absl::Status Fitter::Take(const Space& space, FitOutcome outcome, State& state) {
  FittedForm::State now = space.fitted->state();
  const FormFigures& before = outcome.before.recipe.empty() ? outcome.own : outcome.before;
  const bool holds = before.divergence <= kHolds * space.fitted->target();
  ++now.fits;
  now.ratio = before.ratio;
  now.divergence = before.divergence;
  state.fitted_tokens = std::max(state.fitted_tokens, outcome.tokens);
  const bool better =
      !outcome.best.recipe.empty() && (!holds || outcome.best.ratio > kClearly * before.ratio);
  const bool no_tables = outcome.blob.empty() && !outcome.why.empty();
  std::string lack = no_tables ? absl::StrCat("; no tables: ", outcome.why) : "";
  if (outcome.left_out > 0) {
    absl::StrAppend(&lack, "; left out ", outcome.left_out, " pages, damaged or unlike the others");
  }
  if (!better) {
    now.note = outcome.best.recipe.empty()
                   ? outcome.why + lack
                   : absl::StrCat("no clearly smaller form: ", Figures(outcome.best), lack);
    space.fitted->Set(space.fitted->codec(), std::move(now));
    return absl::OkStatus();
  }
  CalibrationId calibration{};
  if (!outcome.blob.empty()) {
    const FitNote note{FitNameOf(space), state.last_number + 1, outcome.best.recipe};
    KVSTOW_ASSIGN_OR_RETURN(const std::string blob, WithFitNote(AsBytes(outcome.blob), note));
    KVSTOW_ASSIGN_OR_RETURN(calibration, calibrations_.AddFitted(FitOwnerOf(space), AsBytes(blob)));
    ++state.last_number;
  }
  KVSTOW_ASSIGN_OR_RETURN(
      auto codec, CodecOfForm(outcome.best.recipe, calibration, space.spec, calibrations_.store()));
  state.calibration = calibration;
  Log().info("space '{}' codes cold pages as {}, before {}", space.name, Figures(outcome.best),
             Figures(before));
  space.fitted->Set(std::move(codec), {.recipe = outcome.best.recipe,
                                       .ratio = outcome.best.ratio,
                                       .divergence = outcome.best.divergence,
                                       .tokens = outcome.tokens,
                                       .fits = now.fits,
                                       .note = absl::StrCat("before: ", Figures(before), lack)});
  ++switches_;
  return absl::OkStatus();
}

}  // namespace kvstow
