#include "kernels/calibration/token_importance.h"

#include <algorithm>
#include <cmath>

#include "kernels/calibration/calibration_basis.h"

namespace kvstow {
namespace {

constexpr double kRidge = 0.04;  // of a feature's mean square

float LogMeanSquare(std::span<const float> coefficients, std::span<const float> sigma) {
  float sum = 0;
  for (size_t i = 0; i < sigma.size(); ++i) {
    const float u = coefficients[i] / sigma[i];
    sum += u * u;
  }
  return std::log(sum / static_cast<float>(sigma.size()) + 1e-3f);
}

}  // namespace

void ImportanceFeatures(std::span<const float> coefficients, std::span<const float> sigma,
                        std::span<float> features) {
  const size_t n = std::min(sigma.size(), kImportanceFeatures);
  for (size_t i = 0; i < n; ++i) {
    const float u = std::clamp(coefficients[i] / sigma[i], -kImportanceClip, kImportanceClip);
    features[i] = u;
    features[n + i] = u * u - 1;
  }
  features[2 * n] = LogMeanSquare(coefficients, sigma.first(std::max<size_t>(sigma.size() / 4, 1)));
  features[2 * n + 1] = LogMeanSquare(coefficients, sigma);
  features[2 * n + 2] = 1;
}

float ForetoldLogStep(const ImportanceModel& model, std::span<const float> coefficients,
                      std::span<const float> sigma, float focus) {
  if (model.weights.empty() || focus == 0) return 0;
  std::vector<float> features(model.weights.size());
  ImportanceFeatures(coefficients, sigma, features);
  float log_sensitivity = 0;
  for (size_t i = 0; i < features.size(); ++i) log_sensitivity += model.weights[i] * features[i];
  // Error power goes with the square of the step.
  return -focus * log_sensitivity / std::log(2.0f) / 2;
}

uint8_t StepClass(float log_step) {
  const float k = std::round(2 * log_step) + kPlainStepClass;  // two classes are an octave
  if (std::isnan(k)) return kPlainStepClass;
  return static_cast<uint8_t>(std::clamp(k, 0.0f, kStepClasses - 1.0f));
}

float StepFactor(uint8_t step_class) {
  return std::exp2(static_cast<float>(step_class - kPlainStepClass) / 2);
}

ImportanceFit::ImportanceFit(size_t rank)
    : rank_(rank), size_(ImportanceWeights(rank)), products_(size_ * size_), target_(size_) {}

void ImportanceFit::Add(const float* coefficients, std::span<const float> sigma,
                        std::span<const float> sensitivity) {
  double sum = 0;
  size_t known = 0;
  for (const float s : sensitivity) {
    if (s > 0) sum += std::log(s), ++known;
  }
  std::vector<float> features(size_);
  for (size_t t = 0; t < sensitivity.size(); ++t) {
    if (!(sensitivity[t] > 0)) continue;
    const double target = std::log(sensitivity[t]) - sum / static_cast<double>(known);
    ImportanceFeatures({coefficients + t * rank_, rank_}, sigma, features);
    for (size_t i = 0; i < size_; ++i) {
      target_[i] += features[i] * target;
      for (size_t j = 0; j <= i; ++j) products_[i * size_ + j] += double{features[i]} * features[j];
    }
  }
  count_ += known;
}

ImportanceModel ImportanceFit::Finish() const {
  if (count_ < size_) return {};
  std::vector<double> products = products_;
  for (size_t i = 0; i < size_; ++i) {
    for (size_t j = 0; j < i; ++j) products[j * size_ + i] = products[i * size_ + j];
    if (i + 1 < size_) products[i * size_ + i] *= 1 + kRidge;  // the mean is free
  }
  const std::vector<double> weights = SolveSymmetric(products, target_);
  return {{weights.begin(), weights.end()}};
}

}  // namespace kvstow
