#include "kernels/methods/raw_run_codec.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

class RawRunCodec final : public RunCodec {
 public:
  explicit RawRunCodec(const KvSpec& spec) : spec_(spec) {}

  bool exact() const override { return true; }
  uint32_t levels() const override { return 1; }

  absl::StatusOr<std::vector<EncodedLevel>> Encode(const Run& run,
                                                   std::span<const uint8_t> raw) const override {
    const double slabs = run.layers.count * (spec_.head_dim_v > 0 ? 2.0 : 1.0);
    std::vector<EncodedLevel> out;
    SharedBytes body =
        run.raw_owner != nullptr ? SharedBytes(run.raw_owner, raw) : SharedBytes::CopyOf(raw);
    out.push_back({std::move(body), run.tokens * slabs});
    return out;
  }

  absl::StatusOr<std::optional<SharedBytes>> InPlace(const Run& run,
                                                     std::span<const SharedBytes> bodies,
                                                     LayerRange wanted) const override {
    KVSTOW_RETURN_IF_ERROR(CheckBodies(run, bodies));
    const size_t layer = LayerBytes(spec_, run.tokens);
    return bodies[0].Slice((wanted.first - run.layers.first) * layer, wanted.count * layer);
  }

  absl::Status Decode(const Run& run, std::span<const SharedBytes> bodies, LayerRange wanted,
                      std::span<uint8_t> raw) const override {
    return DecodeTokens(run, bodies, wanted, {0, run.tokens}, raw);
  }

  absl::Status DecodeTokens(const Run& run, std::span<const SharedBytes> bodies, LayerRange wanted,
                            TokenRange tokens, std::span<uint8_t> raw) const override {
    KVSTOW_RETURN_IF_ERROR(CheckBodies(run, bodies));
    const size_t layer = LayerBytes(spec_, run.tokens);
    const size_t before = wanted.first - run.layers.first;
    CopyTokens(spec_, wanted.count, run.tokens, bodies[0].span().subspan(before * layer), tokens,
               raw);
    return absl::OkStatus();
  }

 private:
  absl::Status CheckBodies(const Run& run, std::span<const SharedBytes> bodies) const {
    const size_t bytes = LayerBytes(spec_, run.tokens) * run.layers.count;
    if (bodies.size() == 1 && bodies[0].size() == bytes) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("a raw run of ", run.layers.count, " layers needs ", bytes, " bytes"));
  }

  const KvSpec spec_;
};

}  // namespace

std::unique_ptr<const RunCodec> MakeRawRunCodec(const KvSpec& spec) {
  return std::make_unique<RawRunCodec>(spec);
}

}  // namespace kvstow
