#include "kernels/methods/nuq_run_codec.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "kernels/calibration/calibration_fields.h"
#include "kernels/entropy/bit_pack.h"
#include "kernels/methods/calibration_sample.h"
#include "kernels/methods/vector_run_codec.h"
#include "kernels/page/convert.h"
#include "kernels/page/half.h"
#include "kernels/quantize/loops.h"
#include "kernels/quantize/outlier_values.h"
#include "kernels/quantize/scalar_lloyd.h"

namespace kvstow {
namespace {

constexpr uint32_t kLeastBits = 2, kMostBits = 4;
constexpr size_t kBooks = kMostBits - kLeastBits + 1;
constexpr size_t kFitValues = 200'000;  // that a codebook is fitted to

// K or V of one layer.
struct NuqSlab {
  std::vector<float> lows, highs;                // [width] of K; empty of V
  std::array<std::vector<float>, kBooks> books;  // of 2, 3 and 4 bits
};

struct NuqTables final : CalibratedTables {
  float outliers = 0;
  std::vector<NuqSlab> slabs;  // VectorSlab::index
};

// Values outside on each side of W.
size_t Outside(double share, size_t width) {
  const auto count = static_cast<size_t>(std::lround(share / 2 * static_cast<double>(width)));
  return std::min(count, (width - 1) / 2);
}

// The range within which all but `outside` values lie on each side.
std::pair<float, float> RangeOf(std::vector<float>& values, size_t outside) {
  const auto low = values.begin() + static_cast<std::ptrdiff_t>(outside);
  std::nth_element(values.begin(), low, values.end());
  const float least = *low;
  const auto high = values.end() - 1 - static_cast<std::ptrdiff_t>(outside);
  std::nth_element(values.begin(), high, values.end());
  return {least, *high};
}

struct Scale {
  float middle = 0, half = 0, inverse = 0;
  Scale(float low, float high) : middle((low + high) * 0.5f), half((high - low) * 0.5f) {
    inverse = half > 0 ? 1 / half : 0;
  }
};

class NuqCoder final : public VectorCoder {
 public:
  NuqCoder(const KvSpec& spec, std::shared_ptr<const NuqTables> tables, uint32_t bits)
      : spec_(spec), tables_(std::move(tables)), bits_(bits) {}

  bool Encode(LayerRange layers, const float* x, size_t tokens, std::string& out) const override {
    const std::vector<VectorSlab> slabs = SlabsOfVectors(spec_, layers);
    const size_t stride = slabs.back().column + slabs.back().width;
    std::vector<float> values;
    for (const VectorSlab& slab : slabs) {
      values.resize(tokens * slab.width);
      for (size_t t = 0; t < tokens; ++t) {
        std::copy_n(x + t * stride + slab.column, slab.width, values.data() + t * slab.width);
      }
      if (!EncodeSlab(slab, values, out)) return false;
    }
    return true;
  }

  absl::Status Decode(LayerRange layers, std::span<const uint8_t> body, size_t tokens,
                      float* x) const override {
    const std::vector<VectorSlab> slabs = SlabsOfVectors(spec_, layers);
    const size_t stride = slabs.back().column + slabs.back().width;
    for (const VectorSlab& slab : slabs) {
      if (body.size() < FixedBytes(slab, tokens)) return absl::DataLossError("codes are cut off");
      std::vector<float> values(tokens * slab.width);
      KVSTOW_ASSIGN_OR_RETURN(const size_t read, DecodeSlab(slab, body, tokens, values));
      body = body.subspan(read);
      for (size_t t = 0; t < tokens; ++t) {
        std::copy_n(values.data() + t * slab.width, slab.width, x + t * stride + slab.column);
      }
    }
    if (body.empty()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(body.size(), " bytes follow the last outlier"));
  }

 private:
  const std::vector<float>& BookOf(const VectorSlab& slab) const {
    return tables_->slabs[slab.index].books[bits_ - kLeastBits];
  }

  // All but the outliers.
  size_t FixedBytes(const VectorSlab& slab, size_t tokens) const {
    return (slab.part == Part::kV ? 4 * tokens : 0) + PackedBytes(tokens * slab.width, bits_);
  }

