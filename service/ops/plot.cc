#include "service/ops/plot.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "service/ops/html.h"

namespace kvstow {
namespace {

// Paths have a width and a height of 1,000.
std::string Across(double x) { return absl::StrFormat("%.4g", 1000 * std::clamp(x, 0.0, 1.0)); }
std::string Down(double y) { return Across(1 - y); }
// At the very edge half of a line would be cut off.
constexpr double kLastMark = 0.997;

std::string Percent(double x) { return absl::StrFormat("%.4g%%", 100 * std::clamp(x, 0.0, 1.0)); }

std::string Key(const std::string& shape) {
  return absl::StrCat("<svg class=\"key\" viewBox=\"0 0 10 10\" aria-hidden=\"true\">", shape,
                      "</svg>");
}

}  // namespace

std::string BarSvg(const std::vector<BarPart>& parts, std::optional<double> mark,
                   absl::string_view label) {
  std::string out = absl::StrCat("<svg class=\"bars\" role=\"img\" aria-label=\"",
                                 EscapeHtml(label), "\"><title>", EscapeHtml(label),
                                 "</title><rect class=\"track\" width=\"100%\" height=\"100%\"/>");
  for (const BarPart& part : parts) {
    absl::StrAppend(&out, "<rect class=\"", part.classes, "\" x=\"", Percent(part.from),
                    "\" width=\"", Percent(part.to - part.from), "\" height=\"100%\"/>");
  }
  if (mark.has_value()) {
    const std::string x = Percent(std::min(*mark, kLastMark));
    absl::StrAppend(&out, "<line class=\"mark\" x1=\"", x, "\" x2=\"", x, "\" y2=\"100%\"/>");
  }
  return out + "</svg>";
}

std::string AreaKey(const char* classes) {
  return Key(absl::StrCat("<rect class=\"", classes, "\" width=\"10\" height=\"10\" rx=\"2\"/>"));
}

std::string LineKey(const char* classes) {
  return Key(absl::StrCat("<path class=\"line ", classes, "\" d=\"M0 5H10\"/>"));
}

Plot::Plot(absl::string_view label, absl::string_view top)
    : head_(absl::StrCat("<svg class=\"plot\" role=\"img\" aria-label=\"", EscapeHtml(label),
                         "\">")) {
  for (int quarter = 0; quarter <= 4; ++quarter) {
    const std::string y = Percent(quarter / 4.0);
    absl::StrAppend(&head_, "<line class=\"grid\" x2=\"100%\" y1=\"", y, "\" y2=\"", y, "\"/>");
  }
  absl::StrAppend(&over_, "<text class=\"label\" x=\"4\" y=\"14\">", EscapeHtml(top), "</text>");
}

void Plot::AddPath(const char* classes, const std::string& line) {
  const std::string begin = line.substr(0, line.find(' '));
  absl::StrAppend(&paths_, "<path class=\"area ", classes, "\" d=\"M", line, "V1000H", begin,
                  "Z\"/><path class=\"line ", classes, "\" d=\"M", line, "\"/>");
}

void Plot::AddSteps(const char* classes, const std::vector<Step>& steps) {
  constexpr double kTouching = 1e-6;
  size_t begin = 0;
  while (begin < steps.size()) {
    std::string line = absl::StrCat(Across(steps[begin].from), " ", Down(steps[begin].y));
    size_t i = begin;
    for (;; ++i) {
      absl::StrAppend(&line, "H", Across(steps[i].to));
      if (i + 1 == steps.size() || steps[i + 1].from > steps[i].to + kTouching) break;
      absl::StrAppend(&line, "V", Down(steps[i + 1].y));
    }
    AddPath(classes, line);
    begin = i + 1;
  }
}

void Plot::AddCurve(const char* classes, const std::vector<Point>& points) {
  if (points.empty()) return;
  std::string line;
  for (const Point& p : points) {
    absl::StrAppend(&line, line.empty() ? "" : "L", Across(p.x), " ", Down(p.y));
  }
  AddPath(classes, line);
}

void Plot::AddVertical(double x) {
  absl::StrAppend(&over_, "<line class=\"mark\" x1=\"", Percent(x), "\" x2=\"", Percent(x),
                  "\" y2=\"100%\"/>");
}

void Plot::AddHover(double from, double to, absl::string_view text) {
  absl::StrAppend(&over_, "<rect class=\"hover\" x=\"", Percent(from), "\" width=\"",
                  Percent(to - from), "\" height=\"100%\"><title>", EscapeHtml(text),
                  "</title></rect>");
}

std::string Plot::Finish() const {
  return absl::StrCat(head_,
                      "<svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" width=\"100%\" "
                      "height=\"100%\">",
                      paths_, "</svg>", over_, "</svg>");
}

}  // namespace kvstow
