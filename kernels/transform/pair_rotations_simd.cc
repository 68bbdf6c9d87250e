// Finding and applying rotations, once for each SIMD target, chosen at run time: the same bits.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numbers>
#include <utility>

#include "kernels/transform/pair_rotations.h"
#include "kernels/transform/transpose.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/transform/pair_rotations_simd.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef KVSTOW_KERNELS_TRANSFORM_PAIR_ROTATIONS_SIMD_
#define KVSTOW_KERNELS_TRANSFORM_PAIR_ROTATIONS_SIMD_
namespace kvstow {

constexpr int kAngles = 16;

struct Turn {
  float cos, sin;
};

inline const Turn& TurnOf(uint8_t angle) {
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

// The angle that comes nearest to diagonalising [[x, c], [c, y]], within an eighth of a turn:
// beyond that a rotation swaps the two as well, which saves nothing. tan of twice the angle is 2c /
// (x - y).
inline uint8_t AngleOf(float twice_c, float x_minus_y) {
  static const std::array<double, kAngles - 1> bounds = [] {
    std::array<double, kAngles - 1> made;
    for (int a = 1; a < kAngles; ++a) made[a - 1] = std::tan((a - 8) * std::numbers::pi / 16);
    return made;
  }();
  const double tangent = double{twice_c} / double{x_minus_y};
  uint8_t angle = 0;
  for (const double bound : bounds) angle += tangent >= bound ? 1 : 0;
  return angle;
}

}  // namespace kvstow
#endif  // KVSTOW_KERNELS_TRANSFORM_PAIR_ROTATIONS_SIMD_

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sums run over 16 lanes, whatever the vectors' length.
constexpr size_t kLanes = 16;
using D = hn::CappedTag<float, kLanes>;
constexpr size_t kVector = hn::MaxLanes(D());

// Rows a and b of `count` values, a multiple of kLanes, turned.
HWY_INLINE void TurnRows(Turn turn, size_t count, float* a, float* b) {
  const D d;
  const auto c = hn::Set(d, turn.cos), s = hn::Set(d, turn.sin);
  for (size_t i = 0; i < count; i += kVector) {
    const auto x = hn::LoadU(d, a + i), y = hn::LoadU(d, b + i);
    hn::StoreU(hn::Add(hn::Mul(c, x), hn::Mul(s, y)), d, a + i);
    hn::StoreU(hn::Sub(hn::Mul(c, y), hn::Mul(s, x)), d, b + i);
  }
}

// A covariance matrix under rotation, with the pair of highest correlation at hand.
class Covariance {
 public:
  // `values` [width, stride], `tokens` in each row. Variances below `floor` are no worse than it.
  Covariance(const float* values, size_t tokens, size_t stride, uint32_t width, float floor)
      : width_(width), floor_(floor) {
    std::vector<float> by_token(tokens * kRotationBlock);
    Transpose(values, width, tokens, stride, by_token.data(), kRotationBlock);
    const auto n = static_cast<float>(tokens);
    for (uint32_t i = 0; i < width; i += kRows) AddProducts(by_token, i);
    for (uint32_t i = 0; i < width; ++i) {
      for (uint32_t j = i; j < width; ++j) At(i, j) = At(j, i) = At(i, j) / n;
    }
    for (uint32_t i = 0; i < width; ++i) inverse_[i] = 1 / std::max(At(i, i), floor_);
    best_value_.fill(-1);
    for (uint32_t i = 0; i < width; ++i) FindBest(i);
  }

  // The pair of highest correlation, turned by the angle that removes it best.
  PairRotation Best() const {
    const uint32_t i = FirstOfMost(best_value_.data()), j = best_[i];
    const uint32_t a = std::min(i, j), b = std::max(i, j);
    return {static_cast<uint8_t>(a), static_cast<uint8_t>(b),
            AngleOf(2 * At(a, b), At(a, a) - At(b, b))};
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
    const Turn turn = TurnOf(r.angle);
    const auto [c, s] = turn;
    const uint32_t a = r.first, b = r.second;
    TurnRows(turn, kRotationBlock, &At(a, 0), &At(b, 0));
    const float aa = At(a, a), ab = At(a, b), ba = At(b, a), bb = At(b, b);
    At(a, a) = c * aa + s * ab;
    At(a, b) = At(b, a) = c * ab - s * aa;
    At(b, b) = c * bb - s * ba;
    for (uint32_t k = 0; k < width_; ++k) At(k, a) = At(a, k), At(k, b) = At(b, k);
    for (const uint32_t k : {a, b}) inverse_[k] = 1 / std::max(At(k, k), floor_);
    UpdateBest(a, b);
  }

