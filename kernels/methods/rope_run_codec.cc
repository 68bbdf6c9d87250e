#include "kernels/methods/rope_run_codec.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/page/convert.h"
#include "kernels/transform/rope.h"

namespace kvstow {
namespace {

class RopeRunCodec final : public RunCodec {
 public:
  RopeRunCodec(const KvSpec& spec, std::unique_ptr<const RunCodec> inner)
      : spec_(spec), floats_(FloatSpec(spec)), inner_(std::move(inner)) {}

  bool exact() const override { return false; }
  uint32_t levels() const override { return inner_->levels(); }

  absl::StatusOr<std::vector<EncodedLevel>> Encode(const Run& run,
                                                   std::span<const uint8_t> raw) const override {
    std::vector<float> values(raw.size() / DTypeBytes(spec_.dtype));
    if (!LoadFloats(spec_.dtype, raw.data(), values.size(), values.data())) {
      return absl::OutOfRangeError(
          absl::StrCat("layers from ", run.layers.first, " on have NaN or Inf"));
    }
    const LayerRotations rotations(spec_, run.layers, run.first_position, run.tokens);
    for (uint32_t i = 0; i < run.layers.count; ++i)
      rotations.Of(run.layers.first + i).Undo(spec_.kv_heads, K(values, i, run.tokens));
    return inner_->Encode(run, Bytes(values));
  }

  absl::Status Decode(const Run& run, std::span<const SharedBytes> bodies, LayerRange wanted,
                      std::span<uint8_t> raw) const override {
    std::vector<float> values(raw.size() / DTypeBytes(spec_.dtype));
    const auto bytes = reinterpret_cast<uint8_t*>(values.data());
    KVSTOW_RETURN_IF_ERROR(
        inner_->Decode(run, bodies, wanted, {bytes, values.size() * sizeof(float)}));
    const LayerRotations rotations(spec_, wanted, run.first_position, run.tokens);
    for (uint32_t i = 0; i < wanted.count; ++i)
      rotations.Of(wanted.first + i).Redo(spec_.kv_heads, K(values, i, run.tokens));
    StoreFloats(spec_.dtype, values.data(), values.size(), raw.data());
    return absl::OkStatus();
  }

 private:
  static std::span<const uint8_t> Bytes(const std::vector<float>& values) {
    return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)};
  }
  // K of the i-th layer of `values`.
  float* K(std::vector<float>& values, uint32_t i, uint32_t tokens) const {
    return values.data() + SlabOffset(floats_, i, Part::kK, tokens) / sizeof(float);
  }

  const KvSpec spec_, floats_;
  const std::unique_ptr<const RunCodec> inner_;
};

}  // namespace

KvSpec FloatSpec(const KvSpec& spec) {
  KvSpec floats = spec;
  floats.dtype = DType::kF32;
  return floats;
}

std::unique_ptr<const RunCodec> MakeRopeRunCodec(const KvSpec& spec,
                                                 std::unique_ptr<const RunCodec> inner) {
  return std::make_unique<RopeRunCodec>(spec, std::move(inner));
}

}  // namespace kvstow
