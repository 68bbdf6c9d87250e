#include "client/planner/size_curve.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/bytes.h"

namespace kvstow::planner {
namespace {

constexpr int kSteps = 12;  // powers of two of the table
constexpr double kWidth = 720, kHeight = 400, kLeft = 60, kRight = 160, kTop = 40, kBottom = 50;
constexpr absl::string_view kColours[] = {"#1f77b4", "#d62728", "#2ca02c",
                                          "#9467bd", "#ff7f0e", "#17becf"};

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

std::string TextAt(double x, double y, absl::string_view anchor, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
                         Escaped(text));
}

// Where a value stands in the drawing.
class Axes {
 public:
  explicit Axes(const SizeCurves& curves)
      : low_(std::log2(static_cast<double>(curves.sizes.front()))),
        high_(std::max(low_ + 1, std::log2(static_cast<double>(curves.sizes.back())))),
        top_(std::min(1.0, std::ceil(std::max(0.1, curves.infinite) * 10) / 10)) {}
  double X(uint64_t bytes) const {
    return kLeft + (std::log2(static_cast<double>(bytes)) - low_) / (high_ - low_) *
                       (kWidth - kLeft - kRight);
  }
  double Y(double rate) const {
    return kHeight - kBottom - rate / top_ * (kHeight - kTop - kBottom);
  }
  double top() const { return top_; }

 private:
  double low_, high_, top_;
};

}  // namespace

SizeCurves CurvesOf(const Load& load, uint64_t raw_bytes_per_token,
                    std::span<const RecipeSize> recipes, std::span<const uint64_t> more) {
  SizeCurves out{.sizes = {more.begin(), more.end()}, .infinite = load.curve.InfiniteHitRate()};
  uint64_t largest = 1;
  for (const RecipeSize& r : recipes) {
    SizeCurve curve{.recipe = r.recipe};
    curve.block_bytes = r.StoredBytes(raw_bytes_per_token) * load.block_tokens;
    curve.all_bytes = curve.block_bytes * load.curve.LargestDistance();
    largest = std::max(largest, curve.all_bytes);
    out.recipes.push_back(std::move(curve));
  }
  const uint64_t top = std::bit_ceil(largest);
  for (int i = 0; i < kSteps && top >> i > 0; ++i) out.sizes.push_back(top >> i);
  std::sort(out.sizes.begin(), out.sizes.end());
  out.sizes.erase(std::unique(out.sizes.begin(), out.sizes.end()), out.sizes.end());
  for (SizeCurve& curve : out.recipes) {
    for (const uint64_t size : out.sizes) curve.rates.push_back(HitRateAt(load, curve, size));
  }
  return out;
}

double HitRateAt(const Load& load, const SizeCurve& curve, uint64_t bytes) {
  return load.curve.HitRate(bytes / std::max<uint64_t>(1, curve.block_bytes));
}

std::optional<uint64_t> SizeFor(const Load& load, const SizeCurve& curve, double rate) {
  const std::optional<uint64_t> blocks = load.curve.BlocksFor(rate);
  if (!blocks.has_value()) return std::nullopt;
  return *blocks * curve.block_bytes;
}

std::string Sparkline(std::span<const double> values) {
  constexpr absl::string_view kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  double top = 0;
  for (const double v : values) top = std::max(top, v);
  std::string out;
  for (const double v : values) {
    absl::StrAppend(&out, kBars[top > 0 ? std::lround(7 * std::max(0.0, v) / top) : 0]);
  }
  return out;
}

std::string CurvesSvg(const SizeCurves& curves, const std::string& title) {
  const Axes axes(curves);
  std::string out = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  absl::StrAppend(&out, TextAt(kLeft, kTop - 18, "start", title));
  const auto line = [&](double x1, double y1, double x2, double y2, absl::string_view style) {
    absl::StrAppendFormat(&out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1,
                          y1, x2, y2, style);
  };
  const double left = kLeft, right = kWidth - kRight;
  for (int i = 0; i <= 5; ++i) {
    const double rate = axes.top() * i / 5, y = axes.Y(rate);
    line(left, y, right, y, "stroke=\"#ddd\"");
    absl::StrAppend(&out, TextAt(left - 6, y + 4, "end", absl::StrFormat("%.0f %%", 100 * rate)));
  }
  for (size_t i = 0; i < curves.sizes.size(); i += 2) {
    const double x = axes.X(curves.sizes[i]);
    absl::StrAppend(&out, TextAt(x, kHeight - kBottom + 18, "middle", FormatSize(curves.sizes[i])));
  }
  line(left, axes.Y(curves.infinite), right, axes.Y(curves.infinite),
       "stroke=\"#888\" stroke-dasharray=\"4 3\"");
  absl::StrAppend(&out, TextAt(right + 6, axes.Y(curves.infinite) - 4, "start", "infinite"));
  for (size_t r = 0; r < curves.recipes.size(); ++r) {
    const absl::string_view colour = kColours[r % std::size(kColours)];
    std::string points;
    for (size_t i = 0; i < curves.sizes.size(); ++i) {
      absl::StrAppendFormat(&points, "%.1f,%.1f ", axes.X(curves.sizes[i]),
                            axes.Y(curves.recipes[r].rates[i]));
    }
    absl::StrAppendFormat(
        &out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"%s\"/>\n", colour,
        points);
    const double y = kTop + 60 + 18 * static_cast<double>(r);
    line(right + 6, y, right + 24, y, absl::StrFormat("stroke=\"%s\" stroke-width=\"2\"", colour));
    absl::StrAppend(&out, TextAt(right + 28, y + 4, "start", curves.recipes[r].recipe));
  }
  return out +
         TextAt((left + right) / 2, kHeight - 10, "middle", "stored bytes (hit rate of an LRU)") +
         "</svg>\n";
}

}  // namespace kvstow::planner
