#include "kernels/importance/foretold_attention.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/importance/exponential.h"
#include "kernels/importance/vector_sums.h"
#include "kernels/page/convert.h"
#include "kernels/transform/rope.h"
#include "kernels/transform/tile_product.h"

namespace kvstow {
namespace {

constexpr float kLeastLogit = -16;  // below the largest: e^-16 of its weight is nothing

RopeSpec Turning(RopeSpec rope) {
  rope.k_after_rope = true;  // a rotation of K that is stored without would do nothing
  return rope;
}

// K, V and queries of a page's layers, one after the other.
class LayerQueries {
 public:
  LayerQueries(const QueryMaps& maps, const PageToScore& page)
      : maps_(maps),
        page_(page),
        spec_(page.spec),
        rotation_(Turning(page.spec.rope), page.spec.head_dim_k, page.first_position, page.tokens),
        k_(SlabValues(spec_, Part::kK, page.tokens)),
        v_(SlabValues(spec_, Part::kV, page.tokens)) {
    const uint32_t last = page.tokens - 1;
    for (uint32_t t = last % kQueriesEvery; t <= last; t += kQueriesEvery) asking_.push_back(t);
  }

  // Writes the layer's scores, [tokens, kv_heads].
  absl::Status Score(const QueryMap& map, float* out) {
    if (!Load(map.layer, Part::kK, k_) || !Load(map.layer, Part::kV, v_)) {
      return absl::OutOfRangeError(
          absl::StrCat("layer ", map.layer, " holds NaN or Inf: its tokens have no score"));
    }
    Ask(map);
    std::fill_n(out, size_t{page_.tokens} * spec_.kv_heads, 0.0f);
    for (size_t i = 0; i < asking_.size(); ++i) {
      for (uint32_t head = 0; head < maps_.heads; ++head) Attend(i, head, out);
    }
    for (uint32_t h = 0; h < spec_.kv_heads; ++h) Normalize(out + h);
    return absl::OkStatus();
  }

 private:
  bool Load(uint32_t layer, Part part, std::vector<float>& out) const {
    const size_t at = SlabOffset(spec_, layer, part, page_.tokens);
    return LoadFloats(spec_.dtype, page_.raw.data() + at, out.size(), out.data());
  }

  // Makes the queries of the tokens that ask, and turns them and K.
  void Ask(const QueryMap& map) {
    const size_t k = size_t{spec_.kv_heads} * spec_.head_dim_k, width = map.weights.rows();
    const size_t asked = map.constant.size();
    x_.resize(asking_.size() * width);
    for (size_t i = 0; i < asking_.size(); ++i) {
      float* const row = x_.data() + i * width;
      std::copy_n(k_.data() + asking_[i] * k, k, row);
      if (spec_.rope.k_after_rope) rotation_.Undo(asking_[i], 1, spec_.kv_heads, row);
      std::copy_n(v_.data() + asking_[i] * (width - k), width - k, row + k);
    }
    if (!spec_.rope.k_after_rope) rotation_.Redo(spec_.kv_heads, k_.data());
    queries_.resize(asking_.size() * asked);
    MultiplyRowsInTiles(x_.data(), asking_.size(), width, map.weights, {0, asked}, queries_.data(),
                        asked);
    for (size_t i = 0; i < asking_.size(); ++i) {
      float* const query = queries_.data() + i * asked;
      for (size_t j = 0; j < asked; ++j) query[j] += map.constant[j];
      rotation_.Redo(asking_[i], 1, maps_.heads, query);
    }
  }

  // Adds the softmax of one query head over the tokens up to its own.
  void Attend(size_t i, uint32_t head, float* out) {
    const uint32_t heads = spec_.kv_heads, dim = spec_.head_dim_k, count = asking_[i] + 1;
    const uint32_t kv_head = head / (maps_.heads / heads);
    weights_.resize(page_.tokens);
    VectorSums::Best().dot_products(
        {k_.data() + size_t{kv_head} * dim, count, size_t{heads} * dim, dim},
        queries_.data() + (i * maps_.heads + head) * dim, 0, weights_.data());
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
      // The last token asks: every token is seen at least once.
      at(t) /= static_cast<float>((page_.tokens - 1 - t) / kQueriesEvery + 1);
      sum += at(t);
    }
    const auto scale = static_cast<float>(page_.tokens / sum);
    for (uint32_t t = 0; t < page_.tokens; ++t) at(t) *= scale;
  }

  const QueryMaps& maps_;
  const PageToScore& page_;
  const KvSpec& spec_;
  const RopeRotation rotation_;
  std::vector<uint32_t> asking_;  // tokens, ascending
  std::vector<float> k_, v_;      // of a layer: K with RoPE once Ask is through
  std::vector<float> x_, queries_, weights_;
};

}  // namespace

absl::StatusOr<ScoreMap> ForetoldAttention(const QueryMaps& maps, const PageToScore& page) {
  const KvSpec& spec = page.spec;
  ScoreMap map(spec.layers, page.tokens, spec.kv_heads);
  LayerQueries queries(maps, page);
  for (const QueryMap& layer : maps.layers) {
    if (absl::Status scored = queries.Score(layer, map.Layer(layer.layer)); !scored.ok()) {
      return scored;
    }
  }
  size_t behind = 0;  // the first map at or behind the layer
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    while (behind < maps.layers.size() && maps.layers[behind].layer < layer) ++behind;
    const size_t last = maps.layers.size() - 1;
    const uint32_t b = maps.layers[std::min(behind, last)].layer;
    const uint32_t a = behind == 0 || b <= layer ? b : maps.layers[behind - 1].layer;
    if (b == layer) continue;
    const float share = b == a ? 0 : static_cast<float>(layer - a) / static_cast<float>(b - a);
    for (size_t i = 0; i < map.LayerSize(); ++i) {
      map.Layer(layer)[i] = (1 - share) * map.Layer(a)[i] + share * map.Layer(b)[i];
    }
  }
  return map;
}

}  // namespace kvstow
