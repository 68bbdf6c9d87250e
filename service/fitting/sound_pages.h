// The pages of a fit and of its test, without those that would spoil them: pages that do not
// decode, that hold NaN or Inf, or that are unlike the others.
//
// Without statistics of the model, a fit and the prediction of a divergence go by the spread that
// these pages have. One page of another scale (a wrong scale of the KV, memory that nobody wrote)
// among sixteen makes all spreads a hundred times larger, and errors of the other pages then seem
// to cost nothing. So a page is left out where K or V of a layer is more than kMostScale times as
// large, or as small, as that of the median page. How large a page is, is the median of its tokens:
// the mean square of each token's values. A few tokens may be far out: those that draw much
// attention are, in honest pages. The first tokens of a text do not count at all, as neither fits
// nor predictions see them.
//
// Pages of 16 tokens of a text have .58 to 1.7 times the scale of the median page (SmolLM2-135M).
// With fewer than three pages, no page is left out for its scale.
//
// Free functions; thread-safe. One page is decoded at a time.
#ifndef KVSTOW_SERVICE_FITTING_SOUND_PAGES_H_
#define KVSTOW_SERVICE_FITTING_SOUND_PAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/shared_bytes.h"
#include "kernels/page/encoded_page.h"
#include "kernels/page/page_to_encode.h"
#include "service/fitting/fit_job.h"

namespace kvstow {

// A ratio of mean squares: the values are five times as large.
inline constexpr double kMostScale = 25;

// A page of a job, decoded.
struct RawPage {
  PageHeader header;  // of the hot form
  ByteBlock raw;
};
// Fails as DecodePage does, and with DATA_LOSS for a header that is none.
absl::StatusOr<RawPage> DecodeFitPage(const FitPage& page);
// The view refers to the page.
PageToEncode ToEncode(const RawPage& page);

struct SoundPages {
  std::vector<FitPage> fitted_on, held_out;
  uint64_t tokens = 0, held_out_tokens = 0;  // of these
  uint32_t left_out = 0;                     // pages
  std::string why;                           // the last of them was left out
};

// Fails with INVALID_ARGUMENT for pages of another geometry than the spec's.
absl::StatusOr<SoundPages> TakeSoundPages(const FitJob& job, const KvSpec& spec);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_FITTING_SOUND_PAGES_H_
