#include "client/planner/bandwidth.h"

#include <cstdint>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"

namespace kvstow::planner {

absl::StatusOr<double> ParseBandwidth(absl::string_view text) {
  double scale = 1;
  std::string lower = absl::AsciiStrToLower(absl::StripAsciiWhitespace(text));
  for (const absl::string_view end : {"bit/s", "bps", "bit"}) {
    if (!absl::EndsWith(lower, end)) continue;
    lower = lower.substr(0, lower.size() - end.size()) + "B";  // kilo is 1000 here
    scale = 0.125;
    break;
  }
  if (scale == 1 && absl::EndsWith(lower, "/s")) lower.resize(lower.size() - 2);
  const absl::StatusOr<uint64_t> size = ParseSize(lower);
  if (!size.ok() || *size == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not a bandwidth above 0: write 10GB/s or 25Gbit/s"));
  }
  return static_cast<double>(*size) * scale;
}

}  // namespace kvstow::planner
