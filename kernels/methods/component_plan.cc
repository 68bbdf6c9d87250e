#include "kernels/methods/component_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/entropy/bit_pack.h"
#include "kernels/page/convert.h"
#include "kernels/page/half.h"
#include "kernels/quantize/e4m3.h"
#include "kernels/quantize/loops.h"

namespace kvstow {
namespace {

constexpr std::array<uint32_t, kComponentTypes> kBits = {0, 2, 4, 8};
constexpr uint32_t kScaleBits = 32;  // of a group that is kept, a token
constexpr int kHalvings = 50;        // of the multiplier's range
constexpr size_t kChoices = kGroupSizes.size() * kComponentTypes;

uint32_t BitsOf(ComponentType type) { return kBits[static_cast<size_t>(type)]; }

uint64_t GroupBits(uint32_t size, ComponentType type) {
  return type == ComponentType::kDropped ? 0 : kScaleBits + uint64_t{size} * BitsOf(type);
}

size_t GroupBytes(const ComponentGroup& group, size_t tokens) {
  if (group.type == ComponentType::kDropped) return 0;
  return 4 * tokens + PackedBytes(tokens * group.size, BitsOf(group.type));
}

// Squared error of coding one token's group, without the rounding of its shift and scale.
std::array<double, kComponentTypes> GroupErrors(const float* c, uint32_t size) {
  std::array<double, kComponentTypes> errors{};
  float low = c[0], high = c[0];
  for (uint32_t i = 0; i < size; ++i) {
    errors[0] += double{c[i]} * c[i];
    low = std::min(low, c[i]), high = std::max(high, c[i]);
  }
  for (const size_t type : {1, 2}) {
    const float step = (high - low) / static_cast<float>((1u << kBits[type]) - 1);
    const float inverse = step > 0 ? 1 / step : 0;
    float sum = 0;
    for (uint32_t i = 0; i < size; ++i) {
      // Adding half and cutting off rounds: (c - low) is not negative.
      const auto q = static_cast<float>(static_cast<int32_t>((c[i] - low) * inverse + 0.5f));
      const float d = c[i] - low - q * step;
      sum += d * d;
    }
    errors[type] = sum;
  }
  const float middle = (low + high) * 0.5f, top = (high - low) * 0.5f;
  const float scale = top > 0 ? kMaxE4M3 / top : 0, back = top / kMaxE4M3;
  for (uint32_t i = 0; i < size; ++i) {
    const float d = c[i] - middle;
    const float e = d - E4M3ToFloat(FloatToE4M3(d * scale)) * back;
    errors[3] += double{e} * e;
  }
  return errors;
}

// The error of every choice (size and type) of a group that begins at each component.
using ErrorTable = std::vector<std::array<double, kChoices>>;

ErrorTable MeasureErrors(std::span<const float> c, size_t rank) {
  const size_t tokens = c.size() / rank;
  ErrorTable table(rank);
  for (size_t first = 0; first < rank; ++first) {
    for (size_t s = 0; s < kGroupSizes.size() && first + kGroupSizes[s] <= rank; ++s) {
      for (size_t t = 0; t < tokens; ++t) {
        const auto errors = GroupErrors(c.data() + t * rank + first, kGroupSizes[s]);
        for (size_t type = 0; type < kComponentTypes; ++type) {
          table[first][s * kComponentTypes + type] += errors[type] / static_cast<double>(tokens);
        }
      }
    }
  }
  return table;
}

// The plan of least error + multiplier * bits.
ComponentPlan BestPlan(const ErrorTable& errors, double multiplier) {
  const size_t rank = errors.size();
  std::vector<double> best(rank + 1);  // of all components from one on
  std::vector<ComponentGroup> groups(rank);
  for (size_t first = rank; first-- > 0;) {
    best[first] = std::numeric_limits<double>::infinity();
    for (size_t choice = 0; choice < kChoices; ++choice) {
      const uint32_t size = kGroupSizes[choice / kComponentTypes];
      const auto type = static_cast<ComponentType>(choice % kComponentTypes);
      if (first + size > rank) break;
      const double cost = errors[first][choice] +
                          multiplier * static_cast<double>(GroupBits(size, type)) +
                          best[first + size];
      if (cost >= best[first]) continue;
      best[first] = cost;
      groups[first] = {static_cast<uint16_t>(size), type};
    }
  }
  ComponentPlan plan;
  for (size_t at = 0; at < rank; at += groups[at].size) plan.push_back(groups[at]);
  while (!plan.empty() && plan.back().type == ComponentType::kDropped) plan.pop_back();
  return plan;
}

}  // namespace

size_t PlannedComponents(const ComponentPlan& plan) {
  size_t count = 0;
  for (const ComponentGroup& group : plan) count += group.size;
  return count;
}

uint64_t PlannedBits(const ComponentPlan& plan) {
  uint64_t bits = 0;
  for (const ComponentGroup& group : plan) bits += GroupBits(group.size, group.type);
  return bits;
}

ComponentPlan MakeComponentPlan(std::span<const float> c, size_t rank, uint64_t budget) {
  const ErrorTable errors = MeasureErrors(c, rank);
  double high = 1e-30;  // a multiplier too large for nothing to be dropped
  for (const auto& e : errors) high += e[0];
  ComponentPlan plan = BestPlan(errors, 0);
  if (PlannedBits(plan) <= budget) return plan;
  double low = high * 1e-15;
  plan.clear();
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = std::sqrt(low * high);
    ComponentPlan tried = BestPlan(errors, middle);
    if (PlannedBits(tried) <= budget) {
      high = middle;
      plan = std::move(tried);
    } else {
      low = middle;
    }
  }
  return plan;
}

