#include "kernels/methods/planes_run_codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "kernels/calibration/key_slopes.h"
#include "kernels/calibration/token_importance.h"
#include "kernels/entropy/plane_coder.h"
#include "kernels/methods/first_tokens.h"
#include "kernels/methods/joint_vectors.h"
#include "kernels/methods/page_statistics.h"
#include "kernels/page/channel_rows.h"
#include "kernels/page/convert.h"
#include "kernels/page/squared_error.h"
#include "kernels/quantize/dead_zone.h"
#include "kernels/transform/rope.h"
#include "kernels/transform/transpose.h"

namespace kvstow {
namespace {

constexpr uint32_t kTokensPerStream = 64;
// Gains of long pages are of a sample: a vector of each stream. Tokens of a stream come by class,
// the coarsest first, and streams near the end of the page are finer. In this order of vectors,
// neither goes with the other.
constexpr size_t kVectorsOfAStream = kTokensPerStream / kRansLanes;
constexpr std::array<size_t, kVectorsOfAStream> kSampledVector = {1, 3, 0, 2};
constexpr size_t kStrideToSample = kVectorsOfAStream * kTokensPerStream;
constexpr float kLargest = 65504;  // of fp16

// Tokens with steps of their own. Steps go in half octaves, as the plane coder's energy classes do,
// and stand in their place. A token whose step is 2^(k/2) times the usual is divided by that factor
// before it is coded.

// Returns the energy class of each token from the binary logarithms of steps; NaN gives the usual
// step.
std::vector<uint8_t> StepEnergies(std::span<const float> log_steps) {
  constexpr int kPlain = kPlaneEnergies / 2;
  std::vector<uint8_t> out;
  for (const float log_step : log_steps) {
    const float half_octaves = std::isnan(log_step) ? 0 : std::round(2 * log_step);
    out.push_back(
        static_cast<uint8_t>(kPlain - std::clamp<float>(half_octaves, 1 - kPlain, kPlain)));
  }
  return out;
}

// Returns the vectors of places that gains are measured on.
std::vector<size_t> VectorsToMeasure(size_t stride) {
  const size_t vectors = stride / kRansLanes;
  std::vector<size_t> out;
  if (stride < kStrideToSample) {
    for (size_t v = 0; v < vectors; ++v) out.push_back(v);
    return out;
  }
  for (size_t first = 0; first < vectors; first += kVectorsOfAStream) {
    const size_t in_stream = kSampledVector[out.size() % kVectorsOfAStream];
    out.push_back(std::min(first + in_stream, vectors - 1));
  }
  return out;
}

// The places of tokens in their streams, and what the values of each place are times to be coded: 1
// behind the last. Empty where tokens have no classes.
struct Places {
  PlaneOrder order;
  std::vector<float> factors;  // [stride]

  Places() = default;
  explicit Places(std::span<const uint8_t> classes)
      : order(OrderByClass(classes, kTokensPerStream)) {
    for (const uint32_t token : order.tokens) factors.push_back(EnergyFactor(classes[token]));
    factors.resize(PlaneStride(factors.size()), 1.0f);
  }
  bool empty() const { return factors.empty(); }

  // Brings rows of a value for each token, [..., stride], into their places, as they are coded.
  void Sort(size_t stride, std::span<float> rows) const {
    if (empty()) return;
    std::vector<float> row(stride);
    for (float* to = rows.data(); to != rows.data() + rows.size(); to += stride) {
      std::copy_n(to, stride, row.begin());
      for (size_t p = 0; p < order.tokens.size(); ++p) to[p] = row[order.tokens[p]] * factors[p];
    }
  }
};

// Makes coded values of rows [..., stride] tokens' own again, in their places. `factors` are those
// of the places.
void Unscale(std::span<const float> factors, size_t stride, std::span<float> rows) {
  if (factors.empty()) return;
  std::vector<float> inverse(stride);
  for (size_t p = 0; p < stride; ++p) inverse[p] = 1 / factors[p];
  for (float* row = rows.data(); row != rows.data() + rows.size(); row += stride) {
    for (size_t p = 0; p < stride; ++p) row[p] *= inverse[p];
  }
}

struct PlanesOptions {
  double step = 0, k = 0, depth = 0;
  uint32_t levels = 0;
  uint32_t keys = 0;     // 1, 2: K says what the model feels; 2: K that passed a norm
  bool guesses = false;  // of each token, too, where no report does
  bool classed = false;  // tokens have classes of steps
};

class PlanesRunCodec final : public RunCodec {
 public:
  PlanesRunCodec(const KvSpec& spec, PlanesOptions options, std::unique_ptr<Quantizer> plain)
      : spec_(spec), options_(options), levels_(options.levels), plain_(std::move(plain)) {}

