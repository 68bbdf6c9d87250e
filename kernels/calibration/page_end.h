// How much tokens count that stand near the end of their page.
//
// Whoever reads a prefix goes on right behind its last page, and the next tokens lean most on the
// tokens just before them. An error d tokens before them costs about 1 / (d + 8): the last 64
// tokens of 1,024 carry half of the KL divergence of the next 256. A prefix may end with any page.
// So with d tokens behind a token in its page, and pages of P tokens:
//
//   w(d) = sum over k of 1 / (d + k P + 8), while k P < 1,024       step(d) = w(d)^-kEndPower
//
// Steps are relative to their geometric mean over the page, so the end of a page is finer and its
// beginning is coarser than the step says. A short page has the steps of the end of a whole one.
// Measured on SmolLM2-135M (docs/decisions/0106-the-end-of-a-page.md).
//
// Free functions; thread-safe.
#ifndef KVSTOW_KERNELS_CALIBRATION_PAGE_END_H_
#define KVSTOW_KERNELS_CALIBRATION_PAGE_END_H_

#include <cstdint>
#include <vector>

namespace kvstow {

// Return a value for each token of a whole page: w over its mean, and log2 of the step. A page of n
// tokens takes the last n.
std::vector<double> EndWeights(uint32_t page_tokens);
std::vector<float> EndLogSteps(uint32_t page_tokens);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_PAGE_END_H_
