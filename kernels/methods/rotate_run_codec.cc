#include "kernels/methods/rotate_run_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

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
#include "kernels/page/squared_error.h"
#include "kernels/quantize/loops.h"
#include "kernels/transform/dense_product.h"
#include "kernels/transform/hadamard.h"

namespace kvstow {
namespace {

constexpr std::array<float, 9> kClips = {1, .95f, .9f, .85f, .8f, .75f, .7f, .6f, .5f};
constexpr size_t kClipTokens = 512;  // of the sample, on which clips are compared

struct RotateOptions {
  uint32_t bits = 2, group = 128;
};

// K or V of one layer.
struct RotateSlab {
  float clip = 1;
  std::vector<PackedMatrix> forward, inverse;  // one a head, [dim, dim]
  size_t dim() const { return forward[0].rows(); }
};

struct RotateTables final : CalibratedTables {
  std::vector<RotateSlab> slabs;  // VectorSlab::index
};

// The rotations of a head, as they are stored: row j holds what channel j becomes.
RotateSlab MakeSlab(float clip, std::span<const uint16_t> halves, size_t heads, size_t dim) {
  RotateSlab slab{.clip = clip};
  std::vector<float> row(dim);
  for (size_t head = 0; head < heads; ++head) {
    slab.forward.emplace_back(dim, dim);
    slab.inverse.emplace_back(dim, dim);
    for (size_t j = 0; j < dim; ++j) {
      for (size_t i = 0; i < dim; ++i) row[i] = HalfToFloat(halves[(head * dim + j) * dim + i]);
      slab.forward[head].SetRow(j, row);
      slab.inverse[head].SetColumn(j, row);
    }
  }
  return slab;
}

// `x` and `y` are [tokens, heads dim]; a matrix a head.
void Turn(const std::vector<PackedMatrix>& matrices, const float* x, size_t tokens, float* y) {
  const size_t dim = matrices[0].rows(), width = matrices.size() * dim;
  std::vector<float> head_x(tokens * dim);
  for (size_t head = 0; head < matrices.size(); ++head) {
    for (size_t t = 0; t < tokens; ++t) {
      std::copy_n(x + t * width + head * dim, dim, head_x.data() + t * dim);
    }
    MultiplyRows(head_x.data(), tokens, matrices[head], {0, dim}, y + head * dim, width);
  }
}

AffineGroups GroupsOf(const RotateOptions& options, size_t tokens, size_t heads, size_t dim) {
  return {tokens * heads, dim, std::min<size_t>(options.group, dim), options.bits};
}
size_t CountGroups(const AffineGroups& g) { return g.rows * ((g.width + g.group - 1) / g.group); }
size_t SlabBytes(const AffineGroups& g) {
  return 4 * CountGroups(g) + PackedBytes(g.rows * g.width, g.bits);
}

// Pulls what lies outside the clipped range of each group to its ends.
void Clip(const AffineGroups& g, float clip, float* values) {
  for (size_t row = 0; row < g.rows; ++row, values += g.width) {
    for (size_t first = 0; first < g.width; first += g.group) {
      const std::span<float> group(values + first, std::min(g.group, g.width - first));
      const auto [low, high] = std::minmax_element(group.begin(), group.end());
      const float middle = (*low + *high) * 0.5f, half = (*high - *low) * 0.5f * clip;
      for (float& x : group) x = std::clamp(x, middle - half, middle + half);
    }
  }
}

class RotateCoder final : public VectorCoder {
 public:
  RotateCoder(const KvSpec& spec, std::shared_ptr<const RotateTables> tables, RotateOptions options)
      : spec_(spec), tables_(std::move(tables)), options_(options) {}

  bool Encode(LayerRange layers, const float* x, size_t tokens, std::string& out) const override {
    const std::vector<VectorSlab> slabs = SlabsOfVectors(spec_, layers);
    const size_t stride = slabs.back().column + slabs.back().width;
    for (const VectorSlab& slab : slabs) {
      const RotateSlab& table = tables_->slabs[slab.index];
      std::vector<float> values(tokens * slab.width), turned(values.size());
      for (size_t t = 0; t < tokens; ++t) {
        std::copy_n(x + t * stride + slab.column, slab.width, values.data() + t * slab.width);
      }
      Turn(table.forward, values.data(), tokens, turned.data());
      const AffineGroups g = GroupsOf(options_, tokens, spec_.kv_heads, table.dim());
      Clip(g, table.clip, turned.data());
      const size_t groups = CountGroups(g), at = out.size();
      std::vector<float> steps(groups), minima(groups);
      std::vector<uint8_t> codes(turned.size());
      if (!AffineLoops::Best().encode_rows(g, turned.data(), steps.data(), minima.data(),
                                           codes.data()))
        return false;
      out.resize(at + SlabBytes(g));
      auto* const body = reinterpret_cast<uint8_t*>(out.data()) + at;
      StoreHalves(steps.data(), groups, body);
      StoreHalves(minima.data(), groups, body + 2 * groups);
      PackBits(codes.data(), codes.size(), g.bits, body + 4 * groups);
    }
    return true;
  }

