#include "kernels/importance/foretold_attention.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/importance/exponential.h"
#include "kernels/importance/vector_sums.h"
#include "kernels/page/convert.h"
#include "kernels/transform/rope.h"

namespace kvstow {
namespace {

KvSpec Turning(KvSpec spec) {
  // A rotation of K that is stored without would do nothing.
  spec.rope.k_after_rope = spec.other_rope.rope.k_after_rope = true;
  return spec;
}

// K and the queries of a page's layers, one after the other.
class LayerQueries {
 public:
  LayerQueries(const QueryMeans& means, const PageToScore& page)
      : means_(means),
        page_(page),
        spec_(page.spec),
        rotations_(Turning(page.spec), {0, page.spec.layers}, page.first_position, page.tokens),
        k_(SlabValues(spec_, Part::kK, page.tokens)) {
    for (uint32_t i = 0; i < AskingTokens(page.tokens); ++i)
      asking_.push_back(AskingToken(page.tokens, i));
  }

  // Writes the layer's scores, [tokens, kv_heads].
  absl::Status Score(const QueryMeans::Layer& layer, float* out) {
    const size_t at = SlabOffset(spec_, layer.layer, Part::kK, page_.tokens);
    if (!LoadFloats(spec_.dtype, page_.raw.data() + at, k_.size(), k_.data())) {
      return absl::OutOfRangeError(
          absl::StrCat("layer ", layer.layer, " holds NaN or Inf: its tokens have no score"));
    }
    const RopeRotation& rotation = rotations_.Of(layer.layer);
    if (!spec_.rope.k_after_rope) rotation.Redo(spec_.kv_heads, k_.data());
    std::fill_n(out, size_t{page_.tokens} * spec_.kv_heads, 0.0f);
    for (const uint32_t token : asking_) {
      query_ = layer.means;
      rotation.Redo(token, 1, means_.heads, query_.data());
      for (uint32_t head = 0; head < means_.heads; ++head) Attend(token, head, out);
    }
    for (uint32_t h = 0; h < spec_.kv_heads; ++h) Normalize(out + h);
    return absl::OkStatus();
  }

 private:
  // Adds the softmax of one query head of a token over the tokens up to that.
  void Attend(uint32_t token, uint32_t head, float* out) {
    const uint32_t heads = spec_.kv_heads, dim = spec_.head_dim_k, count = token + 1;
    const uint32_t kv_head = head / (means_.heads / heads);
    weights_.resize(page_.tokens);
    VectorSums::Best().dot_products(
        {k_.data() + size_t{kv_head} * dim, count, size_t{heads} * dim, dim},
        query_.data() + size_t{head} * dim, 0, weights_.data());
    const float largest = *std::max_element(weights_.begin(), weights_.begin() + count);
    double sum = 0;
    for (uint32_t t = 0; t < count; ++t) {
      const float below = weights_[t] - largest;
      weights_[t] = below > kLeastLogit ? FixedExp(below) : 0;
      sum += weights_[t];
    }
    const auto scale = static_cast<float>(1 / sum);
    for (uint32_t t = 0; t < count; ++t) out[t * heads + kv_head] += weights_[t] * scale;
  }

  // Turns the sums of a KV head into means over the queries that see each token, over their mean.
  void Normalize(float* out) const {
    double sum = 0;
    const auto at = [&](uint32_t t) -> float& { return out[size_t{t} * spec_.kv_heads]; };
    for (uint32_t t = 0; t < page_.tokens; ++t) {
      at(t) /= static_cast<float>(AskingThatSee(page_.tokens, t));
      sum += at(t);
    }
    const auto scale = static_cast<float>(page_.tokens / sum);
    for (uint32_t t = 0; t < page_.tokens; ++t) at(t) *= scale;
  }

  const QueryMeans& means_;
  const PageToScore& page_;
  const KvSpec& spec_;
  const LayerRotations rotations_;
  std::vector<uint32_t> asking_;  // tokens, ascending
  std::vector<float> k_;          // of a layer, with RoPE
  std::vector<float> query_;      // of a token, all heads, with RoPE
  std::vector<float> weights_;
};

}  // namespace

absl::StatusOr<ScoreMap> ForetoldAttention(const QueryMeans& means, const PageToScore& page) {
  const KvSpec& spec = page.spec;
  ScoreMap map(spec.layers, page.tokens, spec.kv_heads);
  LayerQueries queries(means, page);
  for (const QueryMeans::Layer& layer : means.layers) {
    if (absl::Status scored = queries.Score(layer, map.Layer(layer.layer)); !scored.ok()) {
      return scored;
    }
  }
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    const auto [before, behind, share] = LayersWithQueries(means, layer);
    const uint32_t a = means.layers[before].layer, b = means.layers[behind].layer;
    if (b == layer) continue;
    for (size_t i = 0; i < map.LayerSize(); ++i) {
      map.Layer(layer)[i] = (1 - share) * map.Layer(a)[i] + share * map.Layer(b)[i];
    }
  }
  return map;
}

}  // namespace kvstow
