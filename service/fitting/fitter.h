// Fitter: gives spaces of recipe `auto` their cold form (fitted_form.h), in the background.
//
// A thread looks at these spaces now and then. Where a space holds enough pages, it takes a sample
// (fit_sample.h) and has a process fit forms to one part and test them on the other (fit.h,
// fit_process.h). A form that stores the tested pages in clearly fewer bytes, at no more than the
// space's divergence, codes the cold pages from then on. Pages that are cold already keep their
// form: every page names its own.
//
// The fit takes minutes. Where the space's own cold form follows a divergence, as that of a bare
// `auto` does, the first look gives it a step instead: the one at which the first pages cost what
// they may. Looking for a step page by page takes eight times as long. New statistics of the model
// have it sought again. Later looks judge it on new pages, as they do fitted forms.
//
// Later it looks whether the form still holds on new pages, and fits again when it does not, or
// when there are twice as many pages as it was fitted on. A space rests after a fit for four times
// as long as the fit took, and one fit runs at a time, at the lowest priority. A fit that failed,
// or left the space without a form, is repeated on the pages of then: after 15 of the least rests,
// or 30 times as long as it took.
//
// Workers may send statistics of a space's model (SendStatistics). The next look after the first
// that come fits again at once. For those that replace them the space rests as after any fit.
//
// After a restart a space has the form that it had. Twice as many pages are then twice those of the
// first look.
//
// A calibration tells of the pages that it was fitted on. It is for its space alone, which its note
// names (FitNote), and no recipe finds it by chance. On a server with a master key it lies on disk
// sealed as pages do (calibrations.h). While a tenant has no key, nothing is fitted to its spaces.
//
// A space whose share of the room for tables (Calibrations::RoomFor) is taken gets forms that need
// none. What was fitted to a space goes with it.
//
// Whatever fails leaves a space with the form that it has, and with a note of why. Thread-safe. The
// destructor ends a fit that runs.
#ifndef KVSTOW_SERVICE_FITTING_FITTER_H_
#define KVSTOW_SERVICE_FITTING_FITTER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "service/fitting/fit_job.h"
#include "service/fitting/fit_sample.h"
#include "service/ops/metrics.h"
#include "service/spaces/spaces.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

class Fitter {
 public:
  struct Options {
    std::string off;  // why nothing is fitted; "" = it is
    Duration look_every = std::chrono::seconds(5);
    Duration least_rest = std::chrono::minutes(1);  // of a space, after a fit
    FitSampleLimits sample = {};
    uint64_t most_table_bytes = uint64_t{256} << 20;  // of one fit
    const Clock* clock = &Clock::Real();
    // Does a job, and gives up when `stop` says true.
    std::function<absl::StatusOr<FitOutcome>(const FitJob& job, const std::function<bool()>& stop)>
        run;
  };
  // Gives the spaces the forms that they had when the server ended. All of them outlive this.
  Fitter(Options options, TieredStore& store, const Spaces& spaces, Calibrations& calibrations);
  ~Fitter();

  std::vector<MetricRow> Rows() const;       // its counters, and those of tables on disk
  uint64_t looks() const { return looks_; }  // at all spaces, that ended

 private:
  struct State {
    Time due{};  // of the next look
    uint64_t last_number = 0;
    CalibrationId calibration{};  // of the form; zero = it needs none
    CalibrationId heard{};        // the statistics of the model that came last; zero = none
    // The last fit, also a failed one, had so many tokens and went by these statistics.
    uint64_t tried_tokens = 0;
    CalibrationId tried_statistics{};
    bool restored = false;     // the form is of before the start: on how many is not known yet
    Time again = Time::max();  // when it is repeated for itself: it failed, or found nothing
    std::string step;   // the space's own form at the step that was sought; "" = there is none
    Time seek_after{};  // when it may be sought; max = it was
  };

  void Loop();
  bool stopping();
  std::vector<std::shared_ptr<const Space>> AutoSpaces();
  void LookAt(const Space& space);
  void Restore(const Space& space, State& state);
  uint64_t TokensOf(const Space& space);
  // Returns whether the space has as many pages as it takes; leaves a note when it has not.
  bool HasEnough(const Space& space);
  // Gives the space's own form the step for its first pages. Does nothing while there are too few.
  void SeekStep(const Space& space, State& state, const Calibration* stats);
  // Does a job. CANCELLED: the server stops, or the space was dropped.
  absl::StatusOr<FitOutcome> Run(const Space& space, const FitJob& job);
  FitJob EmptyJob(const Space& space, const Calibration* stats);  // without pages
  struct Attempt {
    FitJob job;
    uint64_t tokens = 0;  // of the pages to fit to
  };
  // Decides whether there is anything to do, and then reads the pages for it. UNAVAILABLE: there is
  // nothing, as it says.
  absl::StatusOr<Attempt> NextAttempt(const Space& space, State& state, const Calibration* stats);
  // Returns when something is tried again that took so long in vain.
  Time AfterFailure(Duration took) const;
  // Decides on a fit that ended.
  absl::Status Take(const Space& space, FitOutcome outcome, State& state);

  const Options options_;
  TieredStore& store_;
  const Spaces& spaces_;
  Calibrations& calibrations_;
  std::atomic<uint64_t> fits_ = 0, switches_ = 0, failures_ = 0, milliseconds_ = 0, looks_ = 0;
  // Only the thread touches these.
  std::map<SpaceId, State> states_;
  std::set<FitName> seen_;  // that were open, while the records of some spaces could not be read
  Mutex mu_;
  CondVar changed_;
  bool stop_ KVSTOW_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_FITTING_FITTER_H_
