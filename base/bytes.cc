#include "base/bytes.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvstow {
namespace {

struct Unit {
  const char* name;  // lower case
  double bytes;
};

constexpr double kKi = 1024.0;
constexpr Unit kUnits[] = {
    {"", 1},
    {"b", 1},
    {"k", kKi},
    {"kib", kKi},
    {"kb", 1e3},
    {"m", kKi* kKi},
    {"mib", kKi* kKi},
    {"mb", 1e6},
    {"g", kKi* kKi* kKi},
    {"gib", kKi* kKi* kKi},
    {"gb", 1e9},
    {"t", kKi* kKi* kKi* kKi},
    {"tib", kKi* kKi* kKi* kKi},
    {"tb", 1e12},
};

}  // namespace

absl::StatusOr<uint64_t> ParseSize(absl::string_view text) {
  const absl::string_view whole = absl::StripAsciiWhitespace(text);
  const size_t digits = std::min(whole.find_first_not_of("0123456789."), whole.size());
  const std::string unit = absl::AsciiStrToLower(absl::StripAsciiWhitespace(whole.substr(digits)));
  double number = 0;
  if (digits > 0 && absl::SimpleAtod(whole.substr(0, digits), &number)) {
    for (const Unit& u : kUnits) {
      if (unit != u.name) continue;
      const double bytes = std::round(number * u.bytes);
      if (bytes < 9.2e18) return static_cast<uint64_t>(bytes);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is not a size: write a number and a unit, as 64MiB, 30GB or 1.5TiB"));
}

std::string FormatSize(uint64_t bytes) {
  constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t i = 0;
  while (value >= 1024 && i + 1 < std::size(kNames)) {
    value /= 1024;
    ++i;
  }
  if (i == 0) return absl::StrCat(bytes, " B");
  return absl::StrFormat("%.*f %s", value < 10 ? 2 : (value < 100 ? 1 : 0), value, kNames[i]);
}

}  // namespace kvstow
