#include "client/planner/bandwidth.h"

#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/bytes.h"

namespace kvstow::planner {
namespace {

bool ConsumeSuffixIgnoreCase(absl::string_view& text, absl::string_view suffix) {
  if (!absl::EndsWithIgnoreCase(text, suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

// Returns whether the prefix is written small ("g", "gi"). Its "b" may be meant as bytes, too.
bool HasSmallPrefix(absl::string_view text) {
  absl::ConsumeSuffix(&text, "i");
  return absl::EndsWith(text, "m") || absl::EndsWith(text, "g") || absl::EndsWith(text, "t");
}

absl::StatusOr<uint64_t> CountOf(absl::string_view number_and_prefix) {
  return ParseSize(absl::StrCat(number_and_prefix, "B"));
}

}  // namespace

absl::StatusOr<double> ParseBandwidth(absl::string_view text) {
  absl::string_view rest = absl::StripAsciiWhitespace(text);
  if (!ConsumeSuffixIgnoreCase(rest, "/s")) ConsumeSuffixIgnoreCase(rest, "ps");
  const bool bits = ConsumeSuffixIgnoreCase(rest, "bit") ||
                    (absl::ConsumeSuffix(&rest, "b") && !HasSmallPrefix(rest));
  if (bits || absl::ConsumeSuffix(&rest, "B")) {
    const absl::StatusOr<uint64_t> count = CountOf(rest);
    if (count.ok() && *count > 0) return static_cast<double>(*count) / (bits ? 8 : 1);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is not a bandwidth above 0: write 10GB/s, or 25Gbit/s for bits"));
}

}  // namespace kvstow::planner
