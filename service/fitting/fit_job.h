// One fit of a cold form for a space of recipe `auto`: what goes in, and what comes out. Both cross
// the border of a process (fit_process.h).
//
// Values. Parsing checks lengths only: the bytes are the server's own.
#ifndef KVSTOW_SERVICE_FITTING_FIT_JOB_H_
#define KVSTOW_SERVICE_FITTING_FIT_JOB_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/shared_bytes.h"

namespace kvstow {

// A page as the store has it, in its hot form.
struct FitPage {
  SharedBytes header;
  std::vector<SharedBytes> bodies;
};

struct FitJob {
  std::string space;      // its record (space_record.h): spec and forms
  double divergence = 0;  // that a cold page may cost, in nats
  // The form that was fitted before, and its calibration; "" = none. Where it still holds, nothing
  // is fitted.
  std::string recipe, blob;
  // Fits all the same: there are many more pages than it was fitted on, or other statistics.
  bool refit = false;
  std::string statistics;  // of the space's model (model_stats.h), a blob; "" = none
  uint64_t most_table_bytes = uint64_t{256} << 20;  // longer runs are not fitted
  // Without pages to fit to, it looks for a step of `kvstow` alone.
  std::vector<FitPage> fitted_on, held_out;
};

// A form on the pages that were held out.
struct FormFigures {
  std::string recipe;     // without `blob`; "" = there is none
  double ratio = 0;       // raw bytes over stored ones
  double divergence = 0;  // predicted, a mean over tokens
};

struct FitOutcome {
  FormFigures own, before, best;  // the space's own cold form, the one of the job, and the new one
  std::string blob;               // of `best`, without a note; "" = it needs none
  uint64_t tokens = 0;            // that forms were fitted on; 0 = none was
  uint32_t left_out = 0;          // pages: damaged, or unlike the others (sound_pages.h)
  std::string why;                // there is no `best`, or not from a calibration
};

std::string SerializeFitJob(const FitJob& job);
absl::StatusOr<FitJob> ParseFitJob(const SharedBytes& bytes);
std::string SerializeFitOutcome(const FitOutcome& outcome);
absl::StatusOr<FitOutcome> ParseFitOutcome(const SharedBytes& bytes);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_FITTING_FIT_JOB_H_
