// KV as models make it, in small: a few latent values a token drive K and V of all layers, K's
// channels have large means, the first token is far out, and K is stored after RoPE.
#ifndef KVSTOW_TESTS_KERNELS_CORRELATED_PAGES_H_
#define KVSTOW_TESTS_KERNELS_CORRELATED_PAGES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "kernels/calibration/calibration_fit.h"
#include "kernels/codec/calibrate.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/methods/joint_fit.h"
#include "kernels/methods/joint_vectors.h"
#include "tests/kernels/pages.h"

namespace kvstow::testing {

inline KvSpec CorrelatedSpec(uint32_t layers = 3, uint32_t dim_k = 16, uint32_t dim_v = 8) {
  KvSpec spec = SpecOf(DType::kF16, layers, 2, dim_k, dim_v, 128);
  spec.rope.layout = RopeSpec::Layout::kHalf;
  return spec;
}

// Another `seed` is another text of the same model. At least one token. `mean_size` is the spread
// of the channels' means, before RoPE; that of what varies is near 1.
inline std::vector<uint8_t> CorrelatedPage(const KvSpec& spec, uint32_t tokens, uint64_t seed,
                                           uint64_t first_position = 0, float mean_size = 3) {
  constexpr size_t kLatents = 6;
  const JointVectors vectors(spec, {{0, spec.layers}, tokens, first_position});
  Gaussian model(77), text(1000 + seed);
  std::vector<float> loadings(vectors.width() * kLatents), means(vectors.width());
  for (float& x : loadings) x = model();
  for (float& x : means) x = mean_size * model();
  std::vector<float> x(tokens * vectors.width());
  for (uint32_t t = 0; t < tokens; ++t) {
    const float size = first_position + t == 0 ? 20 : 1;
    float latents[kLatents];
    for (size_t i = 0; i < kLatents; ++i) {
      latents[i] = size * text() * std::exp2(-static_cast<float>(i));
    }
    for (size_t j = 0; j < vectors.width(); ++j) {
      float sum = means[j] + 0.01f * text();
      for (size_t i = 0; i < kLatents; ++i) sum += loadings[j * kLatents + i] * latents[i];
      x[t * vectors.width() + j] = sum;
    }
  }
  std::vector<uint8_t> raw(PageBytes(spec, tokens));
  vectors.Scatter(x.data(), {0, tokens}, raw);
  return raw;
}

// How much a model feels errors of these tokens: a token more, the larger its first value of K.
inline std::vector<float> CorrelatedSensitivity(const KvSpec& spec, uint32_t tokens, uint64_t seed,
                                                uint64_t first_position = 0) {
  const JointVectors vectors(spec, {{0, spec.layers}, tokens, first_position});
  std::vector<float> x(tokens * vectors.width()), out;
  vectors.Gather(CorrelatedPage(spec, tokens, seed, first_position), {0, tokens}, x.data());
  for (uint32_t t = 0; t < tokens; ++t) {
    out.insert(out.end(), spec.layers,
               std::exp(std::clamp(2 * x[t * vectors.width()], -40.0f, 40.0f)));
  }
  return out;
}

inline absl::StatusOr<std::string> FitCorrelated(const KvSpec& spec, uint32_t layers_per_run,
                                                 ModelStats stats = {},
                                                 bool with_sensitivity = false,
                                                 float mean_size = 3) {
  for (uint64_t page = 0; with_sensitivity && page < 16; ++page) {
    const auto more = CorrelatedSensitivity(spec, 128, page, page % 2 * 128);
    stats.sensitivity.insert(stats.sensitivity.end(), more.begin(), more.end());
  }
  KVSTOW_ASSIGN_OR_RETURN(auto fit, StartJointFit(spec, {.layers_per_run = layers_per_run}, stats));
  for (int pass = 0; pass < fit->passes(); ++pass) {
    for (uint64_t text = 0; text < 8; ++text) {
      for (uint64_t first = 0; first < 256; first += 128) {
        const auto raw = CorrelatedPage(spec, 128, 2 * text + first / 128, first, mean_size);
        KVSTOW_RETURN_IF_ERROR(fit->Add({.raw = raw, .tokens = 128, .first_position = first}));
      }
    }
    KVSTOW_RETURN_IF_ERROR(fit->EndPass());
  }
  return fit->Finish();
}

// Statistics of a model that feels all errors and all tokens alike: fits by them foretell nothing.
inline ModelStats AlikeStats(const KvSpec& spec) {
  ModelStats stats;
  const size_t heads = size_t{spec.layers} * spec.kv_heads;
  const auto identities = [heads](size_t dim) {
    std::vector<float> out(heads * dim * dim);
    for (size_t i = 0; i < heads * dim; ++i) out[i * dim + i % dim] = 1;
    return out;
  };
  stats.metric_k = identities(spec.head_dim_k);
  stats.metric_v = identities(spec.head_dim_v);
  stats.gain_k = stats.gain_v = std::vector<float>(heads, 0.1f);
  return stats;
}

// Makes the calibration that the recipe asks for, from six texts.
inline absl::StatusOr<std::string> FitRecipe(absl::string_view recipe, const KvSpec& spec,
                                             const ModelStats& stats = {}) {
  KVSTOW_ASSIGN_OR_RETURN(const Recipe parsed, ParseRecipe(recipe));
  KVSTOW_ASSIGN_OR_RETURN(const auto fit, StartCalibration(parsed, spec, stats));
  for (int pass = 0; pass < fit->passes(); ++pass) {
    for (uint64_t text = 0; text < 6; ++text) {
      const auto raw = CorrelatedPage(spec, 128, text);
      KVSTOW_RETURN_IF_ERROR(fit->Add({.raw = raw, .tokens = 128, .first_position = 0}));
    }
    KVSTOW_RETURN_IF_ERROR(fit->EndPass());
  }
  return fit->Finish();
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_KERNELS_CORRELATED_PAGES_H_
