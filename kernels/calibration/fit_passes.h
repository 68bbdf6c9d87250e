// Where a calibration's fit is (calibration_fit.h): how many passes are done, and that each saw the
// same tokens.
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
  // The pass that is open, from 0; count() when all are done.
  int now() const { return now_; }
  // Of the first pass.
  uint64_t tokens() const { return tokens_[0]; }

  // That a pass is open.
  absl::Status CheckOpen() const;
  void Add(uint64_t tokens) { tokens_[now_] += tokens; }
  // That the open one has seen what the first has, and enough.
  absl::Status CheckWhole() const;
  void EndPass() { ++now_; }
  // Once, after all passes.
  absl::Status Finish();

 private:
  std::vector<uint64_t> tokens_;  // that each pass saw
  int now_ = 0;                   // beyond count(): it is finished
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_FIT_PASSES_H_