 private:
  static constexpr uint32_t kRows = 4;  // of the matrix, summed together

  float& At(uint32_t i, uint32_t j) { return matrix_[size_t{i} * kRotationBlock + j]; }
  float At(uint32_t i, uint32_t j) const { return matrix_[size_t{i} * kRotationBlock + j]; }

  // Rows [first, first + kRows) from the diagonal's vectors on.
  HWY_INLINE void AddProducts(const std::vector<float>& by_token, uint32_t first) {
    const D d;
    constexpr size_t kStep = 2 * kVector;  // enough sums that no addition waits for the last
    for (size_t j = first / kStep * kStep; j < kRotationBlock; j += kStep) {
      hn::Vec<D> low[kRows], high[kRows];
      for (size_t r = 0; r < kRows; ++r) low[r] = high[r] = hn::Zero(d);
      for (size_t at = 0; at < by_token.size(); at += kRotationBlock) {
        const auto x0 = hn::LoadU(d, &by_token[at + j]);
        const auto x1 = hn::LoadU(d, &by_token[at + j + kVector]);
        for (size_t r = 0; r < kRows; ++r) {
          const auto y = hn::Set(d, by_token[at + first + r]);
          low[r] = hn::Add(low[r], hn::Mul(y, x0));
          high[r] = hn::Add(high[r], hn::Mul(y, x1));
        }
      }
      for (uint32_t r = 0; r < kRows; ++r) {
        hn::StoreU(low[r], d, &At(first + r, j));
        hn::StoreU(high[r], d, &At(first + r, j + kVector));
      }
    }
  }

  // Squares of the correlations with channel i, against variances that are worth bits; below 0 with
  // itself, 0 behind the width.
  HWY_INLINE void Correlations(uint32_t i, float* out) const {
    const D d;
    const auto inverse = hn::Set(d, inverse_[i]);
    for (size_t j = 0; j < kRotationBlock; j += kVector) {
      const auto c = hn::LoadU(d, &matrix_[i * kRotationBlock + j]);
      hn::Store(hn::Mul(hn::Mul(hn::Mul(c, c), inverse), hn::LoadU(d, &inverse_[j])), d, out + j);
    }
    out[i] = -1;
  }

  // Where the largest of kRotationBlock values stands first.
  HWY_INLINE static uint32_t FirstOfMost(const float* values) {
    const D d;
    auto most = hn::Load(d, values);
    for (size_t j = kVector; j < kRotationBlock; j += kVector)
      most = hn::Max(most, hn::Load(d, values + j));
    most = hn::MaxOfLanes(d, most);
    for (size_t j = 0; j < kRotationBlock; j += kVector) {
      const intptr_t at = hn::FindFirstTrue(d, hn::Eq(hn::Load(d, values + j), most));
      if (at >= 0) return static_cast<uint32_t>(j + static_cast<size_t>(at));
    }
    return 0;
  }

  HWY_INLINE void FindBest(uint32_t i) {
    HWY_ALIGN float with[kRotationBlock];
    Correlations(i, with);
    best_[i] = FirstOfMost(with);
    best_value_[i] = with[best_[i]];
    if (best_[i] >= width_ || best_[i] == i) best_[i] = i == 0 ? 1 : 0;
  }

