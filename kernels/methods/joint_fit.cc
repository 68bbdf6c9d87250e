#include "kernels/methods/joint_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/calibration/calibration_basis.h"
#include "kernels/calibration/calibration_moments.h"
#include "kernels/calibration/cost_prior.h"
#include "kernels/calibration/fit_passes.h"
#include "kernels/calibration/query_means.h"
#include "kernels/calibration/token_slopes.h"
#include "kernels/calibration/vocabulary.h"
#include "kernels/methods/joint_vectors.h"
#include "kernels/page/half.h"

namespace kvstow {
namespace {

// The unit of a step of 1, in sqrt(nat): about 12 x on a small model.
constexpr double kUnit = 0.01;
constexpr float kLeastSigma = 1e-6f;
constexpr double kLeastShareNonZero = 1e-3;  // of a component that is kept
constexpr uint64_t kSampleTokens = 1024;     // whose coefficients the tables are fitted on
constexpr size_t kUnitSamples = 600'000;
constexpr int kPasses = 4;

// Vectors of tokens of a run.
struct Vectors {
  float* x;  // [count, width of the run]; a pass changes them
  size_t count;
  const float* features;  // [count, Vocabulary::width()]; null without a vocabulary
};

// Returns a matrix of what HalveRows made of it: as it will be read again.
PackedMatrix Halved(std::span<const float> scales, std::span<const uint16_t> halves, size_t width,
                    bool columns) {
  PackedMatrix out(columns ? width : scales.size(), columns ? scales.size() : width);
  std::vector<float> row(width);
  for (size_t i = 0; i < scales.size(); ++i) {
    for (size_t j = 0; j < width; ++j) row[j] = HalfToFloat(halves[i * width + j]) * scales[i];
    columns ? out.SetColumn(i, row) : out.SetRow(i, row);
  }
  return out;
}

// One run of layers through the passes.
class RunFit {
 public:
  // `features` is Vocabulary::width(), 0 without one.
  RunFit(size_t width, size_t features) : features_(features), first_(width) {}

  void AddFirst(const float* x, size_t count) { first_.Add(x, count); }
  void EndFirst() {
    data_.mean = first_.Mean();
    second_.emplace(features_ + data_.mean.size());
  }
  const FirstMoments& first() const { return first_; }

  void AddSecond(const Vectors& vectors) {
    Centre(vectors);
    if (features_ == 0) return second_->Add(vectors.x, vectors.count);
    const size_t width = data_.mean.size(), both = features_ + width;
    std::vector<float> rows(vectors.count * both);
    for (size_t t = 0; t < vectors.count; ++t) {
      std::copy_n(vectors.features + t * features_, features_, rows.data() + t * both);
      std::copy_n(vectors.x + t * width, width, rows.data() + t * both + features_);
    }
    second_->Add(rows.data(), vectors.count);
  }
  void EndSecond(std::span<const WhiteningBlock> blocks) {
    const size_t width = data_.mean.size();
    std::vector<double> moments = std::move(*second_).Take();
    second_.reset();
    if (features_ > 0) {
      Foretold foretold = Foretell(moments, features_ + width, features_);
      HalveRows(foretold.map, width, token_means_.scales, token_means_.halves);
      means_ = Halved(token_means_.scales, token_means_.halves, width, false);
      moments = std::move(foretold.rest);
    }
    Basis basis = FitBasis(std::move(moments), width, blocks);
    HalveRows(basis.encode, width, data_.encode_scales, data_.encode_halves);
    HalveRows(basis.decode, width, data_.decode_scales, data_.decode_halves);
    encode_ = Halved(data_.encode_scales, data_.encode_halves, width, true);
    squares_.resize(width);
    non_zero_.resize(width);
  }

