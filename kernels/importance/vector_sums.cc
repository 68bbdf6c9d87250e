#include "kernels/importance/vector_sums.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/importance/vector_sums.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef KVSTOW_KERNELS_IMPORTANCE_VECTOR_SUMS_FOLD
#define KVSTOW_KERNELS_IMPORTANCE_VECTOR_SUMS_FOLD
namespace kvstow {
namespace {

constexpr size_t kSums = 16;

HWY_INLINE float Fold(float* partial) {
  for (size_t half = kSums / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) partial[i] += partial[i + half];
  }
  return partial[0];
}

HWY_INLINE float Deviation(float sum, float squares, size_t dim) {
  const auto n = static_cast<float>(dim);
  const float mean = sum / n;
  return std::sqrt(std::max(0.0F, squares / n - mean * mean));
}

}  // namespace
}  // namespace kvstow
#endif

HWY_BEFORE_NAMESPACE();
namespace kvstow::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using D = hn::CappedTag<float, kSums>;
using V = hn::Vec<D>;
constexpr size_t kLanes = hn::MaxLanes(D()), kParts = kSums / kLanes;

// kSums partial sums in registers.
struct Partial {
  V sums[kParts];
  Partial() { std::fill(sums, sums + kParts, hn::Zero(D())); }
  // Adds term(channel), a vector from that channel on, for all whole vectors of channels.
  template <typename F>
  HWY_INLINE void AddWhole(size_t dim, const F& term) {
    for (size_t c = 0; c + kSums <= dim; c += kSums) {
      for (size_t v = 0; v < kParts; ++v) sums[v] = hn::Add(sums[v], term(c + v * kLanes));
    }
  }
  // The whole, with term(channel) of the channels left over.
  template <typename F>
  HWY_INLINE float Finish(size_t dim, const F& term) const {
    HWY_ALIGN float partial[kSums];
    for (size_t v = 0; v < kParts; ++v) hn::Store(sums[v], D(), partial + v * kLanes);
    for (size_t c = dim / kSums * kSums; c < dim; ++c) partial[c % kSums] += term(c);
    return Fold(partial);
  }
};

void DotProducts(const Vectors& rows, const float* y, size_t y_stride, float* out) {
  for (size_t i = 0; i < rows.count; ++i, y += y_stride) {
    const float* const x = rows[i];
    Partial sum;
    sum.AddWhole(rows.dim,
                 [&](size_t c) { return hn::Mul(hn::LoadU(D(), x + c), hn::LoadU(D(), y + c)); });
    out[i] = sum.Finish(rows.dim, [&](size_t c) { return x[c] * y[c]; });
  }
}

void AddScaled(const Vectors& rows, const float* scales, float* sum) {
  size_t c = 0;
  for (; c + kLanes <= rows.dim; c += kLanes) {
    V total = hn::LoadU(D(), sum + c);
    for (size_t i = 0; i < rows.count; ++i) {
      total = hn::Add(total, hn::Mul(hn::LoadU(D(), rows[i] + c), hn::Set(D(), scales[i])));
    }
    hn::StoreU(total, D(), sum + c);
  }
  for (; c < rows.dim; ++c) {
    for (size_t i = 0; i < rows.count; ++i) sum[c] += rows[i][c] * scales[i];
  }
}

void ChannelBounds(const Vectors& rows, float* low, float* high) {
  size_t c = 0;
  for (; c + kLanes <= rows.dim; c += kLanes) {
    V least = hn::LoadU(D(), rows.x + c), most = least;
    for (size_t i = 1; i < rows.count; ++i) {
      const V x = hn::LoadU(D(), rows[i] + c);
      least = hn::Min(least, x);
      most = hn::Max(most, x);
    }
    hn::StoreU(least, D(), low + c);
    hn::StoreU(most, D(), high + c);
  }
  for (; c < rows.dim; ++c) {
    low[c] = high[c] = rows.x[c];
    for (size_t i = 1; i < rows.count; ++i) {
      low[c] = std::min(low[c], rows[i][c]);
      high[c] = std::max(high[c], rows[i][c]);
    }
  }
}

void Deviations(const Vectors& rows, const float* low, const float* inverse, float* out) {
  for (size_t i = 0; i < rows.count; ++i) {
    const float* const x = rows[i];
    const auto whole = [&](size_t c) {
      return hn::Mul(hn::Sub(hn::LoadU(D(), x + c), hn::LoadU(D(), low + c)),
                     hn::LoadU(D(), inverse + c));
    };
    const auto one = [&](size_t c) { return (x[c] - low[c]) * inverse[c]; };
    const auto square = [](auto u) { return hn::Mul(u, u); };
    Partial sum, squares;
    sum.AddWhole(rows.dim, whole);
    squares.AddWhole(rows.dim, [&](size_t c) { return square(whole(c)); });
    out[i] =
        Deviation(sum.Finish(rows.dim, one),
                  squares.Finish(rows.dim, [&](size_t c) { return one(c) * one(c); }), rows.dim);
  }
}

