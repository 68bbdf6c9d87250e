#include "kernels/methods/joint_run_codec.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/calibration/token_importance.h"
#include "kernels/calibration/vocabulary.h"
#include "kernels/methods/joint_coder.h"
#include "kernels/methods/joint_vectors.h"
#include "kernels/page/channel_rows.h"
#include "kernels/page/page_to_encode.h"
#include "kernels/quantize/dead_zone.h"
#include "kernels/transform/tile_product.h"
#include "kernels/transform/transpose.h"

namespace kvstow {
namespace {

constexpr uint32_t kChunkTokens = 256;  // vectors that are in memory at once
static_assert(kChunkTokens % (kGainEvery * kRansLanes) == 0);

// What the vocabulary of a calibration foretells of the tokens of a run; nothing without one.
class RunMeans {
 public:
  RunMeans(const VocabularyTables* tables, size_t run)
      : vocabulary_(tables == nullptr ? nullptr : tables->vocabulary.get()),
        run_(tables == nullptr ? nullptr : &tables->runs[run]) {}

  // Looks at tokens, which then stand for those of `x` and `t` below.
  void Look(std::span<const TokenId> ids) {
    place_.clear();
    if (vocabulary_ == nullptr || ids.empty()) return;
    // A text has many of its tokens several times.
    std::vector<TokenId> different(ids.begin(), ids.end());
    std::ranges::sort(different);
    different.erase(std::unique(different.begin(), different.end()), different.end());
    for (const TokenId id : ids) {
      const auto found = std::ranges::lower_bound(different, id);
      place_.push_back(static_cast<size_t>(found - different.begin()));
    }
    different_ = different.size();
    features_.resize(different_ * vocabulary_->width());
    vocabulary_->Features(different, features_.data());
  }
  // Adds what is foretold, times `sign`, to columns of x, whose rows are `stride` apart.
  void AddTo(float* x, size_t stride, Columns columns, float sign) {
    if (place_.empty()) return;
    foretold_.resize(different_ * columns.count);
    MultiplyRowsInTiles(features_.data(), different_, vocabulary_->width(), run_->means, columns,
                        foretold_.data(), columns.count);
    for (size_t t = 0; t < place_.size(); ++t) {
      const float* const from = foretold_.data() + place_[t] * columns.count;
      for (size_t i = 0; i < columns.count; ++i) x[t * stride + i] += sign * from[i];
    }
  }
  // Returns the token's part of the logarithm of its sensitivity.
  float Importance(size_t t) const {
    if (place_.empty()) return 0;
    const size_t row = place_[t] * vocabulary_->width();
    return std::inner_product(run_->importance.begin(), run_->importance.end(),
                              features_.begin() + static_cast<ptrdiff_t>(row), 0.0f);
  }

 private:
  const Vocabulary* const vocabulary_;
  const VocabularyRun* const run_;
  std::vector<size_t> place_;  // of each token among the different ones
  size_t different_ = 0;
  std::vector<float> features_, foretold_;  // of the different ones
};

class JointRunCodec final : public RunCodec {
 public:
  explicit JointRunCodec(JointCoder coder)
      : coder_(std::move(coder)), vocabulary_(VocabularyOf(coder_.calibration())) {}

  bool exact() const override { return false; }
  uint32_t levels() const override { return coder_.options().levels; }

  std::vector<TokenId> TokenIds(const PageToEncode& page) const override {
    if (vocabulary_ == nullptr) return {};
    return HeaderIds(vocabulary_->vocabulary->Find(coder_.spec(), page.raw, page.tokens));
  }

  absl::StatusOr<std::vector<EncodedLevel>> Encode(const Run& run,
                                                   std::span<const uint8_t> raw) const override {
    const CalibratedRun* const calibrated = coder_.Find(run.layers);
    if (calibrated == nullptr) return absl::InternalError("a run that the calibration lacks");
    const uint32_t first = coder_.first_tokens().Count(run);
    const std::optional<std::string> head = coder_.first_tokens().Encode(run, raw);
    QuantizedRun quantized;
    if (!head.has_value() ||
        !Quantize(*calibrated, run, raw, {first, run.tokens - first}, quantized)) {
      return absl::OutOfRangeError(
          absl::StrCat("layers from ", run.layers.first,
                       " on have NaN, Inf or values far outside the calibration's range"));
    }
    return coder_.Encode(*calibrated, run, *head, quantized);
  }

  absl::Status Decode(const Run& run, std::span<const SharedBytes> bodies, LayerRange wanted,
                      std::span<uint8_t> raw) const override {
    return DecodeTokens(run, bodies, wanted, {0, run.tokens}, raw);
  }

