#include "kernels/codec/rate_codec.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/codec/ops.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {
namespace {

constexpr double kStepUnit = 1e-5;  // steps are multiples of it

struct RateRow {
  Rate rate;
  absl::string_view name;
  double least, most;
  double tolerance;  // relative to the target
  double slope;      // about: of its logarithm by that of the step
};
constexpr RateRow kRates[] = {
    {Rate::kRatio, "ratio", 1, 1000, kRatioTolerance, 0.5},
    {Rate::kError, "error", 1e-6, 0.9, kErrorTolerance, 1.2},
    {Rate::kDivergence, "divergence", 1e-4, 1, kDivergenceTolerance, 1.7},
};

const RateRow& RowOf(Rate rate) { return *std::ranges::find(kRates, rate, &RateRow::rate); }

// A stand-in for log2: the exponent and, linear in between, the mantissa. Unlike the library's it
// is the same on every machine, and a search needs no more.
double RoughLog2(double x) {
  int exponent;
  const double mantissa = std::frexp(x, &exponent);  // 0.5 and above, below 1
  return exponent + 2 * mantissa;
}
double RoughExp2(double y) {
  const double whole = std::floor(y);
  return std::ldexp((y - whole + 1) / 2, static_cast<int>(whole) - 1);
}

// Looks for the x at which a rising function is 0.
class Search {
 public:
  Search(double least, double most, double start, double slope)
      : least_(least), most_(most), slope_(slope), next_(start) {}
  double next() const { return next_; }
  // Takes the value of the function at next(). Returns false when no place is left to look at.
  bool Tell(double value) {
    const double at = next_;
    if (count_ > 0 && at != last_x_ && (value - last_value_) / (at - last_x_) > slope_ / 8)
      slope_ = (value - last_value_) / (at - last_x_);
    (value < 0 ? least_ : most_) = at;
    last_x_ = at;
    last_value_ = value;
    ++count_;
    next_ = at - value / slope_;
    // A line that leaves the bracket says little: its middle, or its end while that is untried.
    if (next_ <= least_ || next_ >= most_) {
      const bool tried = value < 0 ? most_tried_ : least_tried_;
      next_ = tried ? (least_ + most_) / 2 : (value < 0 ? most_ : least_);
    }
    (value < 0 ? least_tried_ : most_tried_) = true;
    return next_ != at && least_ < most_;
  }

 private:
  double least_, most_, slope_, next_;
  double last_x_ = 0, last_value_ = 0;
  bool least_tried_ = false, most_tried_ = false;
  int count_ = 0;
};

class RateCodec final : public Codec {
 public:
  RateCodec(Recipe recipe, RateTarget target, StepRange steps, std::shared_ptr<const Codec> usual,
            MakeSteppedCodec make, PredictDivergence predict)
      : recipe_(std::move(recipe)),
        target_(target),
        steps_(steps),
        usual_(std::move(usual)),
        make_(std::move(make)),
        predict_(std::move(predict)) {}

  const Recipe& recipe() const override { return recipe_; }
  const KvSpec& spec() const override { return usual_->spec(); }
  bool exact() const override { return usual_->exact(); }
  uint32_t levels() const override { return usual_->levels(); }

  absl::StatusOr<EncodedPage> Encode(const PageToEncode& page) const override {
    PageToEncode trial = page;
    const RateRow& row = RowOf(target_.rate);
    // Sizes fall as steps grow; the search is for what rises: the ratio, the error, the divergence.
    Search search(RoughLog2(steps_.least), RoughLog2(steps_.most), RoughLog2(steps_.usual),
                  row.slope);
    EncodedPage best;
    double closest = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kMostTrials; ++i) {
      KVSTOW_ASSIGN_OR_RETURN(const Recipe stepped,
                              WithStep(recipe_, target_, RoughExp2(search.next())));
      KVSTOW_ASSIGN_OR_RETURN(const auto codec, make_(stepped));
      KVSTOW_ASSIGN_OR_RETURN(EncodedPage encoded, codec->Encode(trial));
      if (encoded.header.fell_back) return encoded;
      trial.raw_digest = encoded.header.raw_digest;
      KVSTOW_ASSIGN_OR_RETURN(double reached, Reached(page, encoded));
      if (std::isnan(reached)) reached = std::numeric_limits<double>::infinity();
      const double distance = std::abs(reached / target_.value - 1);
      if (i == 0 || distance < closest) {
        closest = distance;
        best = std::move(encoded);
      }
      if (distance <= row.tolerance) break;
      // A prediction beyond all numbers asks for finer steps.
      const double logarithm = std::isinf(reached) ? 64 : reached > 0 ? RoughLog2(reached) : -64;
      if (!search.Tell(logarithm - RoughLog2(target_.value))) break;
    }
    return best;
  }

