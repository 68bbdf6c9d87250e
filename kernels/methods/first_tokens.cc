#include "kernels/methods/first_tokens.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/methods/joint_vectors.h"
#include "kernels/page/convert.h"
#include "kernels/quantize/affine.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Quantizer>> MakeFirstQuantizer(const OpArguments& arguments) {
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t bits,
                          arguments.Number("firstbits", kFirstBits, kFirstBits, 8));
  const Op affine{"affine", {{"bits", absl::StrCat(bits)}, {"group", "32"}}};
  return MakeAffine(OpArguments(affine));
}

absl::StatusOr<FirstTokens> FirstTokens::Make(const OpArguments& arguments, const KvSpec& spec) {
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t end, arguments.Number("first", kFirstTokens, 0, 64));
  KVSTOW_ASSIGN_OR_RETURN(auto quantizer, MakeFirstQuantizer(arguments));
  return FirstTokens(spec, end, std::move(quantizer));
}

uint32_t FirstTokens::Count(const Run& run) const {
  return CountFirstTokens(run.first_position, run.tokens, end_);
}

template <typename Visit>
void FirstTokens::ForEachSlab(const Run& run, const Visit& visit) const {
  const uint32_t tokens = Count(run);
  for (uint32_t i = 0; tokens > 0 && i < run.layers.count; ++i) {
    visit(i, SlabShape{Part::kK, tokens, spec_.kv_heads, spec_.head_dim_k});
    if (spec_.head_dim_v > 0) {
      visit(i, SlabShape{Part::kV, tokens, spec_.kv_heads, spec_.head_dim_v});
    }
  }
}

size_t FirstTokens::Bytes(const Run& run) const {
  size_t bytes = 0;
  ForEachSlab(run,
              [&](uint32_t, const SlabShape& shape) { bytes += quantizer_->LevelBytes(shape, 0); });
  return bytes;
}

std::optional<std::string> FirstTokens::Encode(const Run& run, std::span<const uint8_t> raw) const {
  std::string out(Bytes(run), '\0');
  auto* body = reinterpret_cast<uint8_t*>(out.data());
  bool ok = true;
  ForEachSlab(run, [&](uint32_t i, const SlabShape& shape) {
    std::vector<float> values(shape.values());
    const uint8_t* slab = raw.data() + SlabOffset(spec_, i, shape.part, run.tokens);
    uint8_t* const bodies[] = {body};
    ok = ok && LoadFloats(spec_.dtype, slab, values.size(), values.data()) &&
         quantizer_->Encode(shape, values.data(), bodies);
    body += quantizer_->LevelBytes(shape, 0);
  });
  return ok ? std::optional(std::move(out)) : std::nullopt;
}

absl::Status FirstTokens::Decode(const Run& run, const uint8_t* body, const PageRange& wanted,
                                 std::span<uint8_t> raw) const {
  const uint32_t tokens = Count(run);
  if (wanted.tokens.first >= tokens) return absl::OkStatus();
  bool ok = true;
  const uint32_t count = std::min(wanted.tokens.count, tokens - wanted.tokens.first);
  const uint32_t before = wanted.layers.first - run.layers.first;
  ForEachSlab(run, [&](uint32_t i, const SlabShape& shape) {
    const uint8_t* const bodies[] = {body};
    body += quantizer_->LevelBytes(shape, 0);
    if (i < before || i >= before + wanted.layers.count) return;
    std::vector<float> values(shape.values());
    ok = ok && quantizer_->Decode(shape, bodies, values.data());
    const size_t token = size_t{shape.heads} * shape.dim;
    uint8_t* slab = raw.data() + SlabOffset(spec_, i - before, shape.part, wanted.tokens.count);
    if (ok) {
      StoreFloats(spec_.dtype, &values[wanted.tokens.first * token], count * token, slab);
    }
  });
  if (ok) return absl::OkStatus();
  return absl::DataLossError("a scale of the first tokens is not finite");
}

}  // namespace kvstow
