#include "client/page_columns.h"

#include <algorithm>
#include <cstring>

#include "kernels/page/half.h"

namespace kvstow {
namespace {

std::vector<uint8_t> HalvesOf(const AttentionColumn& column, uint32_t kv_heads) {
  const bool grouped = kv_heads > 0 && column.heads % kv_heads == 0;
  const size_t group = grouped ? std::max<size_t>(column.heads / kv_heads, 1) : 1;
  std::vector<uint8_t> out(column.scores.size() / group * sizeof(uint16_t));
  for (size_t i = 0; i * sizeof(uint16_t) < out.size(); ++i) {
    double sum = 0;
    for (size_t g = 0; g < group; ++g) sum += column.scores[i * group + g];
    const double mean = sum / static_cast<double>(group);
    const uint16_t half =
        FloatToHalf(std::clamp(static_cast<float>(mean), -kMaxHalf, kMaxHalf));  // NaN stays NaN
    std::memcpy(out.data() + i * sizeof(half), &half, sizeof(half));
  }
  return out;
}

}  // namespace

std::vector<PageColumn> PageColumnsOf(const AttentionColumns& columns, uint32_t kv_heads) {
  std::vector<PageColumn> out;
  for (const auto& [name, column] : columns) {
    out.push_back({.name = name, .queries = column.queries, .scores = HalvesOf(column, kv_heads)});
  }
  return out;
}

}  // namespace kvstow