  absl::Status DecodeTokens(const Run& run, std::span<const SharedBytes> bodies, LayerRange wanted,
                            TokenRange tokens, std::span<uint8_t> raw) const override {
    const CalibratedRun* const calibrated = coder_.Find(run.layers);
    if (calibrated == nullptr) {
      return absl::DataLossError(absl::StrCat("layers from ", run.layers.first,
                                              " on are no run of the page's calibration"));
    }
    KVSTOW_ASSIGN_OR_RETURN(const JointParts parts, coder_.Read(*calibrated, run, bodies));
    KVSTOW_RETURN_IF_ERROR(coder_.first_tokens().Decode(run, parts.head, {wanted, tokens}, raw));
    return DecodeOthers(*calibrated, run, parts, {wanted, tokens}, raw);
  }

 private:
  RunMeans MeansOf(const CalibratedRun& calibrated) const {
    return {vocabulary_, calibrated.first_layer / coder_.calibration().shape().layers_per_run};
  }
  static std::span<const TokenId> Ids(const Run& run, TokenRange tokens) {
    if (run.token_ids.empty()) return {};
    return run.token_ids.subspan(tokens.first, tokens.count);
  }

  bool Quantize(const CalibratedRun& calibrated, const Run& run, std::span<const uint8_t> raw,
                TokenRange tokens, QuantizedRun& out) const {
    const size_t rank = coder_.CodedRank(calibrated), width = calibrated.width();
    const size_t stride = PlaneStride(tokens.count);
    const JointVectors vectors(coder_.spec(), run);
    std::vector<float> minus_mean(calibrated.mean);
    for (float& mean : minus_mean) mean = -mean;
    const std::span<const float> sigma(calibrated.sigma);
    const auto telling = sigma.first(EnergyCoefficients(sigma, coder_.options().step));
    out.tokens = tokens.count;
    out.q.resize(stride * rank);
    out.energies.assign(stride, kPlaneEnergies / 2);
    if (coder_.HasClasses(calibrated)) out.classes.resize(tokens.count);
    out.sample.resize(rank * QuantizedRun::SampleStride(tokens.count));
    const size_t most = std::min(kChunkTokens, tokens.count);
    std::vector<float> x(most * width), by_token(most * rank), c(PlaneStride(most) * rank);
    RunMeans means = MeansOf(calibrated);
    for (uint32_t done = 0; done < tokens.count; done += kChunkTokens) {
      const uint32_t n = std::min(kChunkTokens, tokens.count - done);
      if (!vectors.Gather(raw, {tokens.first + done, n}, x.data())) return false;
      for (uint32_t t = 0; t < n; ++t) AddRow(minus_mean.data(), width, x.data() + t * width);
      means.Look(Ids(run, {tokens.first + done, n}));
      means.AddTo(x.data(), width, {0, width}, -1);
      MultiplyRowsInTiles(x.data(), n, width, calibrated.encode, {0, rank}, by_token.data(), rank);
      // Finite values may overflow on their way, and cancel out.
      if (!std::isfinite(LargestMagnitude(by_token.data(), n * rank))) return false;
      for (uint32_t t = 0; t < n; ++t) {
        const std::span<float> row(by_token.data() + t * rank, rank);
        if (!out.classes.empty()) {
          float log_step = ForetoldLogStep(calibrated.importance, row, calibrated.sigma,
                                           coder_.options().focus, means.Importance(t));
          if (!run.log_steps.empty()) log_step += run.log_steps[tokens.first + done + t];
          if (!run.end_steps.empty()) log_step += run.end_steps[tokens.first + done + t];
          const uint8_t step_class = StepClass(log_step);
          out.classes[done + t] = step_class;
          const float factor = StepFactor(step_class);
          for (float& value : row) value /= factor;
        }
        out.energies[done + t] = EnergyClass(row, telling);
      }
      const float largest = LargestMagnitude(by_token.data(), n * rank) / coder_.options().step;
      if (!(largest < static_cast<float>(kPlaneMaxMagnitude - 2))) return false;
      QuantizeChunk(by_token, n, rank, done, stride, c, out);
    }
    return true;
  }

