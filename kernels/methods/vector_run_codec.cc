#include "kernels/methods/vector_run_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/methods/joint_vectors.h"
#include "kernels/page/squared_error.h"

namespace kvstow {
namespace {

class VectorRunCodec final : public RunCodec {
 public:
  VectorRunCodec(const KvSpec& spec, uint32_t layers_per_run, RawTokens raw_tokens,
                 std::unique_ptr<const VectorCoder> coder)
      : spec_(spec),
        layers_per_run_(layers_per_run),
        raw_tokens_(raw_tokens),
        coder_(std::move(coder)) {}

  bool exact() const override { return false; }
  uint32_t levels() const override { return 1; }

  absl::StatusOr<std::vector<EncodedLevel>> Encode(const Run& run,
                                                   std::span<const uint8_t> raw) const override {
    const TokenRange coded = Coded(run);
    const JointVectors vectors(spec_, run);
    std::vector<float> x(run.tokens * vectors.width());
    std::string body(RawBytes(run), 0);
    CopyRaw(run, run.layers, reinterpret_cast<uint8_t*>(body.data()), raw,
            [](uint8_t* at, const uint8_t* slab, size_t n) { std::memcpy(at, slab, n); });
    const float* const coded_x = x.data() + coded.first * vectors.width();
    if (!vectors.Gather(raw, {0, run.tokens}, x.data()) ||
        !std::isfinite(SquaredSum(x.data(), x.size())) ||
        (coded.count > 0 && !coder_->Encode(run.layers, coded_x, coded.count, body))) {
      return absl::OutOfRangeError(absl::StrCat("layers from ", run.layers.first,
                                                " on have NaN, Inf or values beyond their scales"));
    }
    std::vector<float> decoded(coded.count * vectors.width());
    const auto rest = AsBytes(body).subspan(RawBytes(run));
    if (coded.count > 0) {
      KVSTOW_RETURN_IF_ERROR(coder_->Decode(run.layers, rest, coded.count, decoded.data()));
    }
    const double gain = Gain(run, vectors.width(), x, coded, decoded);
    std::vector<EncodedLevel> out;
    out.push_back({SharedBytes::Take(std::move(body)), gain});
    return out;
  }

  absl::Status Decode(const Run& run, std::span<const SharedBytes> bodies, LayerRange wanted,
                      std::span<uint8_t> raw) const override {
    const uint32_t first = run.layers.first;
    if (first % layers_per_run_ != 0 ||
        run.layers.count != std::min(layers_per_run_, spec_.layers - first)) {
      return absl::DataLossError(
          absl::StrCat("layers from ", first, " on are no run of the page's calibration"));
    }
    const TokenRange coded = Coded(run);
    const size_t raw_bytes = RawBytes(run);
    if (bodies.size() != 1 || bodies[0].size() < raw_bytes) {
      return absl::DataLossError(absl::StrCat("a run of one level needs one body of at least ",
                                              raw_bytes, " bytes for its raw tokens"));
    }
    const auto rest = bodies[0].span().subspan(raw_bytes);
    if (coded.count > 0) {
      KVSTOW_RETURN_IF_ERROR(DecodeVectors(run, rest, coded, wanted, raw));
    } else if (!rest.empty()) {
      return absl::DataLossError(absl::StrCat(rest.size(), " bytes follow the raw tokens"));
    }
    CopyRaw(run, wanted, bodies[0].data(), raw,
            [](const uint8_t* at, uint8_t* slab, size_t n) { std::memcpy(slab, at, n); });
    return absl::OkStatus();
  }

 private:
  // The tokens that are not raw.
  TokenRange Coded(const Run& run) const {
    const uint64_t before =
        raw_tokens_.first - std::min<uint64_t>(raw_tokens_.first, run.first_position);
    const auto first = static_cast<uint32_t>(std::min<uint64_t>(before, run.tokens));
    return {first, run.tokens - first - std::min(raw_tokens_.last, run.tokens - first)};
  }

  size_t RawBytes(const Run& run) const {
    return run.layers.count * LayerBytes(spec_, run.tokens - Coded(run).count);
  }

  // Calls copy(in the body, in the raw bytes of the layers wanted, bytes) for the raw tokens
  // before and behind the coded ones of each slab of those layers.
  template <typename InBody, typename Raw, typename Copy>
  void CopyRaw(const Run& run, LayerRange wanted, InBody* body, std::span<Raw> raw,
               const Copy& copy) const {
    const TokenRange coded = Coded(run);
    const uint32_t behind = run.tokens - coded.first - coded.count;
    const uint32_t before = wanted.first - run.layers.first;
    body += before * LayerBytes(spec_, coded.first + behind);
    for (uint32_t i = 0; i < wanted.count; ++i) {
      for (const Part part : {Part::kK, Part::kV}) {
        const size_t row = SlabValues(spec_, part, 1) * DTypeBytes(spec_.dtype);
        if (row == 0) continue;
        Raw* const slab = raw.data() + SlabOffset(spec_, i, part, run.tokens);
        copy(body, slab, coded.first * row);
        copy(body + coded.first * row, slab + (coded.first + coded.count) * row, behind * row);
        body += (coded.first + behind) * row;
      }
    }
  }