  bool EncodeSlab(const VectorSlab& slab, const std::vector<float>& values,
                  std::string& out) const {
    const size_t width = slab.width, tokens = values.size() / width;
    const NuqSlab& table = tables_->slabs[slab.index];
    std::vector<uint8_t> codes(values.size()), left_out(values.size());
    std::vector<float> lows(tokens), highs(tokens), row(width);
    const size_t outside = Outside(tables_->outliers, width);
    for (size_t t = 0; t < tokens; ++t) {
      const float* const x = values.data() + t * width;
      uint8_t* const left = left_out.data() + t * width;
      if (slab.part == Part::kK) {
        for (size_t c = 0; c < width; ++c) {
          left[c] = x[c] < table.lows[c] || x[c] > table.highs[c];
          const Scale scale(table.lows[c], table.highs[c]);
          row[c] = (x[c] - scale.middle) * scale.inverse;
        }
      } else {
        row.assign(x, x + width);
        const auto [low, high] = RangeOf(row, outside);
        if (!RoundToHalf(low, lows[t]) || !RoundToHalf(high, highs[t])) return false;
        const Scale scale(lows[t], highs[t]);
        for (size_t c = 0; c < width; ++c) {
          left[c] = x[c] < low || x[c] > high;
          row[c] = (x[c] - scale.middle) * scale.inverse;
        }
      }
      CodebookLoops::Best().nearest(BookOf(slab), row.data(), width, 1, codes.data() + t * width);
    }
    const size_t at = out.size();
    out.resize(at + FixedBytes(slab, tokens));
    auto* body = reinterpret_cast<uint8_t*>(out.data()) + at;
    if (slab.part == Part::kV) {
      StoreHalves(lows.data(), tokens, body);
      StoreHalves(highs.data(), tokens, body + 2 * tokens);
      body += 4 * tokens;
    }
    PackBits(codes.data(), codes.size(), bits_, body);
    return AppendOutliers(left_out, values.data(), width, out);
  }

  // The number of bytes read; the caller has checked that FixedBytes are there.
  absl::StatusOr<size_t> DecodeSlab(const VectorSlab& slab, std::span<const uint8_t> body,
                                    size_t tokens, std::vector<float>& values) const {
    const size_t width = slab.width;
    const NuqSlab& table = tables_->slabs[slab.index];
    const std::vector<float>& book = BookOf(slab);
    std::vector<float> lows(tokens), highs(tokens);
    const uint8_t* at = body.data();
    if (slab.part == Part::kV) {
      if (!LoadHalves(at, tokens, lows.data()) ||
          !LoadHalves(at + 2 * tokens, tokens, highs.data()))
        return absl::DataLossError("a range of V is not finite");
      at += 4 * tokens;
    }
    std::vector<uint8_t> codes(values.size());
    UnpackBits(at, codes.size(), bits_, codes.data());
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t t = i / width, c = i % width;
      const Scale scale =
          slab.part == Part::kV ? Scale(lows[t], highs[t]) : Scale(table.lows[c], table.highs[c]);
      values[i] = book[codes[i]] * scale.half + scale.middle;
    }
    const size_t fixed = FixedBytes(slab, tokens);
    KVSTOW_ASSIGN_OR_RETURN(const size_t read,
                            ReadOutliers(body.subspan(fixed), tokens, width, values.data()));
    return fixed + read;
  }

  static bool RoundToHalf(float x, float& rounded) {
    const uint16_t half = FloatToHalf(x);
    rounded = HalfToFloat(half);
    return IsFiniteHalf(half);
  }

