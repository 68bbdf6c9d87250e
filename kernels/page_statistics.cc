#include "kernels/page_statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/entropy/plane_coder.h"
#include "kernels/quantize/dead_zone.h"

namespace kvstow {
namespace {

constexpr int kStepsAnOctave = 8, kRowsAnOctave = 4;
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

Moments MomentsOf(std::span<const float> values, size_t channels) {
  const size_t tokens = values.size() / channels;
  Moments m{std::vector<double>(channels), std::vector<double>(channels)};
  std::vector<double>& squares = m.variance;
  for (size_t t = 0; t < tokens; ++t) {
    const float* row = &values[t * channels];
    for (size_t i = 0; i < channels; ++i) {
      const double v = row[i];
      m.mean[i] += v;
      squares[i] += v * v;
    }
  }
  const double n = static_cast<double>(tokens);
  for (size_t i = 0; i < channels; ++i) {
    m.square += squares[i] / (n * static_cast<double>(channels));
    m.mean[i] /= n;
    m.variance[i] = std::max(squares[i] / n - m.mean[i] * m.mean[i], 0.0);
  }
  return m;
}

int StepFor(double spread, double relative_step) {
  if (spread < 0x1p-120) return kMinStep;
  return std::clamp(RoundLog2(spread * relative_step, kStepsAnOctave), kMinStep, kMaxStep);
}

// One token of twice as many coefficients as the run has channels: rows, then means.
PlaneCoder CoderOf(std::span<const SlabStatistics> slabs, std::span<const uint32_t> channels) {
  PlaneLayout layout;
  for (size_t i = 0; i < slabs.size(); ++i)
    layout.rows.insert(layout.rows.end(), channels[i], slabs[i].row_spread);
  for (size_t i = 0; i < slabs.size(); ++i)
    layout.rows.insert(layout.rows.end(), channels[i], slabs[i].mean_row);
  return PlaneCoder(std::move(layout), UniversalPlaneTables());
}

}  // namespace

SlabStatistics MeasureSlab(std::span<const float> values, size_t channels, double relative_step,
                           uint32_t levels) {
  const Moments m = MomentsOf(values, channels);
  SlabStatistics slab;
  const double rms = std::sqrt(m.square);
  const auto base_step = [&] {
    return Exp2Fraction(slab.step + kStepsAnOctave * static_cast<int>(levels - 1), kStepsAnOctave);
  };
  if (values.size() / channels < kMinTokensForChannels) {
    slab.step = static_cast<int16_t>(StepFor(rms, relative_step));
    slab.row = static_cast<int8_t>(RowOf(rms, base_step()));
    return slab;
  }
  const double sum = std::accumulate(m.variance.begin(), m.variance.end(), 0.0);
  const double spread = std::sqrt(sum / static_cast<double>(channels));
  slab.step = static_cast<int16_t>(StepFor(std::max(spread, rms * kMinSpread), relative_step));
  slab.row = static_cast<int8_t>(RowOf(spread, base_step()));
  const double unit = StepOf(slab) / kMeanDivisor;
  for (size_t i = 0; i < channels; ++i) {
    slab.rows.push_back(RowOf(std::sqrt(m.variance[i]), base_step()) - slab.row);
    slab.means.push_back(static_cast<int32_t>(
        std::clamp(m.mean[i] / unit, -(kPlaneMaxMagnitude - 1.0), kPlaneMaxMagnitude - 1.0)));
  }
  slab.row_spread = TableRowOf(slab.rows);
  slab.mean_row = TableRowOf(slab.means);
  return slab;
}

ChannelStatistics ExpandStatistics(std::span<const SlabStatistics> slabs,
                                   std::span<const uint32_t> channels) {
  ChannelStatistics out;
  for (size_t s = 0; s < slabs.size(); ++s) {
    const SlabStatistics& slab = slabs[s];
    const float step = StepOf(slab);
    for (uint32_t i = 0; i < channels[s]; ++i) {
      out.rows.push_back(static_cast<int16_t>(slab.row + (slab.rows.empty() ? 0 : slab.rows[i])));
      const int32_t mean = slab.means.empty() ? 0 : slab.means[i];
      out.means.push_back(static_cast<float>(mean) * (step / kMeanDivisor));
    }
    out.steps.insert(out.steps.end(), channels[s], step);
  }
  return out;
}

std::string SerializeStatistics(std::span<const SlabStatistics> slabs) {
  ByteWriter out;
  std::vector<uint32_t> channels;
  std::vector<int32_t> rows, means;
  for (const SlabStatistics& slab : slabs) {
    out.Put(slab.step);
    out.Put(slab.row);
    out.Put(slab.row_spread);
    out.Put(slab.mean_row);
    channels.push_back(static_cast<uint32_t>(slab.rows.size()));
    rows.insert(rows.end(), slab.rows.begin(), slab.rows.end());
    means.insert(means.end(), slab.means.begin(), slab.means.end());
  }
  if (rows.empty()) return std::move(out).Take();
  rows.insert(rows.end(), means.begin(), means.end());
  const std::string body = CoderOf(slabs, channels).EncodeLevel(rows, {}, 0);
  out.Put(static_cast<uint32_t>(body.size()));
  out.PutBytes(AsBytes(body));
  return std::move(out).Take();
}

absl::StatusOr<std::vector<SlabStatistics>> ReadStatistics(ByteReader& reader,
                                                           std::span<const uint32_t> channels,
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
  const PlaneCoder coder = CoderOf(slabs, channels);
  std::vector<int32_t> values(coder.width());
  KVSTOW_RETURN_IF_ERROR(coder.DecodeLevel(body, 0, 1, {0, 1}, values, {}));
  auto rows = values.begin(), means = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  for (size_t s = 0; s < slabs.size(); ++s) {
    slabs[s].rows.assign(rows, rows + channels[s]);
    slabs[s].means.assign(means, means + channels[s]);
    for (int32_t& row : slabs[s].rows) row = std::clamp(row, -400, 400);
    rows += channels[s];
    means += channels[s];
  }
  return slabs;
}

}  // namespace kvstow
