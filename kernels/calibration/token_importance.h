// How much the model will feel an error in a token, told from the token's own coefficients.
//
// Attention goes to few tokens: on SmolLM2-135M one in fifty takes three quarters of the cost of
// errors. K and V show which ones (delimiters, first pieces of words, repeated names). So a linear
// model of a token's joint coefficients (joint_run_codec.h) predicts the logarithm of its
// sensitivity: correlation 0.6 with the gradients of the model's log likelihood. The codec gives
// such tokens finer steps: step class k has 2^((k - kPlainStepClass) / 2) times the step.
//
// Features, of coefficients over their sigma: the leading kImportanceFeatures ones, clipped to
// +-kImportanceClip, and their squares less 1; the logarithms of the mean square of the leading
// quarter and of all; and 1. Ridge regression fits the weights (ImportanceFit). Values and free
// functions; thread-safe.
#ifndef KVSTOW_KERNELS_CALIBRATION_TOKEN_IMPORTANCE_H_
#define KVSTOW_KERNELS_CALIBRATION_TOKEN_IMPORTANCE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/calibration/calibration_moments.h"

namespace kvstow {

inline constexpr size_t kImportanceFeatures = 48;
inline constexpr float kImportanceClip = 4;
inline constexpr uint32_t kStepClassBits = 3;
inline constexpr int kStepClasses = 1 << kStepClassBits;
inline constexpr float kDefaultFocus = 0.4f;
inline constexpr int kPlainStepClass = kStepClasses / 2;  // the step as it is

// Weights of the features: 2 n + 3, n the lesser of kImportanceFeatures and the run's rank. Empty =
// not known.
struct ImportanceModel {
  std::vector<float> weights;
  // Weights of the features that a vocabulary gives a token (vocabulary.h); empty without one.
  std::vector<float> token_weights;
};
inline size_t ImportanceWeights(size_t rank) {
  return 2 * (rank < kImportanceFeatures ? rank : kImportanceFeatures) + 3;
}

// Writes the features of one token, ImportanceWeights(sigma.size()) of them.
void ImportanceFeatures(std::span<const float> coefficients, std::span<const float> sigma,
                        std::span<float> features);

// Returns log2 of a token's step over the usual one, by the logarithm of its sensitivity. The error
// of the token goes down with its sensitivity to the power `focus`.
float LogStepFor(float log_sensitivity, float focus);
// Returns the same, by the sensitivity that the model foretells. `of_token` is what features of the
// token add to the logarithm of the sensitivity. Returns 0 when the model is not known.
float ForetoldLogStep(const ImportanceModel& model, std::span<const float> coefficients,
                      std::span<const float> sigma, float focus, float of_token = 0);
// Returns the nearest class; NaN gives the usual step.
uint8_t StepClass(float log_step);
float StepFactor(uint8_t step_class);

// Fits a model to tokens and their sensitivities.
class ImportanceFit {
 public:
  explicit ImportanceFit(size_t rank, size_t token_features = 0);

  // `coefficients` are [sensitivity.size(), rank], of tokens of one text. Sensitivities count
  // relative to their mean logarithm. One that is not positive is not known. `token_features` has a
  // row for each token, its values `stride` apart; null where the fit has none.
  void Add(const float* coefficients, std::span<const float> sigma,
           std::span<const float> sensitivity, const float* token_features = nullptr,
           size_t stride = 0);
  // Returns an empty model when there were fewer tokens than weights. Call it once.
  ImportanceModel Finish();

 private:
  const size_t rank_, token_features_, size_;
  // A row has the token's features, the others (the constant last), and the logarithm.
  SecondMoments moments_;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CALIBRATION_TOKEN_IMPORTANCE_H_
