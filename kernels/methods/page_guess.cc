#include "kernels/methods/page_guess.h"

#include <algorithm>
#include <cstddef>

#include "kernels/calibration/calibration_moments.h"
#include "kernels/calibration/cost_prior.h"
#include "kernels/calibration/key_slopes.h"
#include "kernels/calibration/token_importance.h"
#include "kernels/page/convert.h"
#include "kernels/transform/rope.h"

namespace kvstow {
namespace {

// Tokens that say what a layer feels: so many chunks of consecutive ones.
constexpr uint32_t kFeltChunk = 16, kFeltChunks = 4;
// One of so many layers says which tokens are felt.
constexpr uint32_t kLayersATeller = 3;
// Squared steps go with sensitivity^-kFocus.
constexpr float kFocus = 0.8F;

// The second of every three, and the last layer of one or two.
bool Tells(const KvSpec& spec, uint32_t layer) {
  return layer % kLayersATeller == std::min(1u, spec.layers - 1);
}

// K before RoPE of layers of a page, one after the other.
class PageKeys {
 public:
  PageKeys(const KvSpec& spec, const PageToEncode& page)
      : spec_(spec),
        page_(page),
        rotations_(spec, {0, spec.layers}, page.first_position, page.tokens) {}

  size_t width() const { return SlabValues(spec_, Part::kK, 1); }
  // Reads tokens of a layer, [tokens, width]. Returns null where a value is NaN or Inf.
  const float* Read(uint32_t layer, TokenRange tokens) {
    const size_t row = width() * DTypeBytes(spec_.dtype);
    const size_t at = SlabOffset(spec_, layer, Part::kK, page_.tokens) + tokens.first * row;
    values_.resize(tokens.count * width());
    if (!LoadFloats(spec_.dtype, page_.raw.data() + at, values_.size(), values_.data())) {
      return nullptr;
    }
    rotations_.Of(layer).Undo(tokens.first, tokens.count, spec_.kv_heads, values_.data());
    return values_.data();
  }

 private:
  const KvSpec& spec_;
  const PageToEncode& page_;
  const LayerRotations rotations_;
  std::vector<float> values_;
};

// Appends the variances of a layer's K, and what stands for V, which nobody reads.
bool AddVariances(const KvSpec& spec, PageKeys& keys, uint32_t layer, TokenRange coded,
                  std::vector<double>& variances) {
  const uint32_t chunks = std::clamp(coded.count / kFeltChunk, 1u, kFeltChunks);
  const uint32_t count = std::min(coded.count, kFeltChunk);
  FirstMoments moments(keys.width());
  for (uint32_t i = 0; i < chunks; ++i) {
    const float* const x = keys.Read(layer, {coded.first + i * (coded.count / chunks), count});
    if (x == nullptr) return false;
    moments.Add(x, count);
  }
  for (size_t c = 0; c < keys.width(); ++c) variances.push_back(moments.Variance(c));
  variances.resize(variances.size() + SlabValues(spec, Part::kV, 1));
  return true;
}

// Adds what a layer says of the logarithm of each token's sensitivity.
bool AddTokens(const KvSpec& spec, PageKeys& keys, uint32_t layer, TokenRange coded,
               std::span<float> logs) {
  const float* const x = keys.Read(layer, coded);
  if (x == nullptr) return false;
  const size_t width = keys.width();
  FirstMoments moments(width);
  moments.Add(x, coded.count);
  const std::vector<float> means = moments.Mean();
  std::vector<double> variances(width);
  for (size_t c = 0; c < width; ++c) variances[c] = moments.Variance(c);
  const std::vector<float> slopes = KeySlopes(spec.kv_heads, means, variances);
  for (uint32_t t = 0; t < coded.count; ++t) {
    float sum = 0;
    for (size_t c = 0; c < width; ++c) sum += slopes[c] * (x[t * width + c] - means[c]);
    logs[t] += sum;
  }
  return true;
}

}  // namespace

PageGuess GuessOf(const KvSpec& spec, const PageToEncode& page, uint32_t plain, bool tokens) {
  const TokenRange coded{plain, page.tokens - plain};
  if (coded.count < kFewestTokensToGuess) return {};
  PageKeys keys(spec, page);
  std::vector<double> variances;
  std::vector<float> logs(page.tokens);
  uint32_t tellers = 0;
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    if (!AddVariances(spec, keys, layer, coded, variances)) return {};
    if (!tokens || !Tells(spec, layer)) continue;
    if (!AddTokens(spec, keys, layer, coded, std::span(logs).subspan(plain))) return {};
    ++tellers;
  }
  PageGuess out{.felt = std::vector<float>(spec.layers)};
  const std::vector<double> heads = HeadsFelt(spec, variances);
  for (size_t i = 0; i < heads.size(); ++i) {
    out.felt[i / spec.kv_heads] += static_cast<float>(heads[i] / spec.kv_heads);
  }
  if (!tokens) return out;
  for (const float log : logs) {
    out.log_steps.push_back(LogStepFor(log / static_cast<float>(tellers), kFocus));
  }
  return out;
}

}  // namespace kvstow
