#include "kernels/methods/page_statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/entropy/plane_coder.h"
#include "kernels/page/channel_rows.h"
#include "kernels/quantize/dead_zone.h"

namespace kvstow {
namespace {

constexpr int kStepsAnOctave = 8, kRowsAnOctave = 4;
constexpr int kMaxFiner = 24;
constexpr int kMeanDivisor = 4;  // of a step
// Steps are normal and so is all that is made of them: magnitudes below 2^24.
constexpr int kMinStep = -100 * kStepsAnOctave, kMaxStep = 100 * kStepsAnOctave;
constexpr double kMinSpread = 0x1p-10;  // of the rms: what 16-bit values can hold

float StepOf(const SlabStatistics& slab) {
  return static_cast<float>(Exp2Fraction(slab.step, kStepsAnOctave));
}

int RowOf(double spread, double step) {
  if (spread <= 0) return INT8_MIN;
  return std::clamp(kPlaneUnitRow + RoundLog2(spread / step, kRowsAnOctave), -100, 100);
}

// The table row for integers of this rms.
uint8_t TableRowOf(std::span<const int32_t> values) {
  double sum = 0;
  for (const int32_t v : values) sum += double{1.0} * v * v;
  const double rms = std::sqrt(sum / static_cast<double>(values.size()));
  return static_cast<uint8_t>(std::clamp(RowOf(rms, 1), 0, kPlaneMaxRow));
}

struct Moments {
  std::vector<double> mean, variance;  // of each channel
  double square = 0;                   // of all values, their mean
};

// `values`: [channels, PlaneStride(tokens)].
Moments MomentsOf(std::span<const float> values, size_t tokens, size_t channels) {
  Moments m{std::vector<double>(channels), std::vector<double>(channels)};
  const double n = static_cast<double>(tokens);
  for (size_t i = 0; i < channels; ++i) {
    const RowSums sums = SumRow(&values[i * PlaneStride(tokens)], tokens);
    m.square += sums.squares / (n * static_cast<double>(channels));
    m.mean[i] = sums.values / n;
    m.variance[i] = std::max(sums.squares / n - m.mean[i] * m.mean[i], 0.0);
  }
  return m;
}

int StepFor(double spread, double relative_step) {
  if (spread < 0x1p-120) return kMinStep;
  return std::clamp(RoundLog2(spread * relative_step, kStepsAnOctave), kMinStep, kMaxStep);
}

float MeanOf(int32_t mean, float step) { return static_cast<float>(mean) * (step / kMeanDivisor); }

// Rows and means are the integers of kLanes tokens: of each slab rows, then of each slab means, the
// channels of a slab over the tokens, the last padded with zeros.
constexpr uint32_t kLanes = kRansLanes;

uint32_t Padded(uint32_t channels) { return static_cast<uint32_t>(PlaneStride(channels)); }

PlaneCoder CoderOf(std::span<const SlabStatistics> slabs, std::span<const uint32_t> channels) {
  PlaneLayout layout;
  for (size_t i = 0; i < slabs.size(); ++i)
    layout.rows.insert(layout.rows.end(), Padded(channels[i]) / kLanes, slabs[i].row_spread);
  for (size_t i = 0; i < slabs.size(); ++i)
    layout.rows.insert(layout.rows.end(), Padded(channels[i]) / kLanes, slabs[i].mean_row);
  return PlaneCoder(std::move(layout), UniversalPlaneTables(), PlaneLookups::Universal());
}

void AppendPadded(std::span<const int32_t> values, std::vector<int32_t>& out) {
  out.insert(out.end(), values.begin(), values.end());
  out.resize(PlaneStride(out.size()));
}

}  // namespace

SlabStatistics MeasureSlab(std::span<float> values, uint32_t tokens, const SlabChannels& of,
                           double relative_step, uint32_t levels, double& energy) {
  const size_t channels = of.count(), stride = PlaneStride(tokens);
  const Moments m = MomentsOf(values, tokens, channels);
  energy = m.square * static_cast<double>(channels) * tokens;
  SlabStatistics slab;
  const double rms = std::sqrt(m.square);
  const auto base_step = [&] {
    return Exp2Fraction(slab.step + kStepsAnOctave * static_cast<int>(levels - 1), kStepsAnOctave);
  };
  if (tokens < kMinTokensForChannels) {
    slab.step = static_cast<int16_t>(StepFor(rms, relative_step));
    slab.row = static_cast<int8_t>(RowOf(rms, base_step()));
    return slab;
  }
  const double sum = std::accumulate(m.variance.begin(), m.variance.end(), 0.0);
  const double spread = std::sqrt(sum / static_cast<double>(channels));
  slab.step = static_cast<int16_t>(StepFor(std::max(spread, rms * kMinSpread), relative_step));
  slab.row = static_cast<int8_t>(RowOf(spread, base_step()));
  const double unit = StepOf(slab) / kMeanDivisor;
  for (const double mean : m.mean) {
    slab.means.push_back(static_cast<int32_t>(std::clamp(
        std::round(mean / unit), -(kPlaneMaxMagnitude - 1.0), kPlaneMaxMagnitude - 1.0)));
  }
  slab.mean_row = TableRowOf(slab.means);
  for (size_t i = 0; i < channels; ++i)
    ShiftRow(-MeanOf(slab.means[i], StepOf(slab)), tokens, &values[i * stride]);
  size_t at = 0;
  for (const uint32_t width : RotationBlocks(of.heads, of.dim)) {
    slab.rotations.push_back(FindRotations(&values[at], tokens, stride, width, StepOf(slab)));
    Rotate(slab.rotations.back(), stride, &values[at]);
    at += width * stride;
  }
  const Moments rotated = MomentsOf(values, tokens, channels);
  for (const double variance : rotated.variance)
    slab.rows.push_back(RowOf(std::sqrt(variance), base_step()) - slab.row);
  slab.row_spread = TableRowOf(slab.rows);
  return slab;
}

void RestoreSlab(const SlabStatistics& slab, const SlabChannels& of, std::span<const float> means,
                 std::span<float> values) {
  const size_t channels = of.count(), stride = values.size() / channels;
  const std::vector<uint32_t> widths = RotationBlocks(of.heads, of.dim);
  size_t at = 0;
  for (size_t b = 0; b < slab.rotations.size(); ++b) {
    RotateBack(slab.rotations[b], stride, &values[at]);
    at += widths[b] * stride;
  }
  for (size_t i = 0; i < channels; ++i) ShiftRow(means[i], stride, &values[i * stride]);
}

ChannelStatistics ExpandStatistics(std::span<const SlabStatistics> slabs,
                                   std::span<const SlabChannels> channels) {
  ChannelStatistics out;
  for (size_t s = 0; s < slabs.size(); ++s) {
    const SlabStatistics& slab = slabs[s];
    const float step = StepOf(slab);
    for (uint32_t i = 0; i < channels[s].count(); ++i) {
      const int row = slab.rows.empty() ? 0 : slab.rows[i];
      // A row in halves of a quarter octave.
      const int finer = channels[s].finer_where_wide ? std::clamp(row, -kMaxFiner, kMaxFiner) : 0;
      out.rows.push_back(static_cast<int16_t>(slab.row + row + (finer + (finer < 0 ? -1 : 1)) / 2));
      out.steps.push_back(step * static_cast<float>(Exp2Fraction(-finer, 2 * kRowsAnOctave)));
      out.means.push_back(slab.means.empty() ? 0 : MeanOf(slab.means[i], step));
    }
  }
  return out;
}

std::string SerializeStatistics(std::span<const SlabStatistics> slabs) {
  ByteWriter out;
  std::vector<uint32_t> channels;
  std::vector<int32_t> values;
  for (const SlabStatistics& slab : slabs) {
    out.Put(slab.step);
    out.Put(slab.row);
    out.Put(slab.row_spread);
    out.Put(slab.mean_row);
    channels.push_back(static_cast<uint32_t>(slab.rows.size()));
    AppendPadded(slab.rows, values);
  }
  if (values.empty()) return std::move(out).Take();
  for (const SlabStatistics& slab : slabs) AppendPadded(slab.means, values);
  const std::string body = CoderOf(slabs, channels).Encode(values, {}, kLanes)[0];
  out.Put(static_cast<uint32_t>(body.size()));
  out.PutBytes(AsBytes(body));
  std::vector<BlockRotations> rotations;
  for (const SlabStatistics& slab : slabs)
    rotations.insert(rotations.end(), slab.rotations.begin(), slab.rotations.end());
  return std::move(out).Take() + SerializeRotations(rotations);
}

absl::StatusOr<std::vector<SlabStatistics>> ReadStatistics(ByteReader& reader,
                                                           std::span<const SlabChannels> channels,
                                                           bool with_channels) {
  std::vector<SlabStatistics> slabs(channels.size());
  for (SlabStatistics& slab : slabs) {
    slab.step = reader.Get<int16_t>();
    slab.row = reader.Get<int8_t>();
    slab.row_spread = reader.Get<uint8_t>();
    slab.mean_row = reader.Get<uint8_t>();
    if (!reader.ok() || slab.step < kMinStep || slab.step > kMaxStep)
      return absl::DataLossError("page statistics: cut short, or a step out of range");
  }
  if (!with_channels) return slabs;
  const std::span<const uint8_t> body = reader.GetBytes(reader.Get<uint32_t>());
  if (!reader.ok()) return absl::DataLossError("page statistics: cut within the channels");
  std::vector<uint32_t> counts, widths;
  for (const SlabChannels& slab : channels) {
    counts.push_back(slab.count());
    const std::vector<uint32_t> blocks = RotationBlocks(slab.heads, slab.dim);
    widths.insert(widths.end(), blocks.begin(), blocks.end());
  }
  const PlaneCoder coder = CoderOf(slabs, counts);
  std::vector<int32_t> values(coder.width() * kLanes);
  KVSTOW_RETURN_IF_ERROR(coder.Decode({{body}}, kLanes, {0, kLanes}, values, {}));
  KVSTOW_ASSIGN_OR_RETURN(const auto rotations, ReadRotations(reader, widths));
  auto rows = values.begin(), means = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  auto blocks = rotations.begin();
  for (size_t s = 0; s < slabs.size(); ++s) {
    slabs[s].rows.assign(rows, rows + counts[s]);
    slabs[s].means.assign(means, means + counts[s]);
    for (int32_t& row : slabs[s].rows) row = std::clamp(row, -400, 400);
    rows += Padded(counts[s]);
    means += Padded(counts[s]);
    const auto end =
        blocks + static_cast<ptrdiff_t>(RotationBlocks(channels[s].heads, channels[s].dim).size());
    slabs[s].rotations.assign(blocks, end);
    blocks = end;
  }
  return slabs;
}

}  // namespace kvstow
