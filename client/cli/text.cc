#include "client/cli/text.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/bytes.h"

namespace kvstow::cli {
namespace {

constexpr Duration kRedraw = std::chrono::milliseconds(100);

std::string Padded(const std::string& text, size_t width, bool right) {
  const std::string blanks(width - std::min(width, text.size()), ' ');
  return right ? blanks + text : text + blanks;
}

}  // namespace

std::string FormatTable(const std::vector<std::string>& heading,
                        const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> width(heading.size());
  std::vector<bool> right(heading.size(), true);
  const auto measure = [&](const std::vector<std::string>& row) {
    for (size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  };
  measure(heading);
  for (const auto& row : rows) {
    measure(row);
    for (size_t c = 0; c < row.size(); ++c) {
      if (!row[c].empty() && row[c][0] != '-' && !absl::ascii_isdigit(row[c][0])) right[c] = false;
    }
  }
  std::string out;
  const auto line = [&](const std::vector<std::string>& row) {
    std::string text;
    for (size_t c = 0; c < row.size(); ++c) {
      absl::StrAppend(&text, c == 0 ? "" : "  ", Padded(row[c], width[c], c > 0 && right[c]));
    }
    absl::StrAppend(&out, absl::StripTrailingAsciiWhitespace(text), "\n");
  };
  line(heading);
  for (const auto& row : rows) line(row);
  return out;
}

std::string FormatFields(const Fields& fields) {
  size_t width = 0;
  for (const auto& [name, value] : fields) width = std::max(width, name.size());
  std::string out;
  for (const auto& [name, value] : fields) {
    absl::StrAppend(&out, Padded(name, width, false), "  ", value, "\n");
  }
  return out;
}

std::string FormatFixed(double value, int digits) { return absl::StrFormat("%.*f", digits, value); }

std::string FormatRatio(uint64_t raw, uint64_t stored) {
  if (raw == 0 || stored == 0) return "-";
  return FormatFixed(static_cast<double>(raw) / static_cast<double>(stored), 2) + "x";
}

double GigabytesPerSecond(uint64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
}

double SecondsSince(Time start) {
  return std::chrono::duration<double>(Clock::Real().Now() - start).count();
}

Progress::Progress(std::string what, uint64_t total, std::string unit)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      total_(total),
      shown_(isatty(STDERR_FILENO) == 1),
      start_(Clock::Real().Now()) {}

Progress::~Progress() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void Progress::Update(uint64_t done) {
  const Time now = Clock::Real().Now();
  if (!shown_ || now - drawn_ < kRedraw) return;
  drawn_ = now;
  constexpr int kWidth = 30;
  const double part = total_ == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total_);
  const int filled = std::clamp(static_cast<int>(part * kWidth), 0, kWidth);
  const std::string amount =
      unit_.empty() ? absl::StrFormat("%s of %s  %.2f GB/s", FormatSize(done), FormatSize(total_),
                                      GigabytesPerSecond(done, SecondsSince(start_)))
                    : absl::StrFormat("%d of %d %s", done, total_, unit_);
  const std::string line =
      absl::StrFormat("\r%s [%s%s] %3.0f%%  %s\033[K", what_, std::string(filled, '#'),
                      std::string(kWidth - filled, '.'), 100 * part, amount);
  std::fputs(line.c_str(), stderr);
}

}  // namespace kvstow::cli