size_t EncodedComponentBytes(const ComponentPlan& plan, size_t tokens) {
  size_t bytes = 0;
  for (const ComponentGroup& group : plan) bytes += GroupBytes(group, tokens);
  return bytes;
}

bool EncodeComponents(const ComponentPlan& plan, const float* c, size_t tokens, size_t rank,
                      std::string& out) {
  const size_t begin = out.size();
  out.resize(begin + EncodedComponentBytes(plan, tokens));
  auto* at = reinterpret_cast<uint8_t*>(out.data()) + begin;
  std::vector<float> values, shifts(tokens), scales(tokens);
  std::vector<uint8_t> codes;
  for (const ComponentGroup& group : plan) {
    const size_t n = tokens * group.size;
    values.resize(n), codes.resize(n);
    for (size_t t = 0; t < tokens; ++t) {
      std::copy_n(c + t * rank, group.size, values.data() + t * group.size);
    }
    c += group.size;
    if (group.type == ComponentType::kDropped) continue;
    if (group.type == ComponentType::kFp8) {
      for (size_t t = 0; t < tokens; ++t) {
        const std::span<float> row(values.data() + t * group.size, group.size);
        const auto [low, high] = std::minmax_element(row.begin(), row.end());
        shifts[t] = HalfToFloat(FloatToHalf((*low + *high) * 0.5f));
        float top = 0;
        for (float& x : row) top = std::max(top, std::abs(x -= shifts[t]));
        scales[t] = HalfToFloat(FloatToHalf(top));
        if (!std::isfinite(shifts[t]) || !std::isfinite(scales[t])) return false;
      }
      MinifloatLoops::Best().encode(values.data(), tokens, group.size, scales.data(), codes.data());
    } else if (!AffineLoops::Best().encode_rows(
                   {tokens, group.size, group.size, BitsOf(group.type)}, values.data(),
                   scales.data(), shifts.data(), codes.data())) {
      return false;
    }
    StoreHalves(shifts.data(), tokens, at);
    StoreHalves(scales.data(), tokens, at + 2 * tokens);
    PackBits(codes.data(), n, BitsOf(group.type), at + 4 * tokens);
    at += GroupBytes(group, tokens);
  }
  return true;
}

bool DecodeComponents(const ComponentPlan& plan, const uint8_t* bytes, size_t tokens, size_t rank,
                      float* c) {
  std::fill_n(c, tokens * rank, 0.0f);
  std::vector<float> values, shifts(tokens), scales(tokens);
  std::vector<uint8_t> codes;
  for (const ComponentGroup& group : plan) {
    if (group.type != ComponentType::kDropped) {
      const size_t n = tokens * group.size;
      values.resize(n), codes.resize(n);
      if (!LoadHalves(bytes, tokens, shifts.data()) ||
          !LoadHalves(bytes + 2 * tokens, tokens, scales.data())) {
        return false;
      }
      UnpackBits(bytes + 4 * tokens, n, BitsOf(group.type), codes.data());
      if (group.type == ComponentType::kFp8) {
        if (!MinifloatLoops::Best().decode(codes.data(), tokens, group.size, scales.data(),
                                           values.data())) {
          return false;
        }
        for (size_t i = 0; i < n; ++i) values[i] += shifts[i / group.size];
      } else {
        AffineLoops::Best().decode_rows({tokens, group.size, group.size, BitsOf(group.type)},
                                        scales.data(), shifts.data(), codes.data(), values.data());
      }
      for (size_t t = 0; t < tokens; ++t) {
        std::copy_n(values.data() + t * group.size, group.size, c + t * rank);
      }
      bytes += GroupBytes(group, tokens);
    }
    c += group.size;
  }
  return true;
}

}  // namespace kvstow