  // Quantizes coefficients [n, rank] of the tokens from `done` on; `c` is scratch.
  void QuantizeChunk(std::span<const float> by_token, uint32_t n, size_t rank, uint32_t done,
                     size_t stride, std::vector<float>& c, QuantizedRun& out) const {
    const size_t padded = PlaneStride(n);
    if (padded > n) std::fill(c.begin(), c.end(), 0);
    Transpose(by_token.data(), n, rank, rank, c.data(), padded);
    for (size_t i = 0; i < rank; ++i) {
      const float* const row = c.data() + i * padded;
      DeadZoneQuantize(row, padded, 1 / coder_.options().step, kPlaneDeadZone,
                       kPlaneMaxMagnitude - 1, out.q.data() + i * stride + done);
      float* const sample =
          out.sample.data() + i * QuantizedRun::SampleStride(out.tokens) + done / kGainEvery;
      for (size_t t = 0; t < padded; t += kGainEvery * kRansLanes)
        std::copy_n(row + t, kRansLanes, sample + t / kGainEvery);
    }
  }

  absl::Status DecodeOthers(const CalibratedRun& calibrated, const Run& run,
                            const JointParts& parts, const PageRange& wanted,
                            std::span<uint8_t> raw) const {
    // Tokens are counted from the first that is coded here.
    const uint32_t first = coder_.first_tokens().Count(run);
    const uint32_t end = wanted.tokens.first + wanted.tokens.count;
    if (end <= first) return absl::OkStatus();
    const uint32_t begin = std::max(wanted.tokens.first, first) - first;
    const uint32_t tokens = run.tokens - first, stream = coder_.options().tokens_per_stream;
    const TokenRange streams = WholeStreams({begin, end - first - begin}, tokens, stream);
    const uint32_t chunk = std::max(kChunkTokens / stream, 1u) * stream;
    const JointVectors vectors(
        coder_.spec(),
        {wanted.layers, wanted.tokens.count, run.first_position + wanted.tokens.first},
        wanted.tokens.first);
    JointReader reader(coder_, calibrated, parts, tokens);
    std::vector<float> by_token, x;
    RunMeans means = MeansOf(calibrated);
    for (uint32_t done = 0; done < streams.count; done += chunk) {
      const TokenRange here{streams.first + done, std::min(chunk, streams.count - done)};
      const uint32_t from = std::max(here.first, begin);
      const uint32_t n = std::min(here.first + here.count, end - first) - from;
      KVSTOW_RETURN_IF_ERROR(reader.Read(here, {from, n}, by_token));
      x.resize(n * vectors.width());
      means.Look(Ids(run, {first + from, n}));
      Inverse(calibrated, by_token, reader.rank(), run, wanted.layers, means, x);
      vectors.Scatter(x.data(), {first + from - wanted.tokens.first, n}, raw);
    }
    return absl::OkStatus();
  }

  // x = c D + mean + what the tokens foretell, for the columns of the wanted layers.
  void Inverse(const CalibratedRun& calibrated, std::span<const float> c, size_t rank,
               const Run& run, LayerRange wanted, RunMeans& means, std::span<float> x) const {
    const size_t n = c.size() / rank, stride = x.size() / n;
    // Tiles take zeros as fast as vectors take the others.
    const NonZeroRows rows = HasTiles() ? NonZeroRows() : ListNonZeros(c.data(), n, rank);
    const size_t before = wanted.first - run.layers.first;
    const size_t k = SlabValues(coder_.spec(), Part::kK, 1),
                 v = SlabValues(coder_.spec(), Part::kV, 1);
    const Columns parts[] = {{before * k, wanted.count * k},
                             {run.layers.count * k + before * v, wanted.count * v}};
    size_t at = 0;
    for (const Columns& columns : parts) {
      if (HasTiles()) {
        MultiplyRowsInTiles(c.data(), n, rank, calibrated.decode, columns, x.data() + at, stride);
      } else {
        MultiplyNonZeroRows(rows, calibrated.decode, columns, x.data() + at, stride);
      }
      for (size_t t = 0; t < n; ++t) {
        float* const row = x.data() + t * stride + at;
        AddRow(calibrated.mean.data() + columns.first, columns.count, row);
      }
      means.AddTo(x.data() + at, stride, columns, 1);
      at += columns.count;
    }
  }

  const JointCoder coder_;
  const VocabularyTables* const vocabulary_;  // of the calibration; null without one
};

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeJoint(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration, bool classed) {
  KVSTOW_ASSIGN_OR_RETURN(JointCoder coder,
                          JointCoder::Make(arguments, spec, std::move(calibration), classed));
  return std::make_unique<JointRunCodec>(std::move(coder));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeJointRunCodec(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration) {
  return MakeJoint(arguments, spec, std::move(calibration), false);
}

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeClassedJointRunCodec(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration) {
  return MakeJoint(arguments, spec, std::move(calibration), true);
}

}  // namespace kvstow
