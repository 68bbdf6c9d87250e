#include "client/connection/attempts.h"

#include <algorithm>
#include <random>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/chunk.h"

namespace kvstow {
namespace {

constexpr Duration kFirstWait = std::chrono::milliseconds(50);
constexpr Duration kLongestWait = std::chrono::milliseconds(1000);

Duration LongerByUpToHalf(Duration wait) {
  thread_local std::minstd_rand random(std::random_device{}());
  return wait + Duration(std::uniform_int_distribution<Duration::rep>(0, wait.count() / 2)(random));
}

}  // namespace

std::optional<Duration> Attempts::Next(const absl::Status& status, bool progress) {
  const absl::optional<absl::Cord> pushback = status.GetPayload(kPushbackKey);
  if (!pushback && !absl::IsUnavailable(status)) return std::nullopt;
  failed_ = progress ? 1 : failed_ + 1;
  if (failed_ >= limit_) return std::nullopt;
  Duration first = kFirstWait, longest = kLongestWait;
  if (pushback) {
    int asked_ms = -1;
    if (!absl::SimpleAtoi(std::string(*pushback), &asked_ms) || asked_ms < 0) return std::nullopt;
    first = std::chrono::milliseconds(asked_ms);
    longest = std::max(longest, first);
  }
  const Duration wait =
      LongerByUpToHalf(std::min(first * (1 << std::min(failed_ - 1, 10)), longest));
  if (Clock::Real().Now() + wait >= deadline_) return std::nullopt;
  return wait;
}

std::optional<Duration> Attempts::Elsewhere(const absl::Status& status) {
  if (++elsewhere_ > limit_) return Next(status, /*progress=*/false);
  if (Clock::Real().Now() >= deadline_) return std::nullopt;
  return Duration(0);
}

absl::Status Explain(const absl::Status& status, absl::string_view address) {
  if (absl::IsUnavailable(status) && absl::StrContains(status.message(), "tls: ")) {
    return absl::UnavailableError(absl::StrCat("cannot talk to ", address, ": ", status.message()));
  }
  if (absl::IsUnavailable(status)) {
    const bool hung_up = absl::StrContains(status.message(), "Socket closed");
    return absl::UnavailableError(absl::StrCat(
        "cannot reach ", address,
        ": is kvstowd running? start it, or name another "
        "address",
        hung_up ? "; if it runs, it may want TLS (tls-ca)" : "", " (", status.message(), ")"));
  }
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(absl::StrCat(
        address, " did not answer in time: see whether it is overloaded, or allow more time"));
  }
  return status;
}

}  // namespace kvstow