  absl::Status Decode(LayerRange layers, std::span<const uint8_t> body, size_t tokens,
                      float* x) const override {
    const std::vector<VectorSlab> slabs = SlabsOfVectors(spec_, layers);
    const size_t stride = slabs.back().column + slabs.back().width;
    for (const VectorSlab& slab : slabs) {
      const RotateSlab& table = tables_->slabs[slab.index];
      const AffineGroups g = GroupsOf(options_, tokens, spec_.kv_heads, table.dim());
      if (body.size() < SlabBytes(g)) return absl::DataLossError("codes are cut off");
      const size_t groups = CountGroups(g);
      std::vector<float> steps(groups), minima(groups), turned(tokens * slab.width);
      std::vector<float> values(turned.size());
      if (!LoadHalves(body.data(), groups, steps.data()) ||
          !LoadHalves(body.data() + 2 * groups, groups, minima.data())) {
        return absl::DataLossError("a scale is not finite");
      }
      std::vector<uint8_t> codes(turned.size());
      UnpackBits(body.data() + 4 * groups, codes.size(), g.bits, codes.data());
      AffineLoops::Best().decode_rows(g, steps.data(), minima.data(), codes.data(), turned.data());
      Turn(table.inverse, turned.data(), tokens, values.data());
      for (size_t t = 0; t < tokens; ++t) {
        std::copy_n(values.data() + t * slab.width, slab.width, x + t * stride + slab.column);
      }
      body = body.subspan(SlabBytes(g));
    }
    if (body.empty()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(body.size(), " bytes follow the last code"));
  }