  // Looks at what the matrix as it will be stored makes of the vectors.
  void AddThird(const Vectors& vectors, double finest_step, uint64_t sample_every) {
    const size_t width = data_.mean.size();
    Project(vectors, width);
    const std::vector<float> foretold = ForetoldCoefficients(vectors.count);
    for (size_t t = 0; t < vectors.count; ++t, ++projected_) {
      const float* const c = coefficients_.data() + t * width;
      for (size_t i = 0; i < width; ++i) {
        squares_[i] += double{c[i]} * c[i];
        // A token that is not known has what is foretold of others, too.
        const float whole = foretold.empty() ? c[i] : c[i] + foretold[t * width + i];
        const float largest = std::max(std::abs(c[i]), std::abs(whole));
        non_zero_[i] += largest >= kPlaneDeadZone * finest_step ? 1 : 0;
      }
      if (projected_ % sample_every != 0) continue;
      sample_.insert(sample_.end(), c, c + width);
      const float* const features = vectors.features + t * features_;
      sample_features_.insert(sample_features_.end(), features, features + features_);
    }
  }

  // Cuts the components.
  void EndThird() {
    const size_t width = data_.mean.size();
    size_t rank = 1;
    for (size_t i = 0; i < width; ++i) {
      const double share = static_cast<double>(non_zero_[i]) / static_cast<double>(projected_);
      if (share > kLeastShareNonZero) rank = i + 1;
    }
    for (size_t i = 0; i < rank; ++i) {
      const double sigma = std::sqrt(squares_[i] / static_cast<double>(projected_));
      data_.sigma.push_back(std::max(static_cast<float>(sigma), kLeastSigma));
    }
    data_.encode_scales.resize(rank);
    data_.decode_scales.resize(rank);
    data_.encode_halves.resize(rank * width);
    data_.decode_halves.resize(rank * width);
    importance_.emplace(rank, TokenFeatures());
  }

  void AddFourth(const Vectors& vectors, std::span<const float> sensitivity) {
    Project(vectors, data_.sigma.size());
    importance_->Add(coefficients_.data(), data_.sigma, sensitivity, vectors.features, features_);
  }

  // Adds to what the tables are fitted on.
  void EndFourth(size_t unit_samples, std::vector<float>& unit,
                 std::span<uint64_t, kPlaneEnergies> energies) {
    data_.importance = importance_->Finish();
    token_means_.importance = data_.importance.token_weights;
    const bool classes = !data_.importance.weights.empty();
    const size_t width = data_.mean.size(), rank = data_.sigma.size();
    const size_t tokens = sample_.size() / width;
    const auto telling = std::span<const float>(data_.sigma).first(std::max<size_t>(rank / 4, 1));
    const size_t every = std::max<size_t>(tokens * rank / std::max<size_t>(unit_samples, 1), 1);
    size_t at = 0;
    for (size_t t = 0; t < tokens; ++t) {
      const std::span<float> row(sample_.data() + t * width, rank);
      if (classes) {
        const float of_token = std::inner_product(
            token_means_.importance.begin(), token_means_.importance.end(),
            sample_features_.begin() + static_cast<ptrdiff_t>(t * features_), 0.0f);
        const float factor = StepFactor(StepClass(
            ForetoldLogStep(data_.importance, row, data_.sigma, kDefaultFocus, of_token)));
        for (float& c : row) c /= factor;
      }
      const uint8_t energy = EnergyClass(row, telling);
      ++energies[energy];
      for (size_t i = 0; i < rank; ++i, ++at) {
        if (at % every == t % every) unit.push_back(row[i] / data_.sigma[i] / EnergyFactor(energy));
      }
    }
    sample_ = {};
    encode_ = means_ = {};
  }

  CalibratedRunData Take() { return std::move(data_); }
  const VocabularyRunData& token_means() const { return token_means_; }

