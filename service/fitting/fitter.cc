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
constexpr int kRests = 4;            // times as long as a fit took
constexpr int kRestsOfTest = 20;     // times as long as it took to see that the form holds
constexpr int kRestsOfFailure = 30;  // times as long as a fit took that failed or found nothing
constexpr int kLeastRestsOfFailure = 15;
constexpr double kClearly = 1.05;       // times the ratio of the form before
constexpr uint64_t kMoreTokens = 2;     // times those of the last fit
constexpr uint64_t kStepTokens = 1024;  // of the first pages, for a step alone

constexpr char kNow[] = "; now: ";  // between two parts of a note

// Notes why nothing is fitted now. A space with a form keeps the note of how the form came, or of
// the last fit, before that.
void SayWaits(const Space& space, std::string why) {
  const FittedForm::State now = space.fitted->state();
  if (!now.recipe.empty()) {
    why = absl::StrCat(now.note.substr(0, now.note.find(kNow)), kNow, why);
  } else if (const auto step = space.fitted->codec(); step != nullptr && now.note != why) {
    absl::StrAppend(&why, "; until then ", step->recipe().text());
  }
  if (now.note != why) space.fitted->SetNote(std::move(why));
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
    ++looks_;
  }
}

// Returns the spaces of recipe `auto`. What was fitted to spaces that are gone is erased.
std::vector<std::shared_ptr<const Space>> Fitter::AutoSpaces() {
  std::set<FitName> gone = calibrations_.FittedSpaces();  // first: see EraseFitted
  std::vector<std::shared_ptr<const Space>> out = spaces_.All();
  const bool all_known = spaces_.left_out() == 0;
  for (const auto& space : out) {
    const FitName name = FitNameOf(*space);
    gone.erase(name);
    if (!all_known) seen_.insert(name);
  }
  // A space whose record could not be read is none that is gone.
  if (!all_known) std::erase_if(gone, [&](const FitName& name) { return !seen_.contains(name); });
  calibrations_.EraseFitted(gone);
  std::erase_if(out, [](const auto& space) { return space->fitted == nullptr; });
  return out;
}

void Fitter::Restore(const Space& space, State& state) {
  const auto last = calibrations_.LastFitted(FitNameOf(space));
  if (last == nullptr) return;
  const FitNote& note = *last->fit_note();
  const CalibrationId tables = last->Has(kJointSection) ? last->id() : CalibrationId{};
  const auto codec = CodecOfForm(note.recipe, tables, space.spec, calibrations_.store());
  state.last_number = note.number;
  if (!codec.ok()) {
    space.fitted->SetNote(std::string(codec.status().message()));
    return;
  }
  state.calibration = tables;
  state.restored = true;
  const auto stats = calibrations_.StatisticsOf(FitNameOf(space));
  if (stats != nullptr) state.tried_statistics = stats->id();
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
    // A fleet of workers may send many: the space rests between fits to all but the first.
    if (state.heard == CalibrationId{}) state.due = begin;
    state.heard = stats->id();
    state.seek_after = begin;
  }
  if (begin < state.due) return;
  if (begin >= state.seek_after && SeeksSteps(space) && space.fitted->state().recipe.empty()) {
    SeekStep(space, state, stats.get());
  }
  if (!HasEnough(space)) return;
  const Time asked = options_.clock->Now();
  const absl::StatusOr<Attempt> attempt = NextAttempt(space, state, stats.get());
  if (!attempt.ok()) {
    SayWaits(space, std::string(attempt.status().message()));
    const Time now = options_.clock->Now();
    state.due = now + std::max(options_.least_rest / 4, kRestsOfTest * (now - asked));
    return;
  }
  SayWaits(space, absl::StrCat("a fit to ", attempt->job.fitted_on.size(), " pages runs"));
  absl::StatusOr<FitOutcome> outcome = Run(space, attempt->job);
  if (absl::IsCancelled(outcome.status())) return;
  const bool fitted = !outcome.ok() || outcome->tokens > 0;
  const absl::Status done =
      outcome.ok() ? Take(space, *std::move(outcome), state) : outcome.status();
  if (!done.ok()) ++failures_;
  if (done.ok() && fitted) ++fits_;
  if (!done.ok()) {
    space.fitted->SetNote(absl::StrCat("a fit failed: ", done.message()));
    Log().warn("space '{}': no cold form was fitted: {}", space.name, std::string(done.message()));
  }
  const Duration took = options_.clock->Now() - asked;
  const Duration rest = (fitted ? kRests : kRestsOfTest) * took;
  state.due = options_.clock->Now() + std::max(options_.least_rest, rest);
  if (!fitted) return;
  state.tried_tokens = std::max(state.tried_tokens, attempt->tokens);
  state.tried_statistics = stats == nullptr ? CalibrationId{} : stats->id();
  const bool has_form = !space.fitted->state().recipe.empty();
  state.again = done.ok() && has_form ? Time::max() : AfterFailure(took);
  if (!done.ok()) state.due = state.again;
}