 private:
  const KvSpec spec_;
  const std::shared_ptr<const RotateTables> tables_;
  const RotateOptions options_;
};

// The places 0..dim - 1 in bit-reversed order.
std::vector<size_t> BitReversed(size_t dim) {
  std::vector<size_t> out;
  const auto bits = static_cast<unsigned>(std::bit_width(dim - 1));
  for (size_t i = 0; i < std::bit_ceil(dim); ++i) {
    size_t reversed = 0;
    for (unsigned b = 0; b < bits; ++b) reversed |= (i >> b & 1) << (bits - 1 - b);
    if (reversed < dim) out.push_back(reversed);
  }
  return out;
}

// Rotation of one head: eigenvectors of `metric` [dim, dim], sorted and mixed, in fp16.
void AppendRotation(std::vector<double> metric, size_t dim, std::vector<uint16_t>& halves) {
  const std::vector<float> vectors = PrincipalComponents(std::move(metric), dim, dim);
  const std::vector<size_t> order = BitReversed(dim);
  std::vector<float> rows(dim * dim);
  for (size_t j = 0; j < dim; ++j) {
    for (size_t i = 0; i < dim; ++i) rows[j * dim + i] = vectors[order[i] * dim + j];
  }
  HadamardBlocks(dim, dim, rows.data());
  for (const float x : rows) halves.push_back(FloatToHalf(x));
}

std::vector<double> Covariance(const std::vector<float>& x, size_t width, size_t first,
                               size_t dim) {
  const size_t tokens = x.size() / width;
  FirstMoments mean(dim);
  std::vector<float> own(tokens * dim);
  for (size_t t = 0; t < tokens; ++t) {
    std::copy_n(x.data() + t * width + first, dim, own.data() + t * dim);
  }
  mean.Add(own.data(), tokens);
  const std::vector<float> means = mean.Mean();
  for (size_t i = 0; i < own.size(); ++i) own[i] -= means[i % dim];
  SecondMoments moments(dim);
  moments.Add(own.data(), tokens);
  return std::move(moments).Take();
}

// The clip with the least squared error on the sample's first tokens.
float BestClip(const RotateSlab& slab, const RotateOptions& options, const std::vector<float>& x) {
  const size_t heads = slab.forward.size(), width = heads * slab.dim();
  const size_t tokens = std::min(x.size() / width, kClipTokens);
  std::vector<float> turned(tokens * width), decoded(turned.size());
  Turn(slab.forward, x.data(), tokens, turned.data());
  const AffineGroups g = GroupsOf(options, tokens, heads, slab.dim());
  std::vector<float> steps(CountGroups(g)), minima(steps.size());
  std::vector<uint8_t> codes(turned.size());
  float best = 1;
  double least = -1;
  for (const float clip : kClips) {
    std::vector<float> clipped = turned;
    Clip(g, clip, clipped.data());
    if (!AffineLoops::Best().encode_rows(g, clipped.data(), steps.data(), minima.data(),
                                         codes.data()))
      continue;
    AffineLoops::Best().decode_rows(g, steps.data(), minima.data(), codes.data(), decoded.data());
    const double error = SquaredError(turned.data(), decoded.data(), turned.size());
    if (least >= 0 && error >= least) continue;
    least = error;
    best = clip;
  }
  return best;
}

std::string FitRotations(const KvSpec& spec, const ModelStats& stats, const RotateOptions& options,
                         const TokenSample& sample) {
  ByteWriter out;
  for (const VectorSlab& slab : SlabsInOrder(spec)) {
    const size_t dim = slab.width / spec.kv_heads;
    const std::vector<float> x = sample.Columns(slab.column, slab.width);
    std::vector<uint16_t> halves;
    for (uint32_t head = 0; head < spec.kv_heads; ++head) {
      std::vector<double> metric = Covariance(x, slab.width, head * dim, dim);
      if (slab.part == Part::kK && !stats.metric_k.empty()) {
        const size_t at = (size_t{slab.layer} * spec.kv_heads + head) * dim * dim;
        std::copy_n(stats.metric_k.data() + at, dim * dim, metric.begin());
      }
      AppendRotation(std::move(metric), dim, halves);
    }
    out.Put(BestClip(MakeSlab(1, halves, spec.kv_heads, dim), options, x));
    PutHalves(halves, out);
  }
  return std::move(out).Take();
}

absl::StatusOr<RotateOptions> ReadOptions(const OpArguments& arguments) {
  RotateOptions options;
  KVSTOW_ASSIGN_OR_RETURN(options.bits, arguments.Number("bits", 2, 1, 8));
  KVSTOW_ASSIGN_OR_RETURN(options.group, arguments.Number("group", 128, 1, kMaxPageTokens));
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeRotateRunCodec(
    const OpArguments& arguments, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"bits", "group", "first", "last", "blob"}));
  KVSTOW_ASSIGN_OR_RETURN(const RotateOptions options, ReadOptions(arguments));
  KVSTOW_ASSIGN_OR_RETURN(const RawTokens raw_tokens, ReadRawTokens(arguments, 4));
  KVSTOW_ASSIGN_OR_RETURN(auto tables,
                          TablesFor<RotateTables>(arguments, spec, std::move(calibration)));
  return MakeVectorRunCodec(spec, 1, raw_tokens,
                            std::make_unique<RotateCoder>(spec, std::move(tables), options));
}

absl::StatusOr<std::shared_ptr<const CalibratedTables>> ParseRotateTables(
    const CalibrationShape& shape, std::span<const uint8_t> body) {
  ByteReader in(body);
  const auto tables = std::make_shared<RotateTables>();
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    for (const size_t dim : {shape.head_dim_k, shape.head_dim_v}) {
      if (dim == 0) continue;
      const auto clip = in.Get<float>();
      const size_t count = shape.kv_heads * dim * dim;
      const auto bytes = in.GetBytes(2 * count);
      std::vector<uint16_t> halves(in.ok() ? count : 0);
      for (size_t i = 0; i < halves.size(); ++i) {
        halves[i] = static_cast<uint16_t>(bytes[2 * i] | bytes[2 * i + 1] << 8);
      }
      if (!in.ok() || !(clip > 0 && clip <= 1) ||
          !std::all_of(halves.begin(), halves.end(), IsFiniteHalf)) {
        return absl::DataLossError(absl::StrCat("layer ", layer, " is damaged"));
      }
      tables->slabs.push_back(MakeSlab(clip, halves, shape.kv_heads, dim));
    }
  }
  if (in.remaining() > 0) return absl::DataLossError("bytes follow its last layer");
  return tables;
}

absl::StatusOr<std::unique_ptr<CalibrationFit>> StartRotateFit(const KvSpec& spec,
                                                               const OpArguments& arguments,
                                                               const ModelStats& stats) {
  KVSTOW_ASSIGN_OR_RETURN(const RotateOptions options, ReadOptions(arguments));
  return MakeSampledFit(
      spec, stats, 1, "rotate", [spec, stats, options](const TokenSample& sample) {
        return absl::StatusOr<std::string>(FitRotations(spec, stats, options, sample));
      });
}

}  // namespace kvstow