  bool exact() const override { return false; }
  uint32_t levels() const override { return levels_; }
  PageGuess Guess(const PageToEncode& page) const override;
  absl::StatusOr<std::vector<EncodedLevel>> Encode(const Run& run,
                                                   std::span<const uint8_t> raw) const override;
  absl::Status Decode(const Run& run, std::span<const SharedBytes> bodies, LayerRange wanted,
                      std::span<uint8_t> raw) const override {
    return DecodeTokens(run, bodies, wanted, {0, run.tokens}, raw);
  }
  absl::Status DecodeTokens(const Run& run, std::span<const SharedBytes> bodies, LayerRange wanted,
                            TokenRange tokens, std::span<uint8_t> raw) const override;

 private:
  // A slab of a run, and where its channels begin among those of a token.
  struct Slab {
    uint32_t layer;  // within the run
    Part part;
    uint32_t heads, dim, first_channel;
    uint32_t channels() const { return heads * dim; }
    SlabShape Shape(uint32_t tokens) const { return {part, tokens, heads, dim}; }
  };
  std::vector<Slab> SlabsOf(uint32_t layers) const;
  SlabChannels ChannelsOf(const Slab& slab) const {
    return {slab.heads, slab.dim, options_.keys == 1 && slab.part == Part::kK};
  }
  std::vector<SlabChannels> ChannelsOf(std::span<const Slab> slabs) const;
  // Tokens that are kept apart.
  static uint32_t PlainTokens(const Run& run) {
    return static_cast<uint32_t>(
        run.first_position >= kPlainTokens
            ? 0
            : std::min<uint64_t>(run.tokens, kPlainTokens - run.first_position));
  }
  size_t PlainBytes(std::span<const Slab> slabs, uint32_t plain) const;
  // Values [channels of the run, PlaneStride] of the coded tokens, K without positions; plain
  // tokens go into `body`.
  absl::Status LoadSlabs(const Run& run, std::span<const uint8_t> raw, std::span<const Slab> slabs,
                         std::span<float> values, std::string& body) const;
  // log2 of the step of each coded token over the usual one, from the keys of the run. `values` are
  // those of LoadSlabs.
  std::vector<float> StepsOfKeys(std::span<const Slab> slabs, std::span<const float> values,
                                 uint32_t coded) const;
  // The class of the step of each token behind the first `plain`; empty where all have the same.
  std::vector<uint8_t> ClassesOf(const Run& run, uint32_t plain, std::span<const Slab> slabs,
                                 std::span<const float> values) const;
  // The finest step relative to the rms spread of a slab.
  double StepFor(const Run& run, const Slab& slab) const;
  PlaneCoder CoderOf(const ChannelStatistics& channels) const {
    PlaneLayout layout{.rows = channels.rows,
                       .classed = options_.classed,
                       .levels = levels_,
                       .tokens_per_stream = kTokensPerStream};
    return PlaneCoder(std::move(layout), UniversalPlaneTables(), PlaneLookups::Universal());
  }
  // Codes [channels of the run, stride] of whole streams, in the places of tokens; the wanted
  // tokens behind the plain ones are `count` from the `first` of the streams on.
  struct Decoded {
    std::unique_ptr<int32_t[]> q;
    Places places;
    uint32_t tokens = 0, level = 0, first = 0, count = 0;
  };
  // Stores the wanted range, from plain tokens and the codes of the others. `channels` has the
  // steps of the level that was decoded.
  absl::Status StoreSlabs(const Run& run, const PageRange& wanted, std::span<const Slab> slabs,
                          std::span<const uint8_t> plain_bytes,
                          std::span<const SlabStatistics> statistics,
                          const ChannelStatistics& channels, const Decoded& decoded,
                          std::span<uint8_t> raw) const;
  // Writes one slab, [channels, stride], as MeasureSlab left the values, into `rows`, in the places
  // of tokens.
  void DequantizeSlab(const Slab& slab, const PlaneCoder& coder, const ChannelStatistics& channels,
                      const Decoded& decoded, std::vector<float>& rows) const;
  // Writes the wanted tokens of a slab, [channels, stride] in their places, to `out`: [tokens,
  // channels].
  static void TakeTokens(const Slab& slab, const Decoded& decoded, std::span<const float> rows,
                         std::vector<float>& by_place, float* out);
  // Returns the gain of each level, see SegmentInfo. `values` are coded, `energies` are squared
  // sums of the slabs before they were centred.
  std::vector<double> GainsOf(uint32_t plain, uint32_t tokens, std::span<const Slab> slabs,
                              std::span<const double> energies, std::span<const float> values,
                              const ChannelStatistics& channels, const PlaneCoder& coder,
                              std::span<const int32_t> q, const Places& places) const;

