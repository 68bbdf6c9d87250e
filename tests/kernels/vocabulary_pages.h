// KV of texts whose tokens matter, in small: each token of a vocabulary has values of its own in K
// and V of all layers, to which a text adds others. V of the first layer has the token's alone.
#ifndef KVSTOW_TESTS_KERNELS_VOCABULARY_PAGES_H_
#define KVSTOW_TESTS_KERNELS_VOCABULARY_PAGES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "kernels/calibration/model_stats.h"
#include "kernels/calibration/vocabulary.h"
#include "kernels/methods/joint_fit.h"
#include "kernels/methods/joint_vectors.h"
#include "tests/kernels/correlated_pages.h"
#include "tests/kernels/pages.h"

namespace kvstow::testing {

inline constexpr uint32_t kVocabularyTokens = 40, kVocabularyFeatures = 5;

// The features of all tokens: [kVocabularyTokens, kVocabularyFeatures].
inline std::vector<float> VocabularyFeatures() {
  Gaussian gaussian(31);
  std::vector<float> out(kVocabularyTokens * kVocabularyFeatures);
  for (float& x : out) x = gaussian();
  return out;
}

inline std::vector<TokenId> VocabularyText(uint32_t tokens, uint64_t seed) {
  std::vector<TokenId> out;
  for (uint32_t t = 0; t < tokens; ++t) {
    out.push_back(static_cast<TokenId>((seed * 1000 + t) * 2654435761u >> 7) % kVocabularyTokens);
  }
  return out;
}

// Values [ids.size(), width of all layers] of the tokens of a text, as JointVectors has them.
inline std::vector<float> VocabularyVectors(const KvSpec& spec, const std::vector<TokenId>& ids,
                                            uint64_t seed) {
  const std::vector<float> features = VocabularyFeatures();
  const size_t k = SlabValues(spec, Part::kK, 1), v = SlabValues(spec, Part::kV, 1);
  const size_t width = spec.layers * (k + v);
  Gaussian model(32), text(2000 + seed);
  std::vector<float> loadings(width * kVocabularyFeatures), out(ids.size() * width);
  for (float& x : loadings) x = model();
  for (size_t t = 0; t < ids.size(); ++t) {
    for (size_t j = 0; j < width; ++j) {
      const bool token_alone = j >= spec.layers * k && j < spec.layers * k + v;
      float sum = token_alone ? 0 : 0.1f * text();
      for (size_t i = 0; i < kVocabularyFeatures; ++i) {
        sum += loadings[j * kVocabularyFeatures + i] * features[ids[t] * kVocabularyFeatures + i];
      }
      out[t * width + j] = sum;
    }
  }
  return out;
}

// Another `seed` is another text of the same model.
inline std::vector<uint8_t> VocabularyPage(const KvSpec& spec, uint32_t tokens, uint64_t seed,
                                           uint64_t first_position = 4) {
  const std::vector<float> x = VocabularyVectors(spec, VocabularyText(tokens, seed), seed);
  std::vector<uint8_t> raw(PageBytes(spec, tokens));
  JointVectors(spec, {{0, spec.layers}, tokens, first_position})
      .Scatter(x.data(), {0, tokens}, raw);
  return raw;
}

// A signature is V of the first layer itself, in part.
inline Vocabulary::Parts VocabularyParts(const KvSpec& spec) {
  const size_t k = SlabValues(spec, Part::kK, 1), v = SlabValues(spec, Part::kV, 1);
  const size_t size = std::min<size_t>(v, 4), width = spec.layers * (k + v);
  std::vector<TokenId> all(kVocabularyTokens);
  for (uint32_t t = 0; t < kVocabularyTokens; ++t) all[t] = t;
  const std::vector<float> x = VocabularyVectors(spec, all, 0);
  Vocabulary::Parts parts{.tokens = kVocabularyTokens,
                          .projection = std::vector<float>(size * v),
                          .signatures = {},
                          .features = VocabularyFeatures()};
  for (size_t i = 0; i < size; ++i) parts.projection[i * v + i] = 1;
  for (uint32_t t = 0; t < kVocabularyTokens; ++t) {
    const float* const of_v = x.data() + t * width + spec.layers * k;
    parts.signatures.insert(parts.signatures.end(), of_v, of_v + size);
  }
  return parts;
}

// How much the model feels a token: the more, the larger its first feature.
inline float VocabularySensitivity(TokenId id) {
  return std::exp(3 * VocabularyFeatures()[id * kVocabularyFeatures]);
}

// Fits to eight texts, with the vocabulary or without.
inline absl::StatusOr<std::string> FitVocabulary(const KvSpec& spec, uint32_t layers_per_run,
                                                 bool with_vocabulary,
                                                 bool with_sensitivity = false) {
  constexpr uint32_t kTexts = 8, kTokens = 128;
  ModelStats stats;
  for (uint32_t text = 0; with_sensitivity && text < kTexts; ++text) {
    for (const TokenId id : VocabularyText(kTokens, text)) {
      stats.sensitivity.insert(stats.sensitivity.end(), spec.layers, VocabularySensitivity(id));
    }
  }
  if (with_vocabulary) {
    KVSTOW_ASSIGN_OR_RETURN(stats.vocabulary,
                            Vocabulary::Make(ShapeFor(spec, 1), VocabularyParts(spec)));
  }
  KVSTOW_ASSIGN_OR_RETURN(auto fit, StartJointFit(spec, {.layers_per_run = layers_per_run}, stats));
  for (int pass = 0; pass < fit->passes(); ++pass) {
    for (uint32_t text = 0; text < kTexts; ++text) {
      const auto raw = VocabularyPage(spec, kTokens, text);
      KVSTOW_RETURN_IF_ERROR(fit->Add({.raw = raw, .tokens = kTokens, .first_position = 4}));
    }
    KVSTOW_RETURN_IF_ERROR(fit->EndPass());
  }
  return fit->Finish();
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_KERNELS_VOCABULARY_PAGES_H_
