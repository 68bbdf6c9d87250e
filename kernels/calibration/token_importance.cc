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

float LogStepFor(float log_sensitivity, float focus) {
  // Error power goes with the square of the step.
  return -focus * log_sensitivity / std::log(2.0f) / 2;
}

float ForetoldLogStep(const ImportanceModel& model, std::span<const float> coefficients,
                      std::span<const float> sigma, float focus, float of_token) {
  if (model.weights.empty() || focus == 0) return 0;
  std::vector<float> features(model.weights.size());
  ImportanceFeatures(coefficients, sigma, features);
  float log_sensitivity = of_token;
  for (size_t i = 0; i < features.size(); ++i) log_sensitivity += model.weights[i] * features[i];
  return LogStepFor(log_sensitivity, focus);
}

uint8_t StepClass(float log_step) {
  const float k = std::round(2 * log_step) + kPlainStepClass;  // two classes are an octave
  if (std::isnan(k)) return kPlainStepClass;
  return static_cast<uint8_t>(std::clamp(k, 0.0f, kStepClasses - 1.0f));
}

float StepFactor(uint8_t step_class) {
  return std::exp2(static_cast<float>(step_class - kPlainStepClass) / 2);
}

ImportanceFit::ImportanceFit(size_t rank, size_t token_features)
    : rank_(rank),
      token_features_(token_features),
      size_(token_features + ImportanceWeights(rank)),
      moments_(size_ + 1) {}

void ImportanceFit::Add(const float* coefficients, std::span<const float> sigma,
                        std::span<const float> sensitivity, const float* token_features,
                        size_t stride) {
  double sum = 0;
  size_t known = 0;
  for (const float s : sensitivity) {
    if (s > 0) sum += std::log(s), ++known;
  }
  std::vector<float> rows(known * (size_ + 1));
  float* row = rows.data();
  for (size_t t = 0; t < sensitivity.size(); ++t) {
    if (!(sensitivity[t] > 0)) continue;
    std::copy_n(token_features + t * stride, token_features_, row);
    ImportanceFeatures({coefficients + t * rank_, rank_}, sigma,
                       {row + token_features_, size_ - token_features_});
    row[size_] = static_cast<float>(std::log(sensitivity[t]) - sum / static_cast<double>(known));
    row += size_ + 1;
  }
  moments_.Add(rows.data(), known);
}

ImportanceModel ImportanceFit::Finish() {
  if (moments_.count() < size_) return {};
  const std::vector<double> moments = std::move(moments_).Take();
  std::vector<double> products(size_ * size_), target(size_);
  for (size_t i = 0; i < size_; ++i) {
    std::copy_n(moments.begin() + static_cast<ptrdiff_t>(i * (size_ + 1)), size_,
                products.begin() + static_cast<ptrdiff_t>(i * size_));
    target[i] = moments[i * (size_ + 1) + size_];
    if (i + 1 < size_) products[i * size_ + i] *= 1 + kRidge;  // the mean is free
  }
  const std::vector<double> weights = SolveSymmetric(products, target);
  const auto own = weights.begin() + static_cast<ptrdiff_t>(token_features_);
  return {.weights = {own, weights.end()}, .token_weights = {weights.begin(), own}};
}

}  // namespace kvstow