 private:
  absl::StatusOr<double> Reached(const PageToEncode& page, const EncodedPage& encoded) const {
    if (target_.rate == Rate::kDivergence) return predict_(page, encoded);
    return target_.rate == Rate::kError ? ErrorOf(encoded) : RatioOf(encoded, page);
  }
  static double RatioOf(const EncodedPage& encoded, const PageToEncode& page) {
    return static_cast<double>(page.raw.size()) / static_cast<double>(encoded.StoredBytes());
  }
  static double ErrorOf(const EncodedPage& encoded) {
    const PageHeader& header = encoded.header;
    const double slabs = header.layers * (header.head_dim_v > 0 ? 2.0 : 1.0);
    double removed = 0;
    for (const SegmentInfo& s : header.segments) removed += s.gain;
    return 1 - removed / (header.tokens * slabs);
  }

  const Recipe recipe_;
  const RateTarget target_;
  const StepRange steps_;
  const std::shared_ptr<const Codec> usual_;  // of the usual step
  const MakeSteppedCodec make_;
  const PredictDivergence predict_;
};

}  // namespace

bool IsRateTarget(absl::string_view name) {
  return std::ranges::find(kRates, name, &RateRow::name) != std::end(kRates);
}

absl::StatusOr<std::optional<RateTarget>> RateTargetOf(const Recipe& recipe) {
  for (size_t i = 0; i < recipe.ops().size(); ++i) {
    const OpArguments arguments(recipe.ops()[i]);
    const OpInfo* const info = FindOp(arguments.op().name);
    if (info == nullptr || info->steps.most == 0) continue;
    for (const RateRow& row : kRates) {  // ParseRecipe lets one of them stand
      KVSTOW_ASSIGN_OR_RETURN(const double value, arguments.Real(row.name, 0, row.least, row.most));
      if (value > 0) return std::optional<RateTarget>({.op = i, .rate = row.rate, .value = value});
    }
  }
  return std::optional<RateTarget>();
}

absl::StatusOr<Recipe> WithStep(const Recipe& recipe, const RateTarget& target, double step) {
  const StepRange& steps = FindOp(recipe.ops()[target.op].name)->steps;
  const auto units = static_cast<uint64_t>(std::clamp(std::floor(step / kStepUnit + 0.5),
                                                      std::ceil(steps.least / kStepUnit - 0.5),
                                                      std::floor(steps.most / kStepUnit + 0.5)));
  std::vector<Op> ops(recipe.ops().begin(), recipe.ops().end());
  for (OpArgument& argument : ops[target.op].arguments) {
    if (!IsRateTarget(argument.name)) continue;
    argument.name = "step";
    argument.value = absl::StrFormat("%d.%05d", units / 100'000, units % 100'000);
  }
  return Recipe(std::move(ops));
}

absl::StatusOr<Recipe> WithTarget(const Recipe& recipe, absl::string_view name, double value) {
  std::vector<Op> ops(recipe.ops().begin(), recipe.ops().end());
  for (Op& op : ops) {
    const OpInfo* const info = FindOp(op.name);
    if (info == nullptr || info->steps.most == 0) continue;
    std::erase_if(op.arguments,
                  [](const OpArgument& a) { return a.name == "step" || IsRateTarget(a.name); });
    op.arguments.push_back({std::string(name), absl::StrFormat("%.6f", value)});
    Recipe out(std::move(ops));
    KVSTOW_RETURN_IF_ERROR(RateTargetOf(out).status());
    return out;
  }
  return absl::InvalidArgumentError(absl::StrCat("recipe '", recipe.text(),
                                                 "' has no step that could follow a target ", name,
                                                 ": kvstow and kvstow-cal have"));
}

absl::StatusOr<std::shared_ptr<const Codec>> MakeRateCodec(const Recipe& recipe,
                                                           const RateTarget& target,
                                                           MakeSteppedCodec make,
                                                           PredictDivergence predict) {
  const StepRange& steps = FindOp(recipe.ops()[target.op].name)->steps;
  KVSTOW_ASSIGN_OR_RETURN(const Recipe usual, WithStep(recipe, target, steps.usual));
  KVSTOW_ASSIGN_OR_RETURN(auto codec, make(usual));
  // The step that is longest as text must fit a page's header, too.
  KVSTOW_ASSIGN_OR_RETURN(const Recipe coarsest, WithStep(recipe, target, steps.most));
  KVSTOW_RETURN_IF_ERROR(make(coarsest).status());
  return std::make_shared<RateCodec>(recipe, target, steps, std::move(codec), std::move(make),
                                     std::move(predict));
}

}  // namespace kvstow