 private:
  size_t TokenFeatures() const { return features_ > 0 ? features_ - 1 : 0; }
  // Coefficients of vectors, by the first `rank` columns of the matrix.
  void Project(const Vectors& vectors, size_t rank) {
    Centre(vectors);
    if (features_ > 0) {
      const size_t width = data_.mean.size();
      foretold_.resize(vectors.count * width);
      MultiplyRows(vectors.features, vectors.count, means_, {0, width}, foretold_.data(), width);
      for (size_t i = 0; i < foretold_.size(); ++i) vectors.x[i] -= foretold_[i];
    }
    coefficients_.resize(vectors.count * rank);
    MultiplyRows(vectors.x, vectors.count, encode_, {0, rank}, coefficients_.data(), rank);
  }
  // What Project took off, as coefficients of all components; empty without a vocabulary.
  std::vector<float> ForetoldCoefficients(size_t count) const {
    if (features_ == 0) return {};
    const size_t width = data_.mean.size();
    std::vector<float> out(count * width);
    MultiplyRows(foretold_.data(), count, encode_, {0, width}, out.data(), width);
    return out;
  }
  void Centre(const Vectors& vectors) const {
    const size_t width = data_.mean.size();
    for (size_t t = 0; t < vectors.count; ++t) {
      for (size_t j = 0; j < width; ++j) vectors.x[t * width + j] -= data_.mean[j];
    }
  }

  const size_t features_;
  FirstMoments first_;
  std::optional<SecondMoments> second_;
  CalibratedRunData data_;
  VocabularyRunData token_means_;
  PackedMatrix encode_, means_;
  std::optional<ImportanceFit> importance_;
  uint64_t projected_ = 0;
  std::vector<double> squares_;
  std::vector<uint64_t> non_zero_;
  std::vector<float> coefficients_, foretold_, sample_, sample_features_;
};

class Fit final : public CalibrationFit {
 public:
  Fit(const KvSpec& spec, const JointFitOptions& options, ModelStats stats)
      : spec_(spec),
        options_(options),
        stats_(std::move(stats)),
        shape_(ShapeFor(spec, options.layers_per_run)) {
    for (uint32_t i = 0; i < shape_.runs(); ++i) {
      runs_.emplace_back(shape_.WidthOfRun(i), stats_.vocabulary ? stats_.vocabulary->width() : 0);
      slopes_.emplace_back(spec, stats_, LayersOf(i));
    }
  }

  int passes() const override { return passes_.count(); }

  absl::Status Add(const PageToEncode& page) override {
    KVSTOW_RETURN_IF_ERROR(passes_.CheckOpen());
    const uint32_t first = CountFirstTokens(page.first_position, page.tokens);
    const uint64_t place = added_ + first;
    added_ += page.tokens;
    if (!stats_.sensitivity.empty() && added_ > stats_.sensitivity.size() / spec_.layers) {
      return absl::InvalidArgumentError("there are more tokens than sensitivities of tokens");
    }
    size_t tokens = 0;
    for (uint32_t i = 0; i < shape_.runs(); ++i) {
      KVSTOW_RETURN_IF_ERROR(GatherToCalibrate(spec_, LayersOf(i), page, vectors_));
      tokens = vectors_.size() / shape_.WidthOfRun(i);
      if (tokens == 0 || (passes_.now() == 3 && !KnowsTokens())) break;
      if (i == 0 && passes_.now() > 0) FindFeatures(page, first);
      const Vectors vectors{vectors_.data(), tokens, features_.data()};
      AddTo(runs_[i], vectors);
      if (passes_.now() == 3) {
        const std::vector<float> felt = stats_.sensitivity.empty()
                                            ? slopes_[i].Sensitivity(vectors_)
                                            : SensitivityOf(LayersOf(i), place, tokens);
        runs_[i].AddFourth(vectors, felt);
      }
    }
    passes_.Add(tokens);
    return absl::OkStatus();
  }

