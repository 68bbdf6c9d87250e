#include "kernels/methods/waterfill_run_codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "kernels/calibration/calibration_basis.h"
#include "kernels/calibration/calibration_fields.h"
#include "kernels/calibration/calibration_moments.h"
#include "kernels/entropy/bit_pack.h"
#include "kernels/methods/calibration_sample.h"
#include "kernels/methods/vector_run_codec.h"
#include "kernels/page/convert.h"
#include "kernels/page/half.h"
#include "kernels/transform/dense_product.h"

namespace kvstow {
namespace {

constexpr uint32_t kMostBits = 8;
constexpr size_t kScaleBits = 16;   // of a head and token
constexpr size_t kPoolTokens = 64;  // of each head, that cells are fitted on
constexpr int kHalvings = 60;       // of the multiplier's range
constexpr float kLeastSigma = 1e-6f;

// Means of the cells for 1 to 8 bits, ascending, within [-1, 1].
using Cells = std::array<std::vector<float>, kMostBits + 1>;

size_t CellOf(float v, uint32_t bits) {
  const auto top = static_cast<float>((1u << bits) - 1);
  return static_cast<size_t>(
      std::clamp(std::floor((v + 1) * static_cast<float>(1u << bits) * 0.5f), 0.0f, top));
}

struct WaterfillHead {
  std::vector<float> mean;    // [dim]
  std::vector<uint8_t> bits;  // of each component that has some
  PackedMatrix encode;        // [dim, components]: to u
  PackedMatrix decode;        // [components, dim]
};

struct WaterfillTables final : CalibratedTables {
  float bits = 0;
  Cells cells;
  std::vector<WaterfillHead> heads;  // of K of the first layer, of its V, of K of the second, ...
};

size_t HeadBytes(const WaterfillHead& head, size_t tokens) {
  size_t bytes = head.bits.empty() ? 0 : 2 * tokens;
  for (const uint8_t b : head.bits) bytes += PackedBytes(tokens, b);
  return bytes;
}

class WaterfillCoder final : public VectorCoder {
 public:
  WaterfillCoder(const KvSpec& spec, std::shared_ptr<const WaterfillTables> tables)
      : spec_(spec), tables_(std::move(tables)) {}

  bool Encode(LayerRange layers, const float* x, size_t tokens, std::string& out) const override {
    bool ok = true;
    ForEachHead(layers, [&](const WaterfillHead& head, size_t column, size_t stride) {
      const size_t dim = head.mean.size(), n = head.bits.size();
      if (n == 0) return;
      std::vector<float> centred(tokens * dim), u(tokens * n), scales(tokens);
      for (size_t i = 0; i < centred.size(); ++i) {
        centred[i] = x[i / dim * stride + column + i % dim] - head.mean[i % dim];
      }
      MultiplyRows(centred.data(), tokens, head.encode, {0, n}, u.data(), n);
      for (size_t t = 0; t < tokens; ++t) {
        float top = 0;
        for (size_t i = 0; i < n; ++i) top = std::max(top, std::abs(u[t * n + i]));
        const uint16_t half = FloatToHalf(top);
        ok = ok && IsFiniteHalf(half);
        scales[t] = HalfToFloat(half);
      }
      size_t at = out.size();
      out.resize(at + HeadBytes(head, tokens));
      auto* body = reinterpret_cast<uint8_t*>(out.data()) + at;
      StoreHalves(scales.data(), tokens, body);
      body += 2 * tokens;
      std::vector<uint8_t> codes(tokens);
      for (size_t i = 0; i < n; ++i) {
        for (size_t t = 0; t < tokens; ++t) {
          const float v = scales[t] > 0 ? u[t * n + i] / scales[t] : 0;
          codes[t] = static_cast<uint8_t>(ok ? CellOf(v, head.bits[i]) : 0);
        }
        PackBits(codes.data(), tokens, head.bits[i], body);
        body += PackedBytes(tokens, head.bits[i]);
      }
    });
    return ok;
  }

