#include "kernels/calibration/fit_passes.h"

#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

constexpr uint64_t kLeastTokens = 64;

}  // namespace

absl::Status FitPasses::CheckOpen() const {
  if (now_ < count()) return absl::OkStatus();
  return absl::FailedPreconditionError("all passes of this fit are done");
}

absl::Status FitPasses::CheckWhole() const {
  if (const absl::Status open = CheckOpen(); !open.ok()) return open;
  if (tokens_[now_] >= kLeastTokens && tokens_[now_] == tokens_[0]) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("pass ", now_ + 1, " saw ", tokens_[now_], " tokens, the first ", tokens_[0],
                   "; all must see the same, at least ", kLeastTokens));
}

absl::Status FitPasses::Finish() {
  if (now_ == count()) {
    ++now_;
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(now_ < count()
                                           ? absl::StrCat(now_, " of ", count(), " passes are done")
                                           : "this fit is finished");
}

}  // namespace kvstow
