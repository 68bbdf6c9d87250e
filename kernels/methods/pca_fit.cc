#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/calibration/calibration_basis.h"
#include "kernels/calibration/calibration_moments.h"
#include "kernels/calibration/fit_passes.h"
#include "kernels/methods/calibration_sample.h"
#include "kernels/methods/joint_vectors.h"
#include "kernels/methods/pca_run_codec.h"
#include "kernels/page/page_to_encode.h"
#include "kernels/transform/dense_product.h"

namespace kvstow {
namespace {

constexpr int kPasses = 2;
constexpr float kBits[] = {2, 1, 0.5};
// The paper keeps 8 to 10 thousand of 32,768 components.
constexpr double kKeptShare = 0.25;
constexpr size_t kSampleTokens = 192;  // that plans are measured on

// K or V of one run through the passes.
class PartFit {
 public:
  PartFit(size_t column, size_t width)
      : column_(column), first_(width), sample_(width, kSampleTokens) {}

  // `x` are vectors of the run, of which this part has some columns.
  void Add(int pass, const float* x, size_t tokens, size_t stride) {
    const size_t width = sample_.width();
    std::vector<float> own(tokens * width);
    for (size_t t = 0; t < tokens; ++t) {
      std::copy_n(x + t * stride + column_, width, own.data() + t * width);
    }
    if (pass == 0) {
      first_.Add(own.data(), tokens);
      return;
    }
    for (size_t i = 0; i < own.size(); ++i) own[i] -= data_.mean[i % width];
    second_->Add(own.data(), tokens);
    sample_.Add(own.data(), tokens);
  }

  void EndFirst() {
    data_.mean = first_.Mean();
    second_.emplace(sample_.width());
  }

  PcaPartData Take(const std::vector<float>& bits) && {
    const size_t width = sample_.width();
    const auto kept = static_cast<size_t>(std::ceil(kKeptShare * static_cast<double>(width)));
    const std::vector<float> basis = PrincipalComponents(std::move(*second_).Take(), width, kept);
    PackedMatrix encode(width, kept);
    for (size_t i = 0; i < kept; ++i) {
      encode.SetColumn(i, std::span(basis).subspan(i * width, width));
    }
    std::vector<float> c(sample_.tokens() * kept);
    MultiplyRows(sample_.row(0), sample_.tokens(), encode, {0, kept}, c.data(), kept);
    size_t rank = 1;
    for (const float b : bits) {
      const auto budget = static_cast<uint64_t>(static_cast<double>(width) * b);
      data_.plans.push_back(MakeComponentPlan(c, kept, budget));
      rank = std::max(rank, PlannedComponents(data_.plans.back()));
    }
    HalveRows(std::span(basis).first(rank * width), width, data_.scales, data_.halves);
    return std::move(data_);
  }

 private:
  const size_t column_;
  FirstMoments first_;
  std::optional<SecondMoments> second_;
  TokenSample sample_;
  PcaPartData data_;
};

class PcaFit final : public CalibrationFit {
 public:
  PcaFit(const KvSpec& spec, const CalibrationShape& shape, std::vector<float> bits)
      : spec_(spec), shape_(shape), bits_(std::move(bits)) {
    for (uint32_t run = 0; run < shape_.runs(); ++run) {
      const size_t layers = shape_.LayersOfRun(run);
      const size_t k = layers * SlabValues(spec_, Part::kK, 1);
      const size_t v = layers * SlabValues(spec_, Part::kV, 1);
      std::vector<PartFit>& parts = runs_.emplace_back();
      parts.emplace_back(0, k);
      if (v > 0) parts.emplace_back(k, v);
    }
  }

  int passes() const override { return passes_.count(); }

  absl::Status Add(const PageToEncode& page) override {
    KVSTOW_RETURN_IF_ERROR(passes_.CheckOpen());
    for (uint32_t run = 0; run < shape_.runs(); ++run) {
      const LayerRange layers{run * shape_.layers_per_run, shape_.LayersOfRun(run)};
      KVSTOW_RETURN_IF_ERROR(GatherToCalibrate(spec_, layers, page, vectors_));
      const size_t stride = shape_.WidthOfRun(run), tokens = vectors_.size() / stride;
      for (PartFit& part : runs_[run]) part.Add(passes_.now(), vectors_.data(), tokens, stride);
      if (run == 0) passes_.Add(tokens);
    }
    return absl::OkStatus();
  }

  absl::Status EndPass() override {
    KVSTOW_RETURN_IF_ERROR(passes_.CheckWhole());
    for (std::vector<PartFit>& run : runs_) {
      for (PartFit& part : run) {
        if (passes_.now() == 0) part.EndFirst();
      }
    }
    passes_.EndPass();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Finish() override {
    KVSTOW_RETURN_IF_ERROR(passes_.Finish());
    PcaData data{.bits = bits_};
    for (std::vector<PartFit>& run : runs_) {
      for (PartFit& part : run) data.parts.push_back(std::move(part).Take(bits_));
    }
    const CalibrationSection section{"pca", SerializePca(data)};
    return SerializeCalibration(shape_, {&section, 1});
  }

 private:
  const KvSpec spec_;
  const CalibrationShape shape_;
  const std::vector<float> bits_;
  FitPasses passes_{kPasses};
  std::vector<std::vector<PartFit>> runs_;
  std::vector<float> vectors_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CalibrationFit>> StartPcaFit(const KvSpec& spec,
                                                            const OpArguments& arguments,
                                                            const ModelStats& stats) {
  KVSTOW_ASSIGN_OR_RETURN(const double asked, ReadPcaBits(arguments));
  KVSTOW_ASSIGN_OR_RETURN(const CalibrationNeed need, ReadCalibrationNeed(arguments));
  KVSTOW_RETURN_IF_ERROR(CheckFit(spec, stats));
  const CalibrationShape shape = ShapeFor(spec, need.layers_per_run);
  if (shape.WidthOfRun(0) > kMaxCalibrationWidth) {
    return absl::InvalidArgumentError(absl::StrCat("runs of ", shape.layers_per_run,
                                                   " layers: use fewer, a token of a run may ",
                                                   "have ", kMaxCalibrationWidth, " values"));
  }
  std::vector<float> bits(std::begin(kBits), std::end(kBits));
  if (std::find(bits.begin(), bits.end(), static_cast<float>(asked)) == bits.end()) {
    bits.push_back(static_cast<float>(asked));
  }
  return std::make_unique<PcaFit>(spec, shape, std::move(bits));
}

}  // namespace kvstow