  const KvSpec spec_;
  const PlanesOptions options_;
  const uint32_t levels_;
  const std::unique_ptr<Quantizer> plain_;
};

std::vector<PlanesRunCodec::Slab> PlanesRunCodec::SlabsOf(uint32_t layers) const {
  std::vector<Slab> slabs;
  uint32_t channel = 0;
  for (uint32_t layer = 0; layer < layers; ++layer) {
    for (const auto& [part, dim] :
         {std::pair{Part::kK, spec_.head_dim_k}, std::pair{Part::kV, spec_.head_dim_v}}) {
      if (dim == 0) continue;
      slabs.push_back({layer, part, spec_.kv_heads, dim, channel});
      channel += slabs.back().channels();
    }
  }
  return slabs;
}

std::vector<SlabChannels> PlanesRunCodec::ChannelsOf(std::span<const Slab> slabs) const {
  std::vector<SlabChannels> channels;
  for (const Slab& slab : slabs) channels.push_back(ChannelsOf(slab));
  return channels;
}

PageGuess PlanesRunCodec::Guess(const PageToEncode& page) const {
  if (!options_.guesses) return {};
  return GuessOf(spec_, page,
                 PlainTokens({.tokens = page.tokens, .first_position = page.first_position}),
                 options_.keys == 2);
}

double PlanesRunCodec::StepFor(const Run& run, const Slab& slab) const {
  const uint32_t layer = run.layers.first + slab.layer;
  const double felt = run.felt.empty() ? 1 : run.felt[layer];
  const bool normed = options_.keys == 2;
  if (slab.part == Part::kK) {
    return options_.step * options_.k / (normed ? std::sqrt(felt) : felt);
  }
  const double step = normed ? options_.step : options_.step / std::sqrt(felt);
  if (spec_.layers < 2) return step;
  return step * std::pow(options_.depth, static_cast<double>(layer) / (spec_.layers - 1) - 0.5);
}

std::vector<float> PlanesRunCodec::StepsOfKeys(std::span<const Slab> slabs,
                                               std::span<const float> values,
                                               uint32_t coded) const {
  const size_t stride = PlaneStride(coded);
  std::vector<float> steps(coded);
  if (coded < kMinTokensForChannels) return steps;
  const size_t layers = slabs.size() / 2;
  for (const Slab& slab : slabs) {
    if (slab.part != Part::kK) continue;
    std::vector<float> means(slab.channels());
    std::vector<double> variances(slab.channels());
    const auto row = [&](size_t c) {
      return values.subspan((slab.first_channel + c) * stride, coded);
    };
    for (size_t c = 0; c < means.size(); ++c) {
      const RowSums sums = SumRow(row(c).data(), coded);
      const double mean = sums.values / coded;
      means[c] = static_cast<float>(mean);
      variances[c] = std::max(sums.squares / coded - mean * mean, 0.0);
    }
    const std::vector<float> slopes = KeySlopes(slab.heads, means, variances);
    for (size_t c = 0; c < means.size(); ++c) {
      const float slope = slopes[c] / static_cast<float>(layers);
      for (uint32_t t = 0; t < coded; ++t) steps[t] += slope * (row(c)[t] - means[c]);
    }
  }
  for (float& step : steps) step = LogStepFor(step, kDefaultFocus);
  return steps;
}

std::vector<uint8_t> PlanesRunCodec::ClassesOf(const Run& run, uint32_t plain,
                                               std::span<const Slab> slabs,
                                               std::span<const float> values) const {
  if (!options_.classed) return {};
  const uint32_t coded = run.tokens - plain;
  std::vector<float> steps(coded);
  if (!run.log_steps.empty()) {
    std::ranges::copy(run.log_steps.subspan(plain), steps.begin());
  } else if (options_.guesses) {
    steps = StepsOfKeys(slabs, values, coded);
  }
  if (options_.guesses && !run.end_steps.empty()) {
    for (uint32_t t = 0; t < coded; ++t) steps[t] += run.end_steps[plain + t];
  }
  return StepEnergies(steps);
}

size_t PlanesRunCodec::PlainBytes(std::span<const Slab> slabs, uint32_t plain) const {
  size_t bytes = 0;
  for (const Slab& slab : slabs) bytes += plain == 0 ? 0 : plain_->LevelBytes(slab.Shape(plain), 0);
  return bytes;
}

absl::Status PlanesRunCodec::LoadSlabs(const Run& run, std::span<const uint8_t> raw,
                                       std::span<const Slab> slabs, std::span<float> values,
                                       std::string& body) const {
  const uint32_t plain = PlainTokens(run), coded = run.tokens - plain;
  const size_t stride = PlaneStride(coded);
  std::vector<float> all;
  const LayerRotations rotations(spec_, run.layers, run.first_position, run.tokens);
  body.resize(PlainBytes(slabs, plain));
  auto* plain_body = reinterpret_cast<uint8_t*>(body.data());
  for (const Slab& slab : slabs) {
    const size_t skipped = size_t{plain} * slab.channels();
    all.resize(slab.Shape(run.tokens).values());
    const uint8_t* from = raw.data() + SlabOffset(spec_, slab.layer, slab.part, run.tokens);
    const bool finite = LoadFloats(spec_.dtype, from, all.size(), all.data());
    if (!finite || LargestMagnitude(all.data(), all.size()) > kLargest) {
      return absl::OutOfRangeError(
          absl::StrCat("layer ", run.layers.first + slab.layer,
                       " has NaN, Inf or values beyond the range of fp16"));
    }
    if (plain > 0) {
      const SlabShape shape = slab.Shape(plain);
      uint8_t* const bodies[] = {plain_body};
      if (!plain_->Encode(shape, all.data(), bodies))
        return absl::OutOfRangeError("a step beyond the range of fp16");
      plain_body += plain_->LevelBytes(shape, 0);
    }
    if (slab.part == Part::kK) {
      rotations.Of(run.layers.first + slab.layer)
          .Undo(plain, coded, slab.heads, all.data() + skipped);
    }
    float* const to = values.data() + slab.first_channel * stride;
    Transpose(all.data() + skipped, coded, slab.channels(), slab.channels(), to, stride);
    for (uint32_t i = 0; i < slab.channels(); ++i)
      std::fill(to + i * stride + coded, to + (i + 1) * stride, 0.0f);
  }
  return absl::OkStatus();
}

// Slab after slab: a sample of one stays in the nearest cache.
std::vector<double> PlanesRunCodec::GainsOf(
    uint32_t plain, uint32_t tokens, std::span<const Slab> slabs, std::span<const double> energies,
    std::span<const float> values, const ChannelStatistics& channels, const PlaneCoder& coder,
    std::span<const int32_t> q, const Places& places) const {
  std::vector<double> gains(levels_);
  gains[0] = static_cast<double>(plain * slabs.size());
  if (tokens == 0) return gains;
  // Behind the last token, values and what they are decoded to are 0.
  const size_t stride = PlaneStride(tokens);
  const std::vector<size_t> vectors = VectorsToMeasure(stride);
  const std::vector<float> factors = TakeVectors<float>(places.factors, stride, vectors);
  std::vector<int8_t> shifts;
  size_t seen = 0;
  for (const size_t v : vectors) {
    seen += std::min(kRansLanes, tokens - v * kRansLanes);
    if (!places.empty()) shifts.push_back(places.order.shifts[v]);
  }
  const double share = static_cast<double>(tokens) / static_cast<double>(seen);
  std::vector<int32_t> coarse;
  std::vector<float> decoded, steps;
  for (size_t s = 0; s < slabs.size(); ++s) {
    const size_t first = slabs[s].first_channel * stride, count = slabs[s].channels() * stride;
    std::vector<float> wanted = TakeVectors(values.subspan(first, count), stride, vectors);
    const std::vector<int32_t> finest = TakeVectors(q.subspan(first, count), stride, vectors);
    const size_t sampled = finest.size() / slabs[s].channels();
    Unscale(factors, sampled, wanted);
    coarse.resize(finest.size()), decoded.resize(finest.size()), steps.resize(slabs[s].channels());
    const auto finest_steps =
        std::span(channels.steps).subspan(slabs[s].first_channel, slabs[s].channels());
    double left = 1;
    for (uint32_t level = 0; level < levels_; ++level) {
      const uint32_t shift = levels_ - 1 - level;
      std::ranges::transform(finest, coarse.begin(),
                             [shift](int32_t x) { return CoarserLevel(x, shift); });
      std::ranges::transform(finest_steps, steps.begin(), [shift](float step) {
        return std::ldexp(step, static_cast<int>(shift));
      });
      coder.DequantizeRows(coarse, shifts, static_cast<uint32_t>(sampled), level, steps,
                           slabs[s].first_channel, slabs[s].channels(), decoded);
      Unscale(factors, sampled, decoded);
      const double error = SquaredError(wanted.data(), decoded.data(), wanted.size());
      const double now = energies[s] > 0 ? error * share / energies[s] : 0;
      gains[level] += static_cast<double>(tokens) * std::max(left - now, 0.0);
      left = std::min(left, now);
    }
  }
  return gains;
}

absl::StatusOr<std::vector<EncodedLevel>> PlanesRunCodec::Encode(
    const Run& run, std::span<const uint8_t> raw) const {
  const std::vector<Slab> slabs = SlabsOf(run.layers.count);
  const uint32_t plain = PlainTokens(run), coded = run.tokens - plain;
  const size_t stride = PlaneStride(coded);
  const size_t count = (slabs.back().first_channel + slabs.back().channels()) * stride;
  const auto values_memory = std::make_unique_for_overwrite<float[]>(count);
  const std::span<float> values(values_memory.get(), count);
  std::string base;
  KVSTOW_RETURN_IF_ERROR(LoadSlabs(run, raw, slabs, values, base));
  const std::vector<uint8_t> classes = ClassesOf(run, plain, slabs, values);
  std::vector<SlabStatistics> statistics;
  std::vector<double> energies(slabs.size());
  for (size_t s = 0; s < slabs.size() && coded > 0; ++s) {
    const std::span<float> slab =
        values.subspan(slabs[s].first_channel * stride, slabs[s].channels() * stride);
    statistics.push_back(MeasureSlab(slab, coded, ChannelsOf(slabs[s]), StepFor(run, slabs[s]),
                                     levels_, energies[s]));
  }
  const ChannelStatistics channels = ExpandStatistics(statistics, ChannelsOf(slabs));
  base += SerializeStatistics(statistics);

  const PlaneCoder coder = CoderOf(channels);
  const Places places(classes);
  places.Sort(stride, values);
  const auto q_memory = std::make_unique_for_overwrite<int32_t[]>(count);
  const std::span<int32_t> q(q_memory.get(), count);
  for (size_t i = 0; i < channels.steps.size(); ++i) {
    DeadZoneQuantize(&values[i * stride], stride, 1 / channels.steps[i], kPlaneDeadZone,
                     kPlaneMaxMagnitude - 1, &q[i * stride]);
  }
  const std::vector<double> gains =
      GainsOf(plain, coded, slabs, energies, values, channels, coder, q, places);
  std::vector<std::string> bodies(levels_);
  if (coded > 0) bodies = coder.Encode(q, classes, coded);
  bodies[0].insert(0, base);
  std::vector<EncodedLevel> out;
  for (uint32_t level = 0; level < levels_; ++level) {
    out.push_back({SharedBytes::Take(std::move(bodies[level])), gains[level]});
  }
  return out;
}

absl::Status PlanesRunCodec::DecodeTokens(const Run& run, std::span<const SharedBytes> bodies,
                                          LayerRange wanted, TokenRange tokens,
                                          std::span<uint8_t> raw) const {
  if (bodies.empty() || bodies.size() > levels_)
    return absl::DataLossError(
        absl::StrCat(bodies.size(), " levels where the recipe has ", levels_));
  const std::vector<Slab> slabs = SlabsOf(run.layers.count);
  const uint32_t plain = PlainTokens(run), coded = run.tokens - plain;
  ByteReader reader(bodies[0].span());
  const std::span<const uint8_t> plain_bytes = reader.GetBytes(PlainBytes(slabs, plain));
  if (!reader.ok()) return absl::DataLossError("planes: cut within the first tokens");
  std::vector<SlabStatistics> statistics;
  ChannelStatistics channels;
  Decoded decoded;
  if (tokens.first + tokens.count > plain) {
    const std::vector<SlabChannels> counts = ChannelsOf(slabs);
    KVSTOW_ASSIGN_OR_RETURN(statistics,
                            ReadStatistics(reader, counts, coded >= kMinTokensForChannels));
    channels = ExpandStatistics(statistics, counts);
    const PlaneCoder coder = CoderOf(channels);
    // The wanted tokens behind the plain ones, and the streams that they are in.
    const uint32_t first = std::max(tokens.first, plain) - plain;
    const uint32_t count = tokens.first + tokens.count - plain - first;
    const TokenRange streams = WholeStreams({first, count}, coded, kTokensPerStream);
    decoded.tokens = streams.count;
    decoded.level = static_cast<uint32_t>(bodies.size() - 1);
    decoded.first = first - streams.first;
    decoded.count = count;
    const size_t codes = coder.width() * PlaneStride(streams.count);
    decoded.q = std::make_unique_for_overwrite<int32_t[]>(codes);
    std::vector<std::span<const uint8_t>> levels;
    for (const SharedBytes& body : bodies) levels.push_back(body.span());
    levels[0] = reader.GetBytes(reader.remaining());
    std::vector<uint8_t> classes(options_.classed ? streams.count : 0);
    KVSTOW_RETURN_IF_ERROR(coder.Decode(levels, coded, streams, {decoded.q.get(), codes}, classes));
    decoded.places = Places(classes);
    const auto dropped = static_cast<int>(levels_ - bodies.size());
    for (float& step : channels.steps) step = std::ldexp(step, dropped);
  }
  return StoreSlabs(run, {wanted, tokens}, slabs, plain_bytes, statistics, channels, decoded, raw);
}

void PlanesRunCodec::DequantizeSlab(const Slab& slab, const PlaneCoder& coder,
                                    const ChannelStatistics& channels, const Decoded& decoded,
                                    std::vector<float>& rows) const {
  const size_t stride = PlaneStride(decoded.tokens);
  rows.resize(slab.channels() * stride);
  const std::span<const float> steps(channels.steps);
  coder.DequantizeRows({decoded.q.get() + slab.first_channel * stride, rows.size()},
                       decoded.places.order.shifts, decoded.tokens, decoded.level,
                       steps.subspan(slab.first_channel, slab.channels()), slab.first_channel,
                       slab.channels(), rows);
  Unscale(decoded.places.factors, stride, rows);
}

void PlanesRunCodec::TakeTokens(const Slab& slab, const Decoded& decoded,
                                std::span<const float> rows, std::vector<float>& by_place,
                                float* out) {
  const size_t channels = slab.channels(), stride = PlaneStride(decoded.tokens);
  if (decoded.places.empty()) {
    Transpose(rows.data() + decoded.first, channels, decoded.count, stride, out, channels);
    return;
  }
  by_place.resize(decoded.tokens * channels);
  Transpose(rows.data(), channels, decoded.tokens, stride, by_place.data(), channels);
  for (size_t p = 0; p < decoded.tokens; ++p) {
    const size_t token = size_t{decoded.places.order.tokens[p]} - decoded.first;  // of the wanted
    if (token < decoded.count)
      std::copy_n(by_place.data() + p * channels, channels, out + token * channels);
  }
}

absl::Status PlanesRunCodec::StoreSlabs(const Run& run, const PageRange& wanted,
                                        std::span<const Slab> slabs,
                                        std::span<const uint8_t> plain_bytes,
                                        std::span<const SlabStatistics> statistics,
                                        const ChannelStatistics& channels, const Decoded& decoded,
                                        std::span<uint8_t> raw) const {
  const auto& [layers, tokens] = wanted;
  const uint32_t plain = PlainTokens(run);
  const uint32_t from_plain =
      std::min(tokens.first + tokens.count, plain) - std::min(tokens.first, plain);
  const LayerRotations rotations(spec_, layers, run.first_position + tokens.first, tokens.count,
                                 tokens.first);
  const uint8_t* plain_body = plain_bytes.data();
  const PlaneCoder coder = CoderOf(channels);
  std::vector<float> values, plain_values, rows, by_place;
  for (const Slab& slab : slabs) {
    const SlabShape plain_shape = slab.Shape(plain);
    const uint8_t* const plain_bodies[] = {plain_body};
    if (plain > 0) plain_body += plain_->LevelBytes(plain_shape, 0);
    const uint32_t layer = run.layers.first + slab.layer;
    if (layer < layers.first || layer >= layers.first + layers.count) continue;
    values.resize(slab.Shape(tokens.count).values());
    plain_values.resize(plain_shape.values());
    if (from_plain > 0 && !plain_->Decode(plain_shape, plain_bodies, plain_values.data()))
      return absl::DataLossError(absl::StrCat("layer ", layer, " has a scale that is not finite"));
    std::copy_n(plain_values.begin() + size_t{std::min(tokens.first, plain)} * slab.channels(),
                size_t{from_plain} * slab.channels(), values.begin());
    if (decoded.count > 0) {
      float* const rest = values.data() + from_plain * slab.channels();
      DequantizeSlab(slab, coder, channels, decoded, rows);
      RestoreSlab(statistics[&slab - slabs.data()], ChannelsOf(slab),
                  std::span(channels.means).subspan(slab.first_channel), rows);
      TakeTokens(slab, decoded, rows, by_place, rest);
      if (slab.part == Part::kK) {
        rotations.Of(layer).Redo(from_plain, decoded.count, slab.heads, rest);
      }
    }
    StoreFloats(spec_.dtype, values.data(), values.size(),
                raw.data() + SlabOffset(spec_, layer - layers.first, slab.part, tokens.count));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<const RunCodec>> Make(const OpArguments& arguments,
                                                     const KvSpec& spec, bool reported) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"step", "levels", "k", "depth", "firstbits", "keys"}));
  PlanesOptions options;
  KVSTOW_ASSIGN_OR_RETURN(options.step, arguments.Real("step", 0.5, 0.01, 8));
  KVSTOW_ASSIGN_OR_RETURN(options.levels, arguments.Number("levels", 3, 1, 8));
  KVSTOW_ASSIGN_OR_RETURN(options.k, arguments.Real("k", 1, 0.1, 10));
  KVSTOW_ASSIGN_OR_RETURN(options.depth, arguments.Real("depth", 1, 0.1, 10));
  KVSTOW_ASSIGN_OR_RETURN(options.keys, arguments.Number("keys", 0, 0, 2));
  // Latents are no keys, and say nothing of tokens.
  options.guesses = options.keys > 0 && spec.head_dim_v > 0;
  options.classed = reported || options.guesses;
  KVSTOW_ASSIGN_OR_RETURN(auto plain, MakeFirstQuantizer(arguments));
  return std::make_unique<PlanesRunCodec>(spec, options, std::move(plain));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const RunCodec>> MakePlanes(const OpArguments& arguments,
                                                           const KvSpec& spec) {
  return Make(arguments, spec, false);
}

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeClassedPlanes(
    const OpArguments& arguments, const KvSpec& spec, std::shared_ptr<const Calibration>) {
  return Make(arguments, spec, true);
}

}  // namespace kvstow