  const KvSpec spec_;
  const std::shared_ptr<const NuqTables> tables_;
  const uint32_t bits_;
};

absl::StatusOr<double> ReadOutlierShare(const OpArguments& arguments) {
  return arguments.Real("outliers", 0.01, 0, 0.2);
}

// Returns the cost of an error of one unit in each channel of a slab, without its scale.
std::vector<float> ChannelCosts(const KvSpec& spec, const VectorSlab& slab,
                                const ModelStats& stats) {
  const bool k = slab.part == Part::kK;
  const std::vector<float>& metric = k ? stats.metric_k : stats.metric_v;
  const std::vector<float>& gain = k ? stats.gain_k : stats.gain_v;
  std::vector<float> costs(slab.width, 1);
  const size_t dim = slab.width / spec.kv_heads;
  for (size_t c = 0; c < slab.width && !gain.empty(); ++c) {
    const size_t head = slab.layer * spec.kv_heads + c / dim, i = c % dim;
    costs[c] = std::max(gain[head] * gain[head] * metric[(head * dim + i) * dim + i], 0.0f);
  }
  return costs;
}

// Ranges of a slab of the sample, and its codebooks.
NuqSlab FitSlab(const VectorSlab& slab, std::vector<float> x, const std::vector<float>& costs,
                double outliers) {
  NuqSlab out;
  const size_t width = slab.width, tokens = x.size() / width;
  std::vector<float> lows(std::max(width, tokens)), highs(lows.size()), values;
  const bool k = slab.part == Part::kK;
  for (size_t i = 0; i < (k ? width : tokens); ++i) {
    if (k) {
      values.clear();
      for (size_t t = 0; t < tokens; ++t) values.push_back(x[t * width + i]);
    } else {
      values.assign(x.data() + i * width, x.data() + (i + 1) * width);
    }
    std::tie(lows[i], highs[i]) = RangeOf(values, Outside(outliers, values.size()));
  }
  const size_t every = std::max<size_t>(x.size() / kFitValues, 1);  // tokens
  std::vector<WeightedValue> units;
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t t = i / width, at = k ? i % width : t;
    const Scale scale(lows[at], highs[at]);
    if (t % every != 0 || x[i] < lows[at] || x[i] > highs[at] || !(scale.half > 0)) continue;
    units.push_back(
        {(x[i] - scale.middle) * scale.inverse, costs[i % width] * scale.half * scale.half});
  }
  for (size_t b = 0; b < kBooks; ++b) {
    out.books[b] = FitCodebook(units, size_t{1} << (kLeastBits + b));
  }
  if (k) {
    lows.resize(width), highs.resize(width);
    out.lows = std::move(lows), out.highs = std::move(highs);
  }
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeNuqRunCodec(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"bits", "outliers", "first", "last", "blob"}));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t bits, arguments.Number("bits", 3, kLeastBits, kMostBits));
  KVSTOW_ASSIGN_OR_RETURN(const double outliers, ReadOutlierShare(arguments));
  KVSTOW_ASSIGN_OR_RETURN(const RawTokens raw_tokens, ReadRawTokens(arguments, 1));
  KVSTOW_ASSIGN_OR_RETURN(auto tables,
                          TablesFor<NuqTables>(arguments, spec, std::move(calibration)));
  if (tables->outliers != static_cast<float>(outliers)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "op 'nuq': outliers=", outliers, ", and the calibration was made for ", tables->outliers));
  }
  return MakeVectorRunCodec(spec, 1, raw_tokens,
                            std::make_unique<NuqCoder>(spec, std::move(tables), bits));
}

absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParseNuqTables(
    const CalibrationShape& shape, std::span<const uint8_t> body) {
  ByteReader in(body);
  const auto tables = std::make_shared<NuqTables>();
  tables->outliers = in.Get<float>();
  if (!(tables->outliers >= 0 && tables->outliers <= 1)) {
    return absl::DataLossError("its share of outliers is out of range");
  }
  for (uint32_t slab = 0; slab < 2 * shape.layers; ++slab) {
    if (slab % 2 == 1 && shape.head_dim_v == 0) continue;
    const size_t width = slab % 2 == 0 ? size_t{shape.kv_heads} * shape.head_dim_k : 0;
    NuqSlab& table = tables->slabs.emplace_back();
    bool ok = ReadFloats(in, width, table.lows) && ReadFloats(in, width, table.highs);
    for (size_t b = 0; b < kBooks && ok; ++b) {
      ok = ReadFloats(in, size_t{1} << (kLeastBits + b), table.books[b]) &&
           std::is_sorted(table.books[b].begin(), table.books[b].end());
    }
    for (size_t c = 0; c < width && ok; ++c) ok = table.lows[c] <= table.highs[c];
    if (!ok) return absl::DataLossError(absl::StrCat("slab ", slab, " is damaged"));
  }
  if (in.remaining() > 0) return absl::DataLossError("bytes follow its last codebook");
  return tables;
}

absl::StatusOr<std::unique_ptr<CalibrationFit>> StartNuqFit(const KvSpec& spec,
                                                            const OpArguments& arguments,
                                                            const ModelStats& stats) {
  KVSTOW_ASSIGN_OR_RETURN(const double outliers, ReadOutlierShare(arguments));
  if (std::max(SlabValues(spec, Part::kK, 1), SlabValues(spec, Part::kV, 1)) > kMaxOutlierColumns) {
    return absl::InvalidArgumentError(
        absl::StrCat("op 'nuq': a token of a layer may have ", kMaxOutlierColumns, " values"));
  }
  return MakeSampledFit(spec, stats, 1, "nuq", [spec, stats, outliers](const TokenSample& sample) {
    ByteWriter out;
    out.Put(static_cast<float>(outliers));
    for (const VectorSlab& slab : SlabsInOrder(spec)) {
      const NuqSlab fitted = FitSlab(slab, sample.Columns(slab.column, slab.width),
                                     ChannelCosts(spec, slab, stats), outliers);
      PutFloats(fitted.lows, out);
      PutFloats(fitted.highs, out);
      for (const std::vector<float>& book : fitted.books) PutFloats(book, out);
    }
    return absl::StatusOr<std::string>(std::move(out).Take());
  });
}

}  // namespace kvstow
