// Predicts what lossy pages cost a model that reads them, from the pages and their decoded forms
// alone: the KL divergence of the distribution of next tokens, in nats.
//
//   D = mean over tokens of w * s / (mean of s over the page) * the sum over channels of cost * e^2
//
// w is how much a token near the end of its page counts (calibration/page_end.h). An error e is a
// difference of a channel, K before RoPE, without the first tokens of a text. What it costs is a
// guess from the variances that these pages have (calibration/cost_prior.h). How much the model
// feels a token in the layer, s, is a guess from its keys (calibration/key_slopes.h). D of all
// pages is then .01 (D / .01)^1.27: errors add up faster than their squares
// (docs/decisions/0091-power-of-the-divergence.md). The power is 1.1 for models that norm their
// keys (ModelStats::normed_keys).
//
// Where the model's statistics are known (ModelStats), these say what an error e costs:
//
//   D = mean over tokens of w * the sum over layers, KV heads, K and V of s gain^2 e' metric e / d
//
// s is what the token feels more than others in the layer (token_slopes.h). It is 1 where the
// statistics have no slopes. Where they foretell the model's entropy (ModelStats::entropy), D of a
// page is times the square root of that, the mean over its tokens, within .1 and 8: a model that is
// sure of what comes next stays so (docs/decisions/0090-entropy-of-a-text.md). Where they have a
// power (ModelStats::power), D of all pages is .01 (D / .01)^power.
//
// Measured on SmolLM2-135M (docs/CODECS.md, "Predicted divergence"): without statistics the mean
// over texts of prose and code is right within a third for codecs of this project, int4 and
// TurboQuant. One text may be off by a factor, as nothing tells how sure the model is of the text.
// The constants are those of one model, and of another one for normed keys. So it ranks codecs on
// the same pages, and gives a scale.
//
// Pages add up, and means are those of all pages. Not thread-safe.
#ifndef KVSTOW_KERNELS_METHODS_DIVERGENCE_METER_H_
#define KVSTOW_KERNELS_METHODS_DIVERGENCE_METER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/calibration/calibration_moments.h"
#include "kernels/calibration/model_stats.h"
#include "kernels/calibration/token_slopes.h"
#include "kernels/page/page.h"
#include "kernels/page/page_to_encode.h"
#include "kernels/transform/dense_product.h"

namespace kvstow {

class DivergenceMeter {
 public:
  // `stats` are of the spec (CheckModelStats), or empty.
  explicit DivergenceMeter(const KvSpec& spec, const ModelStats& stats = {});

  // `decoded` is a raw page of the same tokens. INVALID_ARGUMENT: it does not fit the spec, or one
  // of them holds NaN or Inf.
  absl::Status Add(const PageToEncode& page, std::span<const uint8_t> decoded);
  // Returns the prediction; 0 before there is a page.
  double Divergence() const;

 private:
  // Columns of a layer's vectors that are one head of K or V.
  struct Head {
    size_t first = 0, size = 0;
    PackedMatrix metric;  // gain^2 times the metric, over d
  };
  // Returns how much more errors of each token of a layer cost than those of others: by its place
  // in the page, and by the layer's vectors. They are in came_.
  std::vector<float> Felt(uint32_t layer, size_t tokens) const;
  // Returns the second, without statistics. The layer is in its moments, too.
  std::vector<float> GuessFelt(uint32_t layer, size_t tokens) const;
  // Returns what the errors of a layer cost. They are in came_ and left_.
  double CostOf(uint32_t layer, size_t tokens);
  // Returns how much more errors of a page cost than those of others. came_ has its last layer.
  double EntropyFactor(size_t tokens) const;
  const KvSpec spec_;
  const size_t width_;  // of a layer's vectors: the columns of K, then those of V
  uint64_t tokens_ = 0;
  // Without statistics: of each layer, and of its columns the sums of squared errors.
  std::vector<FirstMoments> moments_;
  std::vector<double> errors_of_columns_;
  std::vector<float> came_, left_;         // vectors of a layer
  const std::vector<double> end_weights_;  // EndWeights
  bool normed_keys_ = false;               // ModelStats::normed_keys
  // With statistics: the heads of each layer, those of K first, and the sum over tokens.
  std::vector<Head> heads_;
  std::vector<TokenSlopes> slopes_;  // of each layer
  std::vector<float> entropy_;       // ModelStats::entropy
  double power_ = 1;                 // of the divergence by what errors cost
  double cost_ = 0;
  std::vector<float> errors_, products_;  // of a head
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_DIVERGENCE_METER_H_