  absl::Status DecodeVectors(const Run& run, std::span<const uint8_t> body, TokenRange coded,
                             LayerRange wanted, std::span<uint8_t> raw) const {
    const std::vector<VectorSlab> slabs = SlabsOfVectors(spec_, run.layers);
    const size_t width = slabs.back().column + slabs.back().width;
    std::vector<float> x(coded.count * width);
    KVSTOW_RETURN_IF_ERROR(coder_->Decode(run.layers, body, coded.count, x.data()));
    if (!std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); })) {
      return absl::DataLossError("a decoded value is not finite");
    }
    const JointVectors vectors(spec_, {wanted, run.tokens, run.first_position});
    if (wanted.count < run.layers.count) {
      std::vector<float> part(coded.count * vectors.width());
      size_t to = 0;
      for (const VectorSlab& slab : slabs) {
        if (slab.layer < wanted.first || slab.layer >= wanted.first + wanted.count) continue;
        for (size_t t = 0; t < coded.count; ++t) {
          std::copy_n(x.data() + t * width + slab.column, slab.width,
                      part.data() + t * vectors.width() + to);
        }
        to += slab.width;
      }
      x = std::move(part);
    }
    vectors.Scatter(x.data(), coded, raw);
    return absl::OkStatus();
  }

  // See SegmentInfo: a raw token has no error, and RoPE leaves errors as large as they are.
  double Gain(const Run& run, size_t width, const std::vector<float>& x, TokenRange coded,
              const std::vector<float>& decoded) const {
    double gain = 0;
    for (const VectorSlab& slab : SlabsOfVectors(spec_, run.layers)) {
      double energy = 0, error = 0;
      for (size_t t = 0; t < run.tokens; ++t) {
        const float* const row = x.data() + t * width + slab.column;
        energy += SquaredSum(row, slab.width);
        if (t < coded.first || t >= coded.first + coded.count) continue;
        error +=
            SquaredError(row, decoded.data() + (t - coded.first) * width + slab.column, slab.width);
      }
      gain += run.tokens * (energy > 0 ? std::max(1 - error / energy, 0.0) : 1);
    }
    return gain;
  }

  const KvSpec spec_;
  const uint32_t layers_per_run_;
  const RawTokens raw_tokens_;
  const std::unique_ptr<const VectorCoder> coder_;
};

}  // namespace

std::vector<VectorSlab> SlabsOfVectors(const KvSpec& spec, LayerRange layers) {
  std::vector<VectorSlab> slabs;
  const size_t parts = spec.head_dim_v > 0 ? 2 : 1;
  size_t column = 0;
  for (const Part part : {Part::kK, Part::kV}) {
    const size_t width = SlabValues(spec, part, 1), behind = part == Part::kV ? 1 : 0;
    for (uint32_t i = 0; width > 0 && i < layers.count; ++i, column += width) {
      const uint32_t layer = layers.first + i;
      slabs.push_back({part, layer, column, width, layer * parts + behind});
    }
  }
  return slabs;
}

std::vector<VectorSlab> SlabsInOrder(const KvSpec& spec) {
  std::vector<VectorSlab> slabs = SlabsOfVectors(spec, {0, spec.layers});
  std::ranges::sort(slabs, {}, &VectorSlab::index);
  return slabs;
}

absl::StatusOr<RawTokens> ReadRawTokens(const OpArguments& arguments, uint32_t first) {
  RawTokens raw_tokens;
  KVSTOW_ASSIGN_OR_RETURN(raw_tokens.first, arguments.Number("first", first, 0, kMaxPageTokens));
  KVSTOW_ASSIGN_OR_RETURN(raw_tokens.last, arguments.Number("last", 0, 0, kMaxPageTokens));
  return raw_tokens;
}

std::unique_ptr<const RunCodec> MakeVectorRunCodec(const KvSpec& spec, uint32_t layers_per_run,
                                                   RawTokens raw_tokens,
                                                   std::unique_ptr<const VectorCoder> coder) {
  return std::make_unique<VectorRunCodec>(spec, layers_per_run, raw_tokens, std::move(coder));
}

}  // namespace kvstow
