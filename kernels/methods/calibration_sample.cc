#include "kernels/methods/calibration_sample.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "kernels/calibration/fit_passes.h"
#include "kernels/methods/joint_vectors.h"
#include "kernels/page/page_to_encode.h"

namespace kvstow {
namespace {

constexpr size_t kLeastSample = 1024;

class SampledFit final : public CalibrationFit {
 public:
  SampledFit(const KvSpec& spec, const CalibrationShape& shape, std::string section, FitSection fit)
      : spec_(spec),
        shape_(shape),
        section_(std::move(section)),
        fit_(std::move(fit)),
        sample_(SlabValues(spec, Part::kK, 1) * spec.layers +
                SlabValues(spec, Part::kV, 1) * spec.layers) {}

  int passes() const override { return passes_.count(); }

  absl::Status Add(const PageToEncode& page) override {
    KVSTOW_RETURN_IF_ERROR(passes_.CheckOpen());
    KVSTOW_RETURN_IF_ERROR(GatherToCalibrate(spec_, {0, spec_.layers}, page, vectors_));
    const size_t tokens = vectors_.size() / sample_.width();
    sample_.Add(vectors_.data(), tokens);
    passes_.Add(tokens);
    return absl::OkStatus();
  }

  absl::Status EndPass() override {
    KVSTOW_RETURN_IF_ERROR(passes_.CheckWhole());
    passes_.EndPass();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Finish() override {
    KVSTOW_RETURN_IF_ERROR(passes_.Finish());
    KVSTOW_ASSIGN_OR_RETURN(std::string body, fit_(sample_));
    const CalibrationSection section{section_, std::move(body)};
    return SerializeCalibration(shape_, {&section, 1});
  }

 private:
  const KvSpec spec_;
  const CalibrationShape shape_;
  const std::string section_;
  const FitSection fit_;
  TokenSample sample_;
  FitPasses passes_{1};
  std::vector<float> vectors_;
};

}  // namespace

TokenSample::TokenSample(size_t width, size_t max_tokens)
    : width_(width),
      max_tokens_(max_tokens > 0 ? max_tokens
                                 : std::max(kSampleBytes / (width * sizeof(float)), kLeastSample)) {
}

void TokenSample::Add(const float* x, size_t count) {
  for (size_t t = 0; t < count; ++t, ++seen_, x += width_) {
    if (seen_ % every_ != 0) continue;
    if (tokens() == max_tokens_) {
      const size_t kept = (max_tokens_ + 1) / 2;
      for (size_t i = 1; i < kept; ++i) {
        std::copy_n(row(2 * i), width_, rows_.data() + i * width_);
      }
      rows_.resize(kept * width_);
      every_ *= 2;
      if (seen_ % every_ != 0) continue;
    }
    rows_.insert(rows_.end(), x, x + width_);
  }
}

std::vector<float> TokenSample::Columns(size_t first, size_t count) const {
  std::vector<float> out(tokens() * count);
  for (size_t t = 0; t < tokens(); ++t) {
    std::copy_n(row(t) + first, count, out.data() + t * count);
  }
  return out;
}

absl::StatusOr<std::unique_ptr<CalibrationFit>> MakeSampledFit(const KvSpec& spec,
                                                               const ModelStats& stats,
                                                               uint32_t layers_per_run,
                                                               std::string section,
                                                               FitSection fit) {
  KVSTOW_RETURN_IF_ERROR(CheckFit(spec, stats));
  return std::make_unique<SampledFit>(spec, ShapeFor(spec, layers_per_run), std::move(section),
                                      std::move(fit));
}

}  // namespace kvstow