  absl::Status EndPass() override {
    KVSTOW_RETURN_IF_ERROR(passes_.CheckWhole());
    for (uint32_t i = 0; i < shape_.runs(); ++i) {
      if (passes_.now() == 0) runs_[i].EndFirst();
      if (passes_.now() == 1) runs_[i].EndSecond(Blocks(i));
      if (passes_.now() == 2) runs_[i].EndThird();
    }
    if (passes_.now() == 0 && stats_.empty()) Guess();
    added_ = 0;
    passes_.EndPass();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Finish() override {
    KVSTOW_RETURN_IF_ERROR(passes_.Finish());
    CalibrationData data{.shape = shape_};
    std::vector<float> unit;
    std::array<uint64_t, kPlaneEnergies> energies{};
    for (RunFit& run : runs_) run.EndFourth(kUnitSamples / shape_.runs(), unit, energies);
    for (RunFit& run : runs_) data.runs.push_back(run.Take());
    data.tables = FitPlaneTables(unit, energies);
    std::string blob = SerializeCalibration(data);
    if (stats_.queries != nullptr) {
      KVSTOW_ASSIGN_OR_RETURN(const CalibrationSection queries,
                              QueryMeansSection(shape_, *stats_.queries));
      KVSTOW_ASSIGN_OR_RETURN(blob, WithSection(AsBytes(blob), queries));
    }
    if (stats_.vocabulary == nullptr) return blob;
    std::vector<VocabularyRunData> means;
    for (const RunFit& run : runs_) means.push_back(run.token_means());
    return WithSection(AsBytes(blob), VocabularySection(*stats_.vocabulary, means));
  }

 private:
  LayerRange LayersOf(uint32_t run) const {
    return {run * shape_.layers_per_run, shape_.LayersOfRun(run)};
  }
  // Whether statistics or keys say how much the model feels single tokens.
  bool KnowsTokens() const { return !stats_.sensitivity.empty() || !slopes_[0].empty(); }

  // Finds the features of the tokens of a page from `first` on.
  void FindFeatures(const PageToEncode& page, uint32_t first) {
    if (stats_.vocabulary == nullptr) return;
    const std::vector<TokenId> ids = stats_.vocabulary->Find(spec_, page.raw, page.tokens);
    features_.resize((page.tokens - first) * stats_.vocabulary->width());
    stats_.vocabulary->Features(std::span(ids).subspan(first), features_.data());
  }

  // Looks at what K and V alone tell of the model.
  void Guess() {
    costs_ = CostPrior(spec_, Variances(), stats_.normed_keys);
    if (KnowsTokens()) return;
    for (uint32_t i = 0; i < shape_.runs(); ++i) {
      slopes_[i] = TokenSlopes(spec_, shape_.LayersOfRun(i), runs_[i].first());
    }
  }

  // Returns the variances of all channels, in the order of CostPrior.
  std::vector<double> Variances() const {
    const size_t k = size_t{spec_.kv_heads} * spec_.head_dim_k;
    const size_t v = size_t{spec_.kv_heads} * spec_.head_dim_v;
    std::vector<double> out;
    for (uint32_t layer = 0; layer < spec_.layers; ++layer) {
      const uint32_t run = layer / shape_.layers_per_run, at = layer % shape_.layers_per_run;
      const FirstMoments& first = runs_[run].first();
      const size_t v_first = shape_.LayersOfRun(run) * k + at * v;
      for (size_t c = 0; c < k; ++c) out.push_back(first.Variance(at * k + c));
      for (size_t c = 0; c < v; ++c) out.push_back(first.Variance(v_first + c));
    }
    return out;
  }

  void AddTo(RunFit& run, const Vectors& vectors) const {
    const uint64_t every = std::max<uint64_t>(passes_.tokens() / kSampleTokens, 1);
    if (passes_.now() == 0) run.AddFirst(vectors.x, vectors.count);
    if (passes_.now() == 1) run.AddSecond(vectors);
    if (passes_.now() == 2) run.AddThird(vectors, options_.finest_step, every);
  }

  // Returns it for tokens from `place` on, over the layers of a run; 0 where one is not known.
  std::vector<float> SensitivityOf(LayerRange layers, uint64_t place, uint32_t tokens) const {
    std::vector<float> out(tokens);
    for (uint32_t t = 0; t < tokens; ++t) {
      const float* const row = &stats_.sensitivity[(place + t) * spec_.layers + layers.first];
      const bool known = std::all_of(row, row + layers.count, [](float s) { return s > 0; });
      out[t] = known ? std::accumulate(row, row + layers.count, 0.0f) : 0;
    }
    return out;
  }

  // Returns the factors that whiten the channels of a head without statistics. They are the roots
  // of what errors cost.
  std::vector<double> ScalesOf(Part part, size_t head_of_all) const {
    const size_t layer = head_of_all / spec_.kv_heads, head = head_of_all % spec_.kv_heads;
    const size_t k = spec_.head_dim_k, v = spec_.head_dim_v, dim = part == Part::kK ? k : v;
    const size_t row = layer * spec_.kv_heads * (k + v);
    const size_t first = part == Part::kK ? head * k : spec_.kv_heads * k + head * v;
    std::vector<double> scales;
    for (size_t c = 0; c < dim; ++c) {
      scales.push_back(std::sqrt(static_cast<double>(dim) * costs_[row + first + c]) / kUnit);
    }
    return scales;
  }

  // Returns the blocks that whiten the vectors of a run, in units of the step.
  std::vector<WhiteningBlock> Blocks(uint32_t index) const {
    std::vector<WhiteningBlock> blocks;
    size_t column = 0;
    for (const Part part : {Part::kK, Part::kV}) {
      const size_t dim = part == Part::kK ? spec_.head_dim_k : spec_.head_dim_v;
      const std::vector<float>& metric = part == Part::kK ? stats_.metric_k : stats_.metric_v;
      const std::vector<float>& gain = part == Part::kK ? stats_.gain_k : stats_.gain_v;
      const size_t first = size_t{index} * shape_.layers_per_run * spec_.kv_heads;
      const size_t slabs = size_t{shape_.LayersOfRun(index)} * spec_.kv_heads;
      for (size_t i = first; dim > 0 && i < first + slabs; ++i, column += dim) {
        if (gain.empty()) {
          blocks.push_back(WhitenByScales(column, ScalesOf(part, i)));
        } else {
          blocks.push_back(WhitenByMetric(
              column, std::span(metric).subspan(i * dim * dim, dim * dim), dim, gain[i] / kUnit));
        }
      }
    }
    return blocks;
  }

  const KvSpec spec_;
  const JointFitOptions options_;
  const ModelStats stats_;
  const CalibrationShape shape_;
  FitPasses passes_{kPasses};
  uint64_t added_ = 0;  // tokens of this pass, those left out too
  std::vector<RunFit> runs_;
  std::vector<TokenSlopes> slopes_;  // of each run
  std::vector<double> costs_;        // CostPrior, without statistics
  std::vector<float> vectors_, features_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CalibrationFit>> StartJointFit(const KvSpec& spec,
                                                              const JointFitOptions& options,
                                                              const ModelStats& stats) {
  KVSTOW_RETURN_IF_ERROR(CheckFit(spec, stats));
  if (options.layers_per_run < 1 ||
      ShapeFor(spec, options.layers_per_run).WidthOfRun(0) > kMaxCalibrationWidth) {
    return absl::InvalidArgumentError(absl::StrCat("runs of ", options.layers_per_run,
                                                   " layers: use fewer, a token of a run may ",
                                                   "have ", kMaxCalibrationWidth, " values"));
  }
  if (!(options.finest_step > 0)) return absl::InvalidArgumentError("finest_step must be positive");
  return std::make_unique<Fit>(spec, options, stats);
}

}  // namespace kvstow
