// The affine quantizer, value by value: what the fast loops must equal.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/page/half.h"
#include "kernels/page/loops.h"
#include "kernels/quantize/loops.h"
#include "kernels/transform/loops.h"

namespace kvstow {
namespace {

// One group: `count` values, `stride` apart.
struct Group {
  size_t first, count, stride;
};

bool EncodeGroup(const Group& at, uint32_t bits, const float* values, float* step, float* minimum,
                 uint8_t* codes) {
  float low = values[at.first], high = low;
  for (size_t i = 1; i < at.count; ++i) {
    low = std::min(low, values[at.first + i * at.stride]);
    high = std::max(high, values[at.first + i * at.stride]);
  }
  const auto top = static_cast<float>((1u << bits) - 1);
  // Adding zero makes -0 into +0: which of the two a minimum is depends on the order of values.
  const uint16_t m = FloatToHalf(low + 0.0f);
  *minimum = HalfToFloat(m);
  const uint16_t s = FloatToHalf((std::max(high - *minimum, 0.0f) + 0.0f) / top);
  *step = HalfToFloat(s);
  const float inverse = *step > 0 ? 1.0f / *step : 0.0f;
  for (size_t i = 0; i < at.count; ++i) {
    const size_t at_value = at.first + i * at.stride;
    const float scaled = (values[at_value] - *minimum) * inverse;
    codes[at_value] = static_cast<uint8_t>(std::nearbyint(std::min(std::max(scaled, 0.0f), top)));
  }
  return IsFiniteHalf(m) && IsFiniteHalf(s);
}

void DecodeGroup(const Group& at, float step, float minimum, const uint8_t* codes, float* values) {
  for (size_t i = 0; i < at.count; ++i) {
    const size_t at_value = at.first + i * at.stride;
    values[at_value] = static_cast<float>(codes[at_value]) * step + minimum;
  }
}

// Calls f(index, group) for all groups, in the order of their steps and minima.
template <typename F>
void ForGroupsOfRows(const AffineGroups& g, F f) {
  size_t index = 0;
  for (size_t row = 0; row < g.rows; ++row) {
    for (size_t begin = 0; begin < g.width; begin += g.group) {
      f(index++, Group{row * g.width + begin, std::min(g.group, g.width - begin), 1});
    }
  }
}

template <typename F>
void ForGroupsOfColumns(const AffineGroups& g, F f) {
  size_t index = 0;
  for (size_t row = 0; row < g.rows; row += g.group) {
    for (size_t column = 0; column < g.width; ++column) {
      f(index++, Group{row * g.width + column, std::min(g.group, g.rows - row), g.width});
    }
  }
}

bool EncodeRows(const AffineGroups& g, const float* values, float* steps, float* minima,
                uint8_t* codes) {
  bool ok = true;
  ForGroupsOfRows(g, [&](size_t i, Group at) {
    ok &= EncodeGroup(at, g.bits, values, steps + i, minima + i, codes);
  });
  return ok;
}

void DecodeRows(const AffineGroups& g, const float* steps, const float* minima,
                const uint8_t* codes, float* values) {
  ForGroupsOfRows(g,
                  [&](size_t i, Group at) { DecodeGroup(at, steps[i], minima[i], codes, values); });
}

bool EncodeColumns(const AffineGroups& g, const float* values, float* steps, float* minima,
                   uint8_t* codes) {
  bool ok = true;
  ForGroupsOfColumns(g, [&](size_t i, Group at) {
    ok &= EncodeGroup(at, g.bits, values, steps + i, minima + i, codes);
  });
  return ok;
}

void DecodeColumns(const AffineGroups& g, const float* steps, const float* minima,
                   const uint8_t* codes, float* values) {
  ForGroupsOfColumns(
      g, [&](size_t i, Group at) { DecodeGroup(at, steps[i], minima[i], codes, values); });
}

bool EncodeRaw(const AffineRaw& g, const uint8_t* raw, uint8_t* steps, uint8_t* minima,
               uint8_t* codes) {
  const size_t count = g.groups * g.group;
  std::vector<float> values(count), s(g.groups), m(g.groups);
  if (!ConvertLoops::Reference().load(g.dtype, raw, count, values.data()) ||
      !EncodeRows({g.groups, g.group, g.group, g.bits}, values.data(), s.data(), m.data(), codes)) {
    return false;
  }
  ConvertLoops::Reference().store(DType::kF16, s.data(), g.groups, steps);
  ConvertLoops::Reference().store(DType::kF16, m.data(), g.groups, minima);
  return true;
}

void DecodeRaw(const AffineRaw& g, const float* steps, const float* minima, const uint8_t* codes,
               uint8_t* raw) {
  const size_t count = g.groups * g.group;
  std::vector<float> values(count);
  DecodeRows({g.groups, g.group, g.group, g.bits}, steps, minima, codes, values.data());
  ConvertLoops::Reference().store(g.dtype, values.data(), count, raw);
}

void MeasureRaw(const AffineRaw& g, const uint8_t* raw, const float* steps, const float* minima,
                const uint8_t* codes, double* energy, double* error) {
  const size_t count = g.groups * g.group;
  std::vector<float> values(count), decoded(count);
  ConvertLoops::Reference().load(g.dtype, raw, count, values.data());
  DecodeRows({g.groups, g.group, g.group, g.bits}, steps, minima, codes, decoded.data());
  *energy = SquaredErrorLoops::Reference().sum(values.data(), nullptr, count, *energy);
  *error = SquaredErrorLoops::Reference().sum(values.data(), decoded.data(), count, *error);
}

bool EncodeTurned(const AffineRaw& g, const AffineTurn& turn, const uint8_t* raw, uint8_t* steps,
                  uint8_t* minima, uint8_t* codes, double* energy, double* error) {
  const AffineGroups groups{g.groups, g.group, g.group, g.bits};
  const size_t count = g.groups * g.group;
  std::vector<float> values(count), s(g.groups), m(g.groups), decoded(count);
  if (!ConvertLoops::Reference().load(g.dtype, raw, count, values.data())) return false;
  HadamardLoops::Reference().blocks(count / turn.dim, turn.dim, values.data(), turn.signs, nullptr);
  if (!EncodeRows(groups, values.data(), s.data(), m.data(), codes)) return false;
  ConvertLoops::Reference().store(DType::kF16, s.data(), g.groups, steps);
  ConvertLoops::Reference().store(DType::kF16, m.data(), g.groups, minima);
  DecodeRows(groups, s.data(), m.data(), codes, decoded.data());
  *energy = SquaredErrorLoops::Reference().sum(values.data(), nullptr, count, *energy);
  *error = SquaredErrorLoops::Reference().sum(values.data(), decoded.data(), count, *error);
  return true;
}

void DecodeTurned(const AffineRaw& g, const AffineTurn& turn, const float* steps,
                  const float* minima, const uint8_t* codes, uint8_t* raw) {
  const size_t count = g.groups * g.group;
  std::vector<float> values(count);
  DecodeRows({g.groups, g.group, g.group, g.bits}, steps, minima, codes, values.data());
  HadamardLoops::Reference().blocks(count / turn.dim, turn.dim, values.data(), nullptr, turn.signs);
  ConvertLoops::Reference().store(g.dtype, values.data(), count, raw);
}

}  // namespace

const AffineLoops& AffineLoops::Reference() {
  static constexpr AffineLoops kLoops{EncodeRows, DecodeRows, EncodeColumns, DecodeColumns};
  return kLoops;
}

const AffineRawLoops& AffineRawLoops::Reference() {
  static constexpr AffineRawLoops kLoops{EncodeRaw, DecodeRaw, MeasureRaw};
  return kLoops;
}

const AffineTurnedLoops& AffineTurnedLoops::Reference() {
  static constexpr AffineTurnedLoops kLoops{EncodeTurned, DecodeTurned};
  return kLoops;
}

}  // namespace kvstow
