// The progress of a calibration's fit (calibration_fit.h): how many passes are done, and whether
// each saw as many tokens as the first.
//
// A value; not thread-safe. Errors: FAILED_PRECONDITION for a call out of order, or too few tokens.
#ifndef KVSTOW_KERNELS_CALIBRATION_FIT_PASSES_H_
#define KVSTOW_KERNELS_CALIBRATION_FIT_PASSES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace kvstow {

class FitPasses {
 public:
  explicit FitPasses(int passes) : tokens_(passes) {}

  int count() const { return static_cast<int>(tokens_.size()); }
  // Returns the pass that is open, from 0, or count() when all are done.
  int now() const { return now_; }
  // Returns the tokens of the first pass.
  uint64_t tokens() const { return tokens_[0]; }

  // Checks that a pass is open.
  absl::Status CheckOpen() const;
  void Add(uint64_t tokens) { tokens_[now_] += tokens; }
  // Checks that the open pass has seen as many tokens as the first, and at least 64.
  absl::Status CheckWhole() const;
  void EndPass() { ++now_; }
  // Call it once, after all passes.
  absl::Status Finish();

 private:
  std::vector<uint64_t> tokens_;  // tokens that each pass saw
  int now_ = 0;                   // beyond count(): the fit is finished
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_FIT_PASSES_H_