Time Fitter::AfterFailure(Duration took) const {
  return options_.clock->Now() +
         std::max(kLeastRestsOfFailure * options_.least_rest, kRestsOfFailure * took);
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
  const FitSamplePlan plan = PlanFitSample(store_, space.id, limits);
  if (plan.tokens < kLeastHeldOutTokens) return;
  FitJob job = EmptyJob(space, stats);
  job.held_out = ReadFitSample(store_, plan).fitted_on;
  const Time begin = options_.clock->Now();
  const absl::StatusOr<FitOutcome> outcome = Run(space, job);
  // The own form does without: a search that failed has time.
  state.seek_after = outcome.ok() ? Time::max() : AfterFailure(options_.clock->Now() - begin);
  if (!outcome.ok() && !absl::IsCancelled(outcome.status())) {
    ++failures_;
    Log().warn("space '{}': no step was found: {}", space.name, outcome.status().ToString());
  }
  if (!outcome.ok()) return;
  const std::string& recipe = outcome->best.recipe;
  if (recipe.empty()) {  // a step that was found before costs too much by statistics of now
    state.step.clear();
    return space.fitted->Set(nullptr, space.fitted->state());
  }
  const auto codec = CodecOfForm(recipe, CalibrationId{}, space.spec, calibrations_.store());
  if (!codec.ok()) return;
  Log().info("space '{}' codes cold pages as {} until there is a fit", space.name,
             Figures(outcome->best));
  state.step = recipe;
  space.fitted->Set(*codec, space.fitted->state());
}

FitJob Fitter::EmptyJob(const Space& space, const Calibration* stats) {
  FitJob job{.space = SerializeSpace(space),
             .divergence = space.fitted->target(),
             .recipe = {},
             .blob = {},
             .statistics = {},
             .most_table_bytes =
                 std::min(options_.most_table_bytes, calibrations_.RoomFor(FitNameOf(space))),
             .fitted_on = {},
             .held_out = {}};
  if (stats == nullptr) return job;
  const auto blob = calibrations_.Blob(stats->id());
  if (blob.ok()) job.statistics = std::string(AsString(blob->span()));
  return job;
}

absl::StatusOr<Fitter::Attempt> Fitter::NextAttempt(const Space& space, State& state,
                                                    const Calibration* stats) {
  KVSTOW_RETURN_IF_ERROR(calibrations_.CanKeep(space.tenant));
  const FitSamplePlan plan = PlanFitSample(store_, space.id, options_.sample);
  // With as many pages as memory allows, `kvstow` gets its step at least.
  const uint64_t least = plan.full ? kLeastFitTokens : LeastFitTokens(space.spec);
  if (plan.tokens < least || plan.held_out_tokens < kLeastHeldOutTokens) {
    return absl::UnavailableError(
        absl::StrCat("waits for pages in their hot form: ", plan.tokens + plan.held_out_tokens,
                     " tokens of ", least + kLeastHeldOutTokens));
  }
  // What a form of before the start was fitted on is not known. The pages of now count as that.
  if (std::exchange(state.restored, false)) state.tried_tokens = plan.tokens;
  const FittedForm::State now = space.fitted->state();
  const bool news = stats != nullptr && stats->id() != state.tried_statistics;
  const bool refit = news || plan.tokens >= kMoreTokens * state.tried_tokens ||
                     options_.clock->Now() >= state.again;
  const std::string& before = now.recipe.empty() ? state.step : now.recipe;
  if (before.empty() && !refit) return absl::UnavailableError(now.note);
  FitSample sample = ReadFitSample(store_, plan);
  if (sample.tokens < kLeastFitTokens || sample.held_out_tokens < kLeastHeldOutTokens) {
    return absl::UnavailableError("waits for pages: the bytes of some are gone, or damaged");
  }
  Attempt out{.job = EmptyJob(space, stats), .tokens = plan.tokens};
  FitJob& job = out.job;
  job.recipe = before;
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
  return out;
}

absl::Status Fitter::Take(const Space& space, FitOutcome outcome, State& state) {
  FittedForm::State now = space.fitted->state();
  const FormFigures& before = outcome.before.recipe.empty() ? outcome.own : outcome.before;
  const bool holds = before.divergence <= kHolds * space.fitted->target();
  if (outcome.tokens > 0) ++now.fits;  // else the form before holds
  now.ratio = before.ratio;
  now.divergence = before.divergence;
  const bool better =
      !outcome.best.recipe.empty() && (!holds || outcome.best.ratio > kClearly * before.ratio);
  const bool no_tables = outcome.blob.empty() && !outcome.why.empty();
  const std::string left =
      outcome.left_out == 0
          ? ""
          : absl::StrCat("; left out ", outcome.left_out, " pages, damaged or unlike the others");
  const std::string lack =
      absl::StrCat(no_tables ? absl::StrCat("; no tables: ", outcome.why) : "", left);
  if (!better) {
    now.note = outcome.best.recipe.empty()
                   ? outcome.why + left
                   : absl::StrCat("no clearly smaller form: ", Figures(outcome.best), lack);
    space.fitted->Set(space.fitted->codec(), std::move(now));
    return absl::OkStatus();
  }
  CalibrationId calibration{};
  const FitOwner owner = FitOwnerOf(space);
  const FitNote note{owner.name, state.last_number + 1, outcome.best.recipe};
  if (outcome.blob.empty()) {
    // Else tables that it replaces would come back after a restart.
    KVSTOW_RETURN_IF_ERROR(calibrations_.AddNote(owner, space.spec, note));
  } else {
    KVSTOW_ASSIGN_OR_RETURN(const std::string blob, WithFitNote(AsBytes(outcome.blob), note));
    KVSTOW_ASSIGN_OR_RETURN(calibration, calibrations_.AddFitted(owner, AsBytes(blob)));
  }
  ++state.last_number;
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
