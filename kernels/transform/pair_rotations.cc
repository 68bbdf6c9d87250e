#include "kernels/transform/pair_rotations.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace kvstow {
namespace {

constexpr int kAngles = 16;
constexpr uint32_t kRotationBits = 15;  // 11 for the pair, 4 for the angle
static_assert(kRotationBlock * (kRotationBlock - 1) / 2 <= 1u << 11);

struct Turn {
  float cos, sin;
};

const Turn& TurnOf(uint8_t angle) {
  static const std::array<Turn, kAngles> turns = [] {
    std::array<Turn, kAngles> made;
    for (int a = 0; a < kAngles; ++a) {
      const double radians = (a - 7.5) * std::numbers::pi / 32;
      made[a] = {static_cast<float>(std::cos(radians)), static_cast<float>(std::sin(radians))};
    }
    return made;
  }();
  return turns[angle];
}

// A covariance matrix under rotation, with the pair of highest correlation at hand.
class Covariance {
 public:
  // Variances below `floor` are no worse than it.
  Covariance(const float* values, size_t tokens, size_t stride, uint32_t width, float floor)
      : width_(width),
        floor_(floor),
        matrix_(size_t{width} * kRotationBlock),
        inverse_(width),
        best_(width) {
    std::array<float, kRotationBlock> token{};  // of constant length: the sums below are vectors
    for (size_t t = 0; t < tokens; ++t, values += stride) {
      std::copy_n(values, width, token.begin());
      for (uint32_t i = 0; i < width; ++i) {
        const float v = token[i];
        float* row = &matrix_[size_t{i} * kRotationBlock];
        for (uint32_t j = 0; j < kRotationBlock; ++j) row[j] += v * token[j];
      }
    }
    for (float& c : matrix_) c /= static_cast<float>(tokens);
    for (uint32_t i = 0; i < width; ++i) inverse_[i] = 1 / std::max(At(i, i), floor_);
    for (uint32_t i = 0; i < width; ++i) FindBest(i);
  }

  // The pair of highest correlation, turned by the angle that removes it best.
  PairRotation Best() const {
    uint32_t i = 0;
    for (uint32_t k = 1; k < width_; ++k) {
      if (Correlation(k, best_[k]) > Correlation(i, best_[i])) i = k;
    }
    const uint32_t j = best_[i], a = std::min(i, j), b = std::max(i, j);
    const double angle = 0.5 * std::atan2(2.0 * At(a, b), double{At(a, a)} - At(b, b));
    // Turning by a quarter swaps the two, which saves nothing: the nearer of both angles.
    double inner = angle;
    if (inner > std::numbers::pi / 4) inner -= std::numbers::pi / 2;
    if (inner < -std::numbers::pi / 4) inner += std::numbers::pi / 2;
    const double place = std::floor(inner * 32 / std::numbers::pi + 8);
    return {static_cast<uint8_t>(a), static_cast<uint8_t>(b),
            static_cast<uint8_t>(std::clamp(place, 0.0, kAngles - 1.0))};
  }

  // By what factor the rotation shrinks the product of the pair's variances.
  double Shrinks(const PairRotation& r) const {
    const auto [c, s] = TurnOf(r.angle);
    const double aa = At(r.first, r.first), bb = At(r.second, r.second), ab = At(r.first, r.second);
    const double x = c * c * aa + 2 * c * s * ab + s * s * bb;
    const double y = s * s * aa - 2 * c * s * ab + c * c * bb;
    const auto above = [this](double v) { return std::max(v, double{floor_}); };
    return above(aa) * above(bb) / (above(x) * above(y));
  }

  void Apply(const PairRotation& r) {
    const auto [c, s] = TurnOf(r.angle);
    float* a = &matrix_[size_t{r.first} * kRotationBlock];
    float* b = &matrix_[size_t{r.second} * kRotationBlock];
    TurnRows(c, s, 1, a, b);
    TurnRows(c, s, kRotationBlock, &matrix_[r.first], &matrix_[r.second]);
    for (const uint32_t k : {uint32_t{r.first}, uint32_t{r.second}})
      inverse_[k] = 1 / std::max(At(k, k), floor_);
    FindBest(r.first);
    FindBest(r.second);
    for (uint32_t k = 0; k < width_; ++k) {
      if (k == r.first || k == r.second) continue;
      if (best_[k] == r.first || best_[k] == r.second) {
        FindBest(k);
      } else {
        for (const uint32_t j : {uint32_t{r.first}, uint32_t{r.second}}) {
          if (Correlation(k, j) > Correlation(k, best_[k])) best_[k] = j;
        }
      }
    }
  }

 private:
  float At(uint32_t i, uint32_t j) const { return matrix_[size_t{i} * kRotationBlock + j]; }

  // Its square, against variances that are worth bits.
  float Correlation(uint32_t i, uint32_t j) const {
    const float c = At(i, j);
    return c * c * inverse_[i] * inverse_[j];
  }

