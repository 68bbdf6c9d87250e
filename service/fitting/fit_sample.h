// Takes pages of a space out of the store, for a fit and for its test.
//
// Only pages in their hot form count: they are close to what the worker sent. The newest are held
// out, so that a form is tested on what came after the pages that it was fitted on. Reading pages
// is no use of them.
//
// A plan costs a look at the index alone, so that whoever has no use for the sample need not read
// it. Where hot pages are few, it looks at all of the space's pages. Free functions; thread-safe.
#ifndef KVSTOW_SERVICE_FITTING_FIT_SAMPLE_H_
#define KVSTOW_SERVICE_FITTING_FIT_SAMPLE_H_

#include <cstdint>
#include <vector>

#include "service/fitting/fit_job.h"
#include "storage/segment.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

struct FitSampleLimits {
  uint64_t tokens = 32'768, held_out_tokens = 2'048;
  uint64_t bytes = uint64_t{192} << 20;  // stored, of both together
  size_t pages = 4'096;                  // hot ones, among which it chooses
};

// A page that is to be read.
struct PlannedPage {
  PageName name;
  PageFacts facts;
};

struct FitSamplePlan {
  std::vector<PlannedPage> fitted_on, held_out;
  uint64_t tokens = 0, held_out_tokens = 0;
  bool full = false;  // more pages are there than the bytes allow
};

FitSamplePlan PlanFitSample(TieredStore& store, SpaceId space, const FitSampleLimits& limits);

struct FitSample {
  std::vector<FitPage> fitted_on, held_out;
  uint64_t tokens = 0, held_out_tokens = 0;
};

// Leaves out pages that are gone, or whose bytes are damaged.
FitSample ReadFitSample(TieredStore& store, const FitSamplePlan& plan);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_FITTING_FIT_SAMPLE_H_
