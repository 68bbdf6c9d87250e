#include "tests/bench/calibrated_page.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "kernels/calibration/calibration.h"
#include "kernels/calibration/query_means.h"
#include "kernels/calibration/token_importance.h"
#include "kernels/calibration/vocabulary.h"
#include "kernels/codec/calibrate.h"
#include "kernels/methods/joint_vectors.h"
#include "kernels/page/half.h"

namespace kvstow {
namespace {

constexpr uint32_t kVocabularyTokens = 49152, kFeatures = 256, kSignature = 16;
constexpr float kMeansScale = 1.0f / 4096;  // small: features are random, and tell nothing

float Spread(uint32_t layers_per_run, size_t coefficient) {
  const auto i = static_cast<float>(coefficient);
  return layers_per_run == 1 ? 80 / std::sqrt(1 + i) * std::exp(-i / 180)
                             : 90 / std::sqrt(1 + i) * std::exp(-i / 1350);
}
size_t Rank(uint32_t layers_per_run) { return layers_per_run == 1 ? 320 : 2800; }

QueryMeans Queries(const KvSpec& spec) {
  QueryMeans queries;
  queries.heads = 2 * spec.kv_heads;
  for (uint32_t layer = 1; layer < spec.layers; layer += 3) {
    std::vector<float> means = GaussianValues(size_t{queries.heads} * spec.head_dim_k);
    for (float& x : means) x *= 1e-2f;
    queries.layers.push_back({layer, std::move(means)});
  }
  return queries;
}

// The leading values of V of the first layer tell a token.
std::vector<float> Signatures() { return GaussianValues(size_t{kVocabularyTokens} * kSignature); }

CalibrationSection Tokens(const CalibrationShape& shape) {
  const size_t v = size_t{shape.kv_heads} * shape.head_dim_v;
  Vocabulary::Parts parts{.tokens = kVocabularyTokens,
                          .projection = std::vector<float>(kSignature * v),
                          .signatures = Signatures(),
                          .features = GaussianValues(size_t{kVocabularyTokens} * kFeatures)};
  for (size_t i = 0; i < kSignature; ++i) parts.projection[i * v + i] = 1;
  const auto vocabulary = *Vocabulary::Make(shape, parts);
  std::vector<VocabularyRunData> runs;
  for (uint32_t r = 0; r < shape.runs(); ++r) {
    VocabularyRunData& run = runs.emplace_back();
    run.scales.assign(vocabulary->width(), kMeansScale);
    for (const float x : GaussianValues(vocabulary->width() * shape.WidthOfRun(r)))
      run.halves.push_back(FloatToHalf(x));
    run.importance.resize(kFeatures);
  }
  return VocabularySection(*vocabulary, runs);
}

}  // namespace

KvSpec CalibratedSpec() {
  KvSpec spec = SmallModelSpec(DType::kF16);
  spec.rope.layout = RopeSpec::Layout::kHalf;
  return spec;
}

std::string CalibrationOf(uint32_t layers_per_run, Knows knows) {
  const KvSpec spec = CalibratedSpec();
  const size_t rank = Rank(layers_per_run);
  CalibrationData data{.shape = ShapeFor(spec, layers_per_run), .tables = UniversalPlaneTables()};
  for (uint32_t r = 0; r < data.shape.runs(); ++r) {
    const size_t width = data.shape.WidthOfRun(r);
    CalibratedRunData& run = data.runs.emplace_back();
    run.mean.resize(width);
    run.encode_scales.assign(rank, 1), run.decode_scales.assign(rank, 1);
    run.encode_halves.resize(rank * width);
    for (size_t i = 0; i < rank; ++i) {
      run.sigma.push_back(Spread(layers_per_run, i));
      run.encode_halves[i * width + i] = FloatToHalf(1);
    }
    run.decode_halves = run.encode_halves;
    if (knows != Knows::kTransform) run.importance.weights.resize(ImportanceWeights(rank));
  }
  std::string blob = SerializeCalibration(data);
  if (knows == Knows::kTransform) return blob;
  blob = *WithSection(AsBytes(blob), *QueryMeansSection(data.shape, Queries(spec)));
  if (knows == Knows::kQueries) return blob;
  return *WithSection(AsBytes(blob), Tokens(data.shape));
}

std::vector<uint8_t> CalibratedPage(uint32_t layers_per_run, Knows knows, uint64_t first_position) {
  const KvSpec spec = CalibratedSpec();
  std::vector<uint8_t> raw(PageBytes(spec, kTokens));
  std::vector<float> values = GaussianValues(raw.size() / 2 + first_position);
  const float* next = values.data() + first_position;
  const std::vector<float> signatures =
      knows == Knows::kTokens ? Signatures() : std::vector<float>();
  const size_t first_v = layers_per_run * SlabValues(spec, Part::kK, 1);
  for (uint32_t first = 0; first < spec.layers; first += layers_per_run) {
    const JointVectors vectors(spec, {{first, layers_per_run}, kTokens, first_position});
    const size_t width = vectors.width();
    std::vector<float> x(next, next + kTokens * width);
    next += x.size();
    for (size_t i = 0; i < x.size(); ++i) x[i] *= Spread(layers_per_run, i % width);
    for (uint32_t t = 0; first == 0 && !signatures.empty() && t < kTokens; ++t) {
      const uint64_t token = (first_position + t) * 2654435761u % kVocabularyTokens;
      std::copy_n(signatures.data() + token * kSignature, kSignature,
                  x.data() + t * width + first_v);
    }
    const size_t layer = LayerBytes(spec, kTokens);
    vectors.Scatter(x.data(), {0, kTokens},
                    std::span(raw).subspan(first * layer, layers_per_run * layer));
  }
  return raw;
}

}  // namespace kvstow