void PairLengths(const Vectors& rows, float* out, size_t out_stride) {
  const size_t pairs = rows.dim / 2;
  for (size_t i = 0; i < rows.count; ++i, out += out_stride) {
    const float* const x = rows[i];
    size_t f = 0;
    for (; f + kLanes <= pairs; f += kLanes) {
      const V a = hn::LoadU(D(), x + f), b = hn::LoadU(D(), x + pairs + f);
      hn::StoreU(hn::Sqrt(hn::Add(hn::Mul(a, a), hn::Mul(b, b))), D(), out + f);
    }
    for (; f < pairs; ++f) out[f] = std::sqrt(x[f] * x[f] + x[f + pairs] * x[f + pairs]);
  }
}

void SumsAbove(const Vectors& rows, float above, float* out) {
  for (size_t i = 0; i < rows.count; ++i) {
    const float* const x = rows[i];
    Partial sum;
    sum.AddWhole(rows.dim, [&](size_t c) {
      const V value = hn::LoadU(D(), x + c);
      return hn::IfThenElseZero(hn::Gt(value, hn::Set(D(), above)), value);
    });
    out[i] = sum.Finish(rows.dim, [&](size_t c) { return x[c] > above ? x[c] : 0.0F; });
  }
}

const VectorSums* Loops() {
  static constexpr VectorSums kLoops{DotProducts, AddScaled,   ChannelBounds,
                                     Deviations,  PairLengths, SumsAbove};
  return &kLoops;
}

}  // namespace
}  // namespace kvstow::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvstow {

HWY_EXPORT(Loops);

namespace {

template <typename F>
float InOrder(size_t dim, const F& term) {
  float partial[kSums] = {};
  for (size_t c = 0; c < dim; ++c) partial[c % kSums] += term(c);
  return Fold(partial);
}

void DotProducts(const Vectors& x, const float* y, size_t y_stride, float* out) {
  for (size_t i = 0; i < x.count; ++i) {
    out[i] = InOrder(x.dim, [&](size_t c) { return x[i][c] * y[i * y_stride + c]; });
  }
}

void AddScaled(const Vectors& x, const float* scales, float* sum) {
  for (size_t i = 0; i < x.count; ++i) {
    for (size_t c = 0; c < x.dim; ++c) sum[c] += x[i][c] * scales[i];
  }
}

void ChannelBounds(const Vectors& x, float* low, float* high) {
  for (size_t c = 0; c < x.dim; ++c) {
    low[c] = high[c] = x[0][c];
    for (size_t i = 1; i < x.count; ++i) {
      low[c] = std::min(low[c], x[i][c]);
      high[c] = std::max(high[c], x[i][c]);
    }
  }
}

void Deviations(const Vectors& x, const float* low, const float* inverse, float* out) {
  for (size_t i = 0; i < x.count; ++i) {
    const auto u = [&](size_t c) { return (x[i][c] - low[c]) * inverse[c]; };
    out[i] =
        Deviation(InOrder(x.dim, u), InOrder(x.dim, [&](size_t c) { return u(c) * u(c); }), x.dim);
  }
}

void PairLengths(const Vectors& x, float* out, size_t out_stride) {
  const size_t pairs = x.dim / 2;
  for (size_t i = 0; i < x.count; ++i) {
    for (size_t f = 0; f < pairs; ++f) {
      const float a = x[i][f], b = x[i][f + pairs];
      out[i * out_stride + f] = std::sqrt(a * a + b * b);
    }
  }
}

void SumsAbove(const Vectors& x, float above, float* out) {
  for (size_t i = 0; i < x.count; ++i) {
    out[i] = InOrder(x.dim, [&](size_t c) { return x[i][c] > above ? x[i][c] : 0.0F; });
  }
}

}  // namespace

const VectorSums& VectorSums::Reference() {
  static constexpr VectorSums kLoops{DotProducts, AddScaled,   ChannelBounds,
                                     Deviations,  PairLengths, SumsAbove};
  return kLoops;
}
const VectorSums& VectorSums::Best() { return *HWY_DYNAMIC_DISPATCH(Loops)(); }

}  // namespace kvstow
#endif  // HWY_ONCE
