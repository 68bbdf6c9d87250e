#include "kernels/device/joint_memory.h"

#include "kernels/device/plane_layout.h"
#include "kernels/entropy/small_integers.h"
#include "kernels/page/half.h"

namespace kvstow::gpu {

std::vector<uint16_t> Bf16Rows(const PackedMatrix& m, size_t rows, size_t columns) {
  const size_t stride = PaddedWidth(columns);
  std::vector<uint16_t> out(PaddedWidth(rows) * stride);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) {
      const float value = m.PanelRow(j / PackedMatrix::kPanel, i)[j % PackedMatrix::kPanel];
      out[i * stride + j] = FloatToBf16(value);
    }
  }
  return out;
}

std::vector<JointColumn> ColumnsOf(const KvSpec& spec, LayerRange layers,
                                   const DeviceRopes& ropes) {
  std::vector<JointColumn> out;
  const uint32_t dims[] = {spec.head_dim_k, spec.head_dim_v};
  for (uint8_t part = 0; part < 2; ++part) {
    const uint32_t row = spec.kv_heads * dims[part];
    for (uint32_t i = 0; i < layers.count * row; ++i) {
      JointColumn& column = out.emplace_back();
      column.part = part;
      column.layer = static_cast<uint16_t>(i / row), column.value = static_cast<uint16_t>(i % row);
      const uint32_t channel = i % row % dims[part];
      const LayerTurn& turn = ropes.Of(layers.first + column.layer);
      if (part != 0 || channel >= 2 * turn.pairs) continue;
      const uint32_t pair = turn.apart == 1 ? channel / 2 : channel % turn.pairs;
      const bool leads = channel / turn.apart % 2 == 0;
      column.pair = static_cast<uint16_t>(turn.first_pair + pair);
      column.other = static_cast<int16_t>(leads ? turn.apart : -static_cast<int32_t>(turn.apart));
    }
  }
  return out;
}

std::vector<float> ListCosts() {
  constexpr int kLimits[] = {kMaxRowMove, kMaxPlaneTilt};
  std::vector<float> out;
  for (const int limit : kLimits) {
    out.resize(out.size() + kListValues);  // of spread 0: no list
    for (uint32_t spread = 1; spread <= kMaxSpread; ++spread) {
      const std::vector<float> bits = SmallIntegerBits(spread, limit);
      const auto beyond = static_cast<size_t>(kMaxPlaneTilt - limit);
      out.resize(out.size() + beyond);
      out.insert(out.end(), bits.begin(), bits.end());
      out.resize(out.size() + beyond);
    }
  }
  return out;
}

}  // namespace kvstow::gpu