  // Finds the best of all channels again, after the correlations with a and b have changed.
  HWY_INLINE void UpdateBest(uint32_t a, uint32_t b) {
    const D d;
    const hn::RebindToUnsigned<D> du;
    HWY_ALIGN float with_a[kRotationBlock], with_b[kRotationBlock];
    Correlations(a, with_a);
    Correlations(b, with_b);
    const auto is_a = hn::Set(du, a), is_b = hn::Set(du, b);
    uint64_t lost = 0;  // channels whose best was one of the two
    for (size_t k = 0; k < kRotationBlock; k += kVector) {
      auto best = hn::Load(du, &best_[k]);
      auto value = hn::Load(d, &best_value_[k]);
      const auto stale = hn::Or(hn::Eq(best, is_a), hn::Eq(best, is_b));
      uint8_t bits[8] = {};
      hn::StoreMaskBits(du, stale, bits);
      lost |= uint64_t{bits[0] | uint32_t{bits[1]} << 8} << k;
      for (const auto& [with, is] : {std::pair(with_a, is_a), std::pair(with_b, is_b)}) {
        const auto now = hn::Load(d, with + k);
        const auto better = hn::Gt(now, value);
        value = hn::IfThenElse(better, now, value);
        best = hn::IfThenElse(hn::RebindMask(du, better), is, best);
      }
      hn::Store(best, du, &best_[k]);
      hn::Store(value, d, &best_value_[k]);
    }
    std::fill(best_value_.begin() + width_, best_value_.end(), -1.0f);
    lost |= uint64_t{1} << a | uint64_t{1} << b;  // they were compared with each other alone
    for (; lost != 0; lost &= lost - 1) {
      const auto k = static_cast<uint32_t>(std::countr_zero(lost));
      if (k < width_) FindBest(k);
    }
  }

  const uint32_t width_;
  const float floor_;
  alignas(64) std::array<float, size_t{kRotationBlock} * kRotationBlock> matrix_{};
  alignas(64) std::array<float, kRotationBlock> inverse_{};  // of variances, at least floor_
  // With which other channel each correlates most, and how much; -1 behind the width.
  alignas(64) std::array<float, kRotationBlock> best_value_{};
  alignas(64) std::array<uint32_t, kRotationBlock> best_{};
};

void Find(const float* values, size_t tokens, size_t stride, uint32_t width, double floor,
          double worth, BlockRotations& out) {
  Covariance covariance(values, tokens, stride, width, static_cast<float>(floor));
  while (out.size() < kMaxRotations) {
    const PairRotation best = covariance.Best();
    if (!(covariance.Shrinks(best) > worth)) break;
    covariance.Apply(best);
    out.push_back(best);
  }
}

void Rotate(std::span<const PairRotation> rotations, size_t stride, float* values) {
  for (const PairRotation& r : rotations)
    TurnRows(TurnOf(r.angle), stride, values + r.first * stride, values + r.second * stride);
}

void RotateBack(std::span<const PairRotation> rotations, size_t stride, float* values) {
  for (size_t i = rotations.size(); i-- > 0;) {
    const PairRotation& r = rotations[i];
    const Turn turn = TurnOf(r.angle);
    TurnRows({turn.cos, -turn.sin}, stride, values + r.first * stride, values + r.second * stride);
  }
}

}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Find);
HWY_EXPORT(Rotate);
HWY_EXPORT(RotateBack);

BlockRotations FindRotations(const float* values, size_t tokens, size_t stride, uint32_t width,
                             double step) {
  BlockRotations out;
  if (width < 2) return out;
  // Half a bit a token for each halving of a variance.
  const double worth = std::exp2(2.0 * kRotationBits / static_cast<double>(tokens));
  // A variance of step^2 / 12 is where a coefficient stops to cost bits.
  HWY_DYNAMIC_DISPATCH(Find)
  (values, tokens, stride, width, std::max(step * step / 12, 1e-30), worth, out);
  return out;
}

void Rotate(std::span<const PairRotation> rotations, size_t stride, float* values) {
  HWY_DYNAMIC_DISPATCH(Rotate)(rotations, stride, values);
}

void RotateBack(std::span<const PairRotation> rotations, size_t stride, float* values) {
  HWY_DYNAMIC_DISPATCH(RotateBack)(rotations, stride, values);
}

}  // namespace kvstow
#endif  // HWY_ONCE
