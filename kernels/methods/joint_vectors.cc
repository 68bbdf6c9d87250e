#include "kernels/methods/joint_vectors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/page/convert.h"

namespace kvstow {

JointVectors::JointVectors(const KvSpec& spec, const Run& run, uint32_t before)
    : spec_(spec), rotations_(spec, run.layers, run.first_position, run.tokens, before) {
  for (const Part part : {Part::kK, Part::kV}) {
    const size_t row = SlabValues(spec, part, 1);
    for (uint32_t i = 0; row > 0 && i < run.layers.count; ++i) {
      slabs_.push_back(
          {part, run.layers.first + i, SlabOffset(spec, i, part, run.tokens), row, width_});
      width_ += row;
    }
  }
}

bool JointVectors::Gather(std::span<const uint8_t> raw, TokenRange tokens, float* x) const {
  std::vector<float> values;
  for (const Slab& slab : slabs_) {
    values.resize(tokens.count * slab.row);
    const uint8_t* from =
        raw.data() + slab.raw_offset + tokens.first * slab.row * DTypeBytes(spec_.dtype);
    if (!LoadFloats(spec_.dtype, from, values.size(), values.data())) return false;
    if (slab.part == Part::kK) {
      rotations_.Of(slab.layer).Undo(tokens.first, tokens.count, spec_.kv_heads, values.data());
    }
    for (size_t t = 0; t < tokens.count; ++t) {
      std::memcpy(x + t * width_ + slab.column, values.data() + t * slab.row,
                  slab.row * sizeof(float));
    }
  }
  return true;
}

void JointVectors::Scatter(const float* x, TokenRange tokens, std::span<uint8_t> raw) const {
  std::vector<float> values;
  for (const Slab& slab : slabs_) {
    values.resize(tokens.count * slab.row);
    for (size_t t = 0; t < tokens.count; ++t) {
      std::memcpy(values.data() + t * slab.row, x + t * width_ + slab.column,
                  slab.row * sizeof(float));
    }
    if (slab.part == Part::kK) {
      rotations_.Of(slab.layer).Redo(tokens.first, tokens.count, spec_.kv_heads, values.data());
    }
    uint8_t* to = raw.data() + slab.raw_offset + tokens.first * slab.row * DTypeBytes(spec_.dtype);
    StoreFloats(spec_.dtype, values.data(), values.size(), to);
  }
}

uint32_t CountFirstTokens(uint64_t first_position, uint32_t tokens, uint32_t end) {
  if (first_position >= end) return 0;
  return std::min<uint32_t>(tokens, end - static_cast<uint32_t>(first_position));
}

size_t EnergyCoefficients(std::span<const float> sigma, float step) {
  size_t n = sigma.size();
  while (n > 0 && sigma[n - 1] < step / 4) --n;
  return n < 8 ? std::max<size_t>(sigma.size() / 4, 1) : n;
}

uint8_t EnergyClass(std::span<const float> coefficients, std::span<const float> sigma) {
  const size_t n = std::min(sigma.size(), coefficients.size());
  float sum = 0;
  for (size_t i = 0; i < n; ++i) {
    const float u = coefficients[i] / sigma[i];
    sum += u * u;
  }
  const float octaves = std::round(std::log2(sum / static_cast<float>(n) + 1e-9f));
  const float middle = kPlaneEnergies / 2;
  return static_cast<uint8_t>(std::clamp(octaves + middle, 0.0f, kPlaneEnergies - 1.0f));
}

float EnergyFactor(uint8_t energy_class) {
  return std::exp2((static_cast<float>(energy_class) - kPlaneEnergies / 2) / 2);
}

absl::Status GatherToCalibrate(const KvSpec& spec, LayerRange layers, const PageToEncode& page,
                               std::vector<float>& out) {
  if (page.tokens < 1 || page.tokens > kMaxPageTokens ||
      page.raw.size() != PageBytes(spec, page.tokens)) {
    return absl::InvalidArgumentError(absl::StrCat("a page of ", page.tokens, " tokens and ",
                                                   page.raw.size(), " bytes to calibrate on"));
  }
  const uint32_t first = CountFirstTokens(page.first_position, page.tokens);
  const JointVectors vectors(spec, {layers, page.tokens, page.first_position});
  out.resize((page.tokens - first) * vectors.width());
  const size_t layer_bytes = LayerBytes(spec, page.tokens);
  const auto raw = page.raw.subspan(layers.first * layer_bytes, layers.count * layer_bytes);
  if (out.empty() || vectors.Gather(raw, {first, page.tokens - first}, out.data())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("layers from ", layers.first, " on have NaN or Inf"));
}

}  // namespace kvstow