  void FindBest(uint32_t i) {
    uint32_t best = i == 0 ? 1 : 0;
    for (uint32_t j = 0; j < width_; ++j) {
      if (j != i && Correlation(i, j) > Correlation(i, best)) best = j;
    }
    best_[i] = best;
  }

  void TurnRows(float c, float s, size_t stride, float* a, float* b) const {
    for (uint32_t k = 0; k < width_; ++k, a += stride, b += stride) {
      const float x = *a, y = *b;
      *a = c * x + s * y;
      *b = c * y - s * x;
    }
  }

  const uint32_t width_;
  const float floor_;
  std::vector<float> matrix_, inverse_;  // inverse_ of variances, at least floor_
  std::vector<uint32_t> best_;
};

void TurnBlock(const PairRotation& r, float sign, float* x) {
  const Turn& turn = TurnOf(r.angle);
  const float c = turn.cos, s = turn.sin * sign;
  const float a = x[r.first], b = x[r.second];
  x[r.first] = c * a + s * b;
  x[r.second] = c * b - s * a;
}

}  // namespace

std::vector<uint32_t> RotationBlocks(uint32_t heads, uint32_t dim) {
  std::vector<uint32_t> widths;
  for (uint32_t h = 0; h < heads; ++h) {
    for (uint32_t at = 0; at < dim; at += kRotationBlock)
      widths.push_back(std::min(dim - at, kRotationBlock));
  }
  return widths;
}

BlockRotations FindRotations(const float* values, size_t tokens, size_t stride, uint32_t width,
                             double step) {
  BlockRotations out;
  if (width < 2) return out;
  // A variance of step^2 / 12 is where a coefficient stops to cost bits.
  Covariance covariance(values, tokens, stride, width,
                        static_cast<float>(std::max(step * step / 12, 1e-30)));
  // Half a bit a token for each halving of a variance.
  const double worth = std::exp2(2.0 * kRotationBits / static_cast<double>(tokens));
  while (out.size() < kMaxRotations) {
    const PairRotation best = covariance.Best();
    if (!(covariance.Shrinks(best) > worth)) break;
    covariance.Apply(best);
    out.push_back(best);
  }
  return out;
}

void Rotate(std::span<const PairRotation> rotations, size_t tokens, size_t stride, float* values) {
  for (size_t t = 0; t < tokens; ++t, values += stride) {
    for (const PairRotation& r : rotations) TurnBlock(r, 1, values);
  }
}

void RotateBack(std::span<const PairRotation> rotations, size_t tokens, size_t stride,
                float* values) {
  for (size_t t = 0; t < tokens; ++t, values += stride) {
    for (size_t i = rotations.size(); i-- > 0;) TurnBlock(rotations[i], -1, values);
  }
}

std::string SerializeRotations(std::span<const BlockRotations> blocks) {
  std::string out;
  for (const BlockRotations& block : blocks) out.push_back(static_cast<char>(block.size()));
  uint32_t pending = 0, held = 0;
  for (const BlockRotations& block : blocks) {
    for (const PairRotation& r : block) {
      const uint32_t pair = uint32_t{r.second} * (r.second - 1u) / 2 + r.first;
      pending |= (pair << 4 | r.angle) << held;
      for (held += kRotationBits; held >= 8; held -= 8, pending >>= 8)
        out.push_back(static_cast<char>(pending));
    }
  }
  if (held > 0) out.push_back(static_cast<char>(pending));
  return out;
}

absl::StatusOr<std::vector<BlockRotations>> ReadRotations(ByteReader& reader,
                                                          std::span<const uint32_t> widths) {
  std::vector<BlockRotations> blocks(widths.size());
  const std::span<const uint8_t> counts = reader.GetBytes(widths.size());
  size_t total = 0;
  for (const uint8_t count : counts) total += count;
  const std::span<const uint8_t> packed = reader.GetBytes((total * kRotationBits + 7) / 8);
  if (!reader.ok()) return absl::DataLossError("rotations: cut short");
  uint32_t pending = 0, held = 0;
  size_t next = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (uint32_t n = 0; n < counts[b]; ++n) {
      for (; held < kRotationBits; held += 8) pending |= uint32_t{packed[next++]} << held;
      const uint32_t pair = pending >> 4 & 0x7ff, angle = pending & 15;
      pending >>= kRotationBits;
      held -= kRotationBits;
      uint32_t second = 1;
      while (second * (second + 1) / 2 <= pair) ++second;
      if (second >= widths[b]) return absl::DataLossError("rotations: a channel out of range");
      blocks[b].push_back({static_cast<uint8_t>(pair - second * (second - 1) / 2),
                           static_cast<uint8_t>(second), static_cast<uint8_t>(angle)});
    }
  }
  return blocks;
}

}  // namespace kvstow