  absl::Status Decode(LayerRange layers, std::span<const uint8_t> body, size_t tokens,
                      float* x) const override {
    bool ok = true;
    ForEachHead(layers, [&](const WaterfillHead& head, size_t column, size_t stride) {
      const size_t dim = head.mean.size(), n = head.bits.size(), bytes = HeadBytes(head, tokens);
      ok = ok && body.size() >= bytes;
      if (!ok) return;
      std::vector<float> u(tokens * n), values(tokens * dim), scales(tokens);
      if (n > 0) {
        ok = LoadHalves(body.data(), tokens, scales.data());
        const uint8_t* at = body.data() + 2 * tokens;
        std::vector<uint8_t> codes(tokens);
        for (size_t i = 0; i < n; ++i) {
          UnpackBits(at, tokens, head.bits[i], codes.data());
          at += PackedBytes(tokens, head.bits[i]);
          const std::vector<float>& cells = tables_->cells[head.bits[i]];
          for (size_t t = 0; t < tokens; ++t) u[t * n + i] = cells[codes[t]] * scales[t];
        }
        MultiplyRows(u.data(), tokens, head.decode, {0, dim}, values.data(), dim);
      }
      for (size_t i = 0; i < values.size(); ++i) {
        x[i / dim * stride + column + i % dim] = values[i] + head.mean[i % dim];
      }
      body = body.subspan(bytes);
    });
    if (ok && body.empty()) return absl::OkStatus();
    return absl::DataLossError("codes are damaged, cut off or followed by other bytes");
  }

 private:
  template <typename Visit>
  void ForEachHead(LayerRange layers, const Visit& visit) const {
    const std::vector<VectorSlab> slabs = SlabsOfVectors(spec_, layers);
    const size_t stride = slabs.back().column + slabs.back().width;
    for (const VectorSlab& slab : slabs) {
      const size_t first = slab.index * spec_.kv_heads;
      for (uint32_t h = 0; h < spec_.kv_heads; ++h) {
        visit(tables_->heads[first + h], slab.column + h * (slab.width / spec_.kv_heads), stride);
      }
    }
  }

