#include "kernels/methods/shared_basis_run_codec.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/page/convert.h"
#include "kernels/page/squared_error.h"
#include "kernels/quantize/low_rank.h"
#include "kernels/transform/singular_vectors.h"

namespace kvstow {
namespace {

// K or V of a run as a matrix [tokens, columns]; a layer has `row` of the columns.
struct PartShape {
  Part part = Part::kK;
  size_t row = 0, columns = 0, rank = 0;
  size_t VectorValues() const { return rank * columns; }
  size_t Bytes(uint32_t tokens) const { return 2 * rank * (columns + tokens); }
};

class SharedBasisRunCodec final : public RunCodec {
 public:
  SharedBasisRunCodec(const KvSpec& spec, double k, double v) : spec_(spec), k_(k), v_(v) {}

  bool exact() const override { return false; }
  uint32_t levels() const override { return 1; }

  absl::StatusOr<std::vector<EncodedLevel>> Encode(const Run& run,
                                                   std::span<const uint8_t> raw) const override {
    size_t bytes = 0;
    for (const PartShape& part : Parts(run)) bytes += part.Bytes(run.tokens);
    ByteBlock body(bytes);
    uint8_t* out = body.data();
    double gain = 0;
    for (const PartShape& part : Parts(run)) {
      std::vector<float> x(run.tokens * part.columns), back(x.size());
      if (!Load(run, part, raw, x)) return Beyond(run);
      const MatrixView matrix{x.data(), run.tokens, part.columns, part.columns};
      std::vector<float> vectors = RightSingularVectors(matrix, part.rank);
      if (!RoundToHalves(vectors, out)) return Beyond(run);
      std::vector<float> a = Project(matrix, vectors, part.rank);
      if (!RoundToHalves(a, out + 2 * vectors.size())) return Beyond(run);
      out += part.Bytes(run.tokens);
      AddProduct(a, vectors, part.rank, part.columns, back.data());
      gain += GainOf(run, part, x, back);
    }
    std::vector<EncodedLevel> out_levels;
    out_levels.push_back({std::move(body).Share(), gain});
    return out_levels;
  }

  absl::Status Decode(const Run& run, std::span<const SharedBytes> bodies, LayerRange wanted,
                      std::span<uint8_t> raw) const override {
    size_t bytes = 0;
    for (const PartShape& part : Parts(run)) bytes += part.Bytes(run.tokens);
    if (bodies.size() != 1 || bodies[0].size() != bytes)
      return absl::DataLossError(absl::StrCat("a run of this shape needs ", bytes, " bytes"));
    const uint8_t* in = bodies[0].data();
    for (const PartShape& part : Parts(run)) {
      std::vector<float> vectors(part.VectorValues()), a(run.tokens * part.rank);
      if (!LoadHalves(in, vectors.size(), vectors.data()) ||
          !LoadHalves(in + 2 * vectors.size(), a.size(), a.data())) {
        return absl::DataLossError("a coefficient is not finite");
      }
      in += part.Bytes(run.tokens);
      std::vector<float> back(run.tokens * part.columns);
      AddProduct(a, vectors, part.rank, part.columns, back.data());
      Store(run, part, back, wanted, raw);
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status Beyond(const Run& run) {
    return absl::OutOfRangeError(absl::StrCat("layers from ", run.layers.first,
                                              " on have NaN, Inf or values beyond the range of "
                                              "fp16"));
  }

  std::vector<PartShape> Parts(const Run& run) const {
    std::vector<PartShape> parts;
    for (const auto& [part, dim, share] :
         {std::tuple{Part::kK, spec_.head_dim_k, k_}, std::tuple{Part::kV, spec_.head_dim_v, v_}}) {
      if (dim == 0) continue;
      const size_t row = size_t{spec_.kv_heads} * dim, columns = row * run.layers.count;
      const auto asked = static_cast<size_t>(std::lround(share * static_cast<double>(columns)));
      const size_t most = std::min<size_t>(columns, run.tokens);
      parts.push_back({part, row, columns, std::clamp<size_t>(asked, 1, most)});
    }
    return parts;
  }

  bool Load(const Run& run, const PartShape& part, std::span<const uint8_t> raw,
            std::vector<float>& x) const {
    std::vector<float> slab(run.tokens * part.row);
    for (uint32_t layer = 0; layer < run.layers.count; ++layer) {
      const uint8_t* from = raw.data() + SlabOffset(spec_, layer, part.part, run.tokens);
      if (!LoadFloats(spec_.dtype, from, slab.size(), slab.data())) return false;
      for (size_t t = 0; t < run.tokens; ++t)
        std::copy_n(&slab[t * part.row], part.row, &x[t * part.columns + layer * part.row]);
    }
    return true;
  }

  void Store(const Run& run, const PartShape& part, const std::vector<float>& x, LayerRange wanted,
             std::span<uint8_t> raw) const {
    std::vector<float> slab(run.tokens * part.row);
    for (uint32_t i = 0; i < wanted.count; ++i) {
      const size_t column = (wanted.first + i - run.layers.first) * part.row;
      for (size_t t = 0; t < run.tokens; ++t)
        std::copy_n(&x[t * part.columns + column], part.row, &slab[t * part.row]);
      StoreFloats(spec_.dtype, slab.data(), slab.size(),
                  raw.data() + SlabOffset(spec_, i, part.part, run.tokens));
    }
  }

  // Each layer's slab by its own energy, see SegmentInfo.
  static double GainOf(const Run& run, const PartShape& part, const std::vector<float>& x,
                       const std::vector<float>& back) {
    double gain = 0;
    for (uint32_t layer = 0; layer < run.layers.count; ++layer) {
      double energy = 0, error = 0;
      for (size_t t = 0; t < run.tokens; ++t) {
        const size_t at = t * part.columns + layer * part.row;
        energy += SquaredSum(&x[at], part.row);
        error += SquaredError(&x[at], &back[at], part.row);
      }
      gain += run.tokens * (energy > 0 ? std::max(1 - error / energy, 0.0) : 1.0);
    }
    return gain;
  }

  const KvSpec spec_;
  const double k_, v_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeSharedBasis(const OpArguments& arguments,
                                                                const KvSpec& spec) {
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"k", "v"}));
  KVSTOW_ASSIGN_OR_RETURN(const double k, arguments.Real("k", 0.125, 0.001, 1));
  KVSTOW_ASSIGN_OR_RETURN(const double v, arguments.Real("v", 0.1875, 0.001, 1));
  return std::make_unique<SharedBasisRunCodec>(spec, k, v);
}

}  // namespace kvstow
