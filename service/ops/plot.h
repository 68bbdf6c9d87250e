// Bars and plots as SVG.
//
// Values and free functions; thread-safe. Coordinates are shares: 0 is the left or the bottom, 1
// the right or the top, and what lies outside is cut off. Widths and colours are page.css's, by
// class. A drawing has a label for those who do not see it; texts are escaped.
#ifndef KVSTOW_SERVICE_OPS_PLOT_H_
#define KVSTOW_SERVICE_OPS_PLOT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace kvstow {

struct BarPart {
  double from, to;
  const char* classes;
};
// Draws a bar: a track, parts over it in their order, and a mark.
std::string BarSvg(const std::vector<BarPart>& parts, std::optional<double> mark,
                   absl::string_view label);

// The sample of a colour in a legend: of an area of these classes, or of a line.
std::string AreaKey(const char* classes);
std::string LineKey(const char* classes);

// A plot: lines over a grid of quarters.
class Plot {
 public:
  struct Step {
    double from, to, y;
  };
  struct Point {
    double x, y;
  };

  // `top` is the text of the highest grid line.
  Plot(absl::string_view label, absl::string_view top);

  // Adds a line with the area below. Steps that touch are joined; elsewhere is a gap.
  void AddSteps(const char* classes, const std::vector<Step>& steps);
  void AddCurve(const char* classes, const std::vector<Point>& points);
  void AddVertical(double x);
  // Shows `text` while the pointer is over that part.
  void AddHover(double from, double to, absl::string_view text);

  std::string Finish() const;

 private:
  void AddPath(const char* classes, const std::string& line);  // "X Y" and commands

  std::string head_, paths_, over_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_PLOT_H_