  const KvSpec spec_;
  const std::shared_ptr<const WaterfillTables> tables_;
};

// One head while it is fitted: all components, the largest spread first.
struct HeadFit {
  std::vector<float> mean, sigma;
  Basis basis;
};

// Pairs of a coefficient over its token's scale and the square of that scale.
struct Pooled {
  float v = 0;
  double weight = 0;
};

WhiteningBlock Whitening(const KvSpec& spec, const VectorSlab& slab, uint32_t head,
                         const ModelStats& stats, const FirstMoments& first) {
  const size_t dim = slab.width / spec.kv_heads, at = size_t{slab.layer} * spec.kv_heads + head;
  const std::vector<float>& gain = slab.part == Part::kK ? stats.gain_k : stats.gain_v;
  const std::vector<float>& metric = slab.part == Part::kK ? stats.metric_k : stats.metric_v;
  if (gain.empty()) {
    return WhitenByScale(0, dim, 1 / std::max(first.Spread(0, dim), double{kLeastSigma}));
  }
  return WhitenByMetric(0, std::span(metric).subspan(at * dim * dim, dim * dim), dim, gain[at]);
}

HeadFit FitHead(const KvSpec& spec, const VectorSlab& slab, uint32_t head, const ModelStats& stats,
                const TokenSample& sample, std::vector<Pooled>& pool) {
  const size_t dim = slab.width / spec.kv_heads, tokens = sample.tokens();
  std::vector<float> x = sample.Columns(slab.column + head * dim, dim);
  FirstMoments first(dim);
  first.Add(x.data(), tokens);
  HeadFit fit{.mean = first.Mean()};
  for (size_t i = 0; i < x.size(); ++i) x[i] -= fit.mean[i % dim];
  SecondMoments second(dim);
  second.Add(x.data(), tokens);
  const WhiteningBlock block = Whitening(spec, slab, head, stats, first);
  fit.basis = FitBasis(std::move(second).Take(), dim, {&block, 1});
  PackedMatrix encode(dim, dim);
  for (size_t i = 0; i < dim; ++i) {
    encode.SetColumn(i, std::span(fit.basis.encode).subspan(i * dim, dim));
  }
  std::vector<float> c(tokens * dim);
  MultiplyRows(x.data(), tokens, encode, {0, dim}, c.data(), dim);
  std::vector<double> squares(dim);
  for (size_t i = 0; i < c.size(); ++i) squares[i % dim] += double{c[i]} * c[i];
  for (const double sum : squares) {
    const auto sigma = static_cast<float>(std::sqrt(sum / static_cast<double>(tokens)));
    fit.sigma.push_back(std::max(sigma, kLeastSigma));
  }
  const size_t every = std::max<size_t>(tokens / kPoolTokens, 1);
  for (size_t t = 0; t < tokens; t += every) {
    float top = 0;
    for (size_t i = 0; i < dim; ++i) top = std::max(top, std::abs(c[t * dim + i] / fit.sigma[i]));
    for (size_t i = 0; i < dim && top > 0; ++i) {
      pool.push_back({c[t * dim + i] / fit.sigma[i] / top, double{top} * top});
    }
  }
  return fit;
}

// The means of all cells, and the error of each number of bits for a coefficient of variance 1.
Cells FitCells(const std::vector<Pooled>& pool, std::array<double, kMostBits + 1>& errors) {
  Cells cells;
  double energy = 0;
  for (const Pooled& p : pool) energy += p.weight * p.v * p.v;
  errors = {1};
  for (uint32_t bits = 1; bits <= kMostBits; ++bits) {
    const size_t count = size_t{1} << bits;
    std::vector<double> sums(count), weights(count);
    for (const Pooled& p : pool) {
      sums[CellOf(p.v, bits)] += p.weight * p.v;
      weights[CellOf(p.v, bits)] += p.weight;
    }
    for (size_t i = 0; i < count; ++i) {
      const double middle = (2.0 * static_cast<double>(i) + 1) / static_cast<double>(count) - 1;
      cells[bits].push_back(static_cast<float>(weights[i] > 0 ? sums[i] / weights[i] : middle));
    }
    double error = 0;
    for (const Pooled& p : pool) {
      const double d = p.v - cells[bits][CellOf(p.v, bits)];
      error += p.weight * d * d;
    }
    errors[bits] = energy > 0 ? error / energy : 0;
  }
  return cells;
}

// Bits of every component of all heads: the least error for at most `budget` bits a token.
std::vector<std::vector<uint8_t>> ShareOut(const std::vector<HeadFit>& heads,
                                           const std::array<double, kMostBits + 1>& errors,
                                           double budget) {
  const auto share = [&](double multiplier, std::vector<std::vector<uint8_t>>& out) {
    double spent = 0;
    out.assign(heads.size(), {});
    for (size_t h = 0; h < heads.size(); ++h) {
      for (const float sigma : heads[h].sigma) {
        uint8_t best = 0;
        for (uint8_t b = 1; b <= kMostBits; ++b) {
          const double gained = double{sigma} * sigma * (errors[best] - errors[b]);
          if (gained > multiplier * (b - best)) best = b;
        }
        out[h].push_back(best);
        spent += best;
      }
    }
    return spent;
  };
  double low = 1e-20, high = 1e20;
  std::vector<std::vector<uint8_t>> bits;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = std::sqrt(low * high);
    (share(middle, bits) <= budget ? high : low) = middle;
  }
  share(high, bits);
  return bits;
}

std::string FitTables(const KvSpec& spec, const ModelStats& stats, double bits,
                      const TokenSample& sample) {
  std::vector<HeadFit> heads;
  std::vector<Pooled> pool;
  for (const VectorSlab& slab : SlabsInOrder(spec)) {
    for (uint32_t head = 0; head < spec.kv_heads; ++head) {
      heads.push_back(FitHead(spec, slab, head, stats, sample, pool));
    }
  }
  std::array<double, kMostBits + 1> errors{};
  const Cells cells = FitCells(pool, errors);
  const double budget =
      bits * static_cast<double>(sample.width()) - static_cast<double>(kScaleBits * heads.size());
  const auto shared = ShareOut(heads, errors, budget);
  ByteWriter out;
  out.Put(static_cast<float>(bits));
  for (const std::vector<float>& means : cells) PutFloats(means, out);
  for (size_t h = 0; h < heads.size(); ++h) {
    const HeadFit& head = heads[h];
    const size_t dim = head.mean.size();
    std::vector<float> encode, decode, encode_scales, decode_scales;
    std::vector<uint16_t> encode_halves, decode_halves;
    for (size_t i = 0; i < dim; ++i) {
      out.Put(shared[h][i]);
      if (shared[h][i] == 0) continue;
      for (size_t j = 0; j < dim; ++j) {
        encode.push_back(head.basis.encode[i * dim + j] / head.sigma[i]);
        decode.push_back(head.basis.decode[i * dim + j] * head.sigma[i]);
      }
    }
    HalveRows(encode, dim, encode_scales, encode_halves);
    HalveRows(decode, dim, decode_scales, decode_halves);
    PutFloats(head.mean, out);
    PutFloats(encode_scales, out);
    PutFloats(decode_scales, out);
    PutHalves(encode_halves, out);
    PutHalves(decode_halves, out);
  }
  return std::move(out).Take();
}

bool GetHead(ByteReader& in, size_t dim, WaterfillHead& head) {
  const auto bits = in.GetBytes(dim);
  for (const uint8_t b : bits) {
    if (b > kMostBits) return false;
    if (b > 0) head.bits.push_back(b);
  }
  const size_t n = head.bits.size();
  std::vector<float> encode_scales, decode_scales;
  if (!in.ok() || !ReadFloats(in, dim, head.mean) || !ReadFloats(in, n, encode_scales) ||
      !ReadFloats(in, n, decode_scales) || in.remaining() < 4 * n * dim) {
    return false;
  }
  head.encode = PackedMatrix(dim, n);
  head.decode = PackedMatrix(n, dim);
  return ReadRows(in, encode_scales, dim,
                  [&](size_t i, std::span<const float> row) { head.encode.SetColumn(i, row); }) &&
         ReadRows(in, decode_scales, dim,
                  [&](size_t i, std::span<const float> row) { head.decode.SetRow(i, row); });
}

absl::StatusOr<double> ReadBits(const OpArguments& arguments) {
  return arguments.Real("bits", 2.75, 0.25, 8);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeWaterfillRunCodec(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"bits", "first", "last", "blob"}));
  KVSTOW_ASSIGN_OR_RETURN(const double bits, ReadBits(arguments));
  KVSTOW_ASSIGN_OR_RETURN(const RawTokens raw_tokens, ReadRawTokens(arguments, 4));
  KVSTOW_ASSIGN_OR_RETURN(auto tables,
                          TablesFor<WaterfillTables>(arguments, spec, std::move(calibration)));
  if (tables->bits != static_cast<float>(bits)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "op 'waterfill': bits=", bits, ", and the calibration was made for ", tables->bits));
  }
  return MakeVectorRunCodec(spec, 1, raw_tokens,
                            std::make_unique<WaterfillCoder>(spec, std::move(tables)));
}

absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParseWaterfillTables(
    const CalibrationShape& shape, std::span<const uint8_t> body) {
  ByteReader in(body);
  const auto tables = std::make_shared<WaterfillTables>();
  tables->bits = in.Get<float>();
  bool ok = tables->bits > 0 && tables->bits <= 8;
  for (uint32_t bits = 1; bits <= kMostBits && ok; ++bits) {
    ok = ReadFloats(in, size_t{1} << bits, tables->cells[bits]);
  }
  if (!ok) return absl::DataLossError("its cells are damaged");
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (const uint32_t dim : {shape.head_dim_k, shape.head_dim_v}) {
      for (uint32_t head = 0; dim > 0 && head < shape.kv_heads; ++head) {
        if (GetHead(in, dim, tables->heads.emplace_back())) continue;
        return absl::DataLossError(absl::StrCat("layer ", layer, " is damaged"));
      }
    }
  }
  if (in.remaining() > 0) return absl::DataLossError("bytes follow its last head");
  return tables;
}

absl::StatusOr<std::unique_ptr<CalibrationFit>> StartWaterfillFit(const KvSpec& spec,
                                                                  const OpArguments& arguments,
                                                                  const ModelStats& stats) {
  KVSTOW_ASSIGN_OR_RETURN(const double bits, ReadBits(arguments));
  return MakeSampledFit(spec, stats, 1, "waterfill",
                        [spec, stats, bits](const TokenSample& sample) {
                          return absl::StatusOr<std::string>(FitTables(spec, stats, bits, sample));
                        });
}

}  // namespace kvstow
