#include "kernels/importance/key_summary.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/convert.h"

namespace kvstow {

absl::StatusOr<KeySummary> SummarizeKeys(const KvSpec& spec, std::span<const uint8_t> raw,
                                         uint32_t tokens) {
  if (IsFloat8(spec.dtype)) {
    return absl::InvalidArgumentError("keys in FP8 have no summary: hand the page in as F16");
  }
  if (tokens == 0 || raw.size() != PageBytes(spec, tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a page of ", tokens, " tokens does not have ", raw.size(), " bytes"));
  }
  KeySummary out{spec.layers, spec.kv_heads, spec.head_dim_k, {}, {}};
  const size_t token = size_t{out.heads} * out.dim;
  std::vector<float> k(token * tokens);
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    const uint8_t* const slab = raw.data() + SlabOffset(spec, layer, Part::kK, tokens);
    if (!LoadFloats(spec.dtype, slab, k.size(), k.data())) {
      return absl::OutOfRangeError(absl::StrCat("keys of layer ", layer, " hold NaN or Inf"));
    }
    const size_t at = out.least.size();
    out.least.insert(out.least.end(), k.begin(), k.begin() + static_cast<ptrdiff_t>(token));
    out.largest.insert(out.largest.end(), k.begin(), k.begin() + static_cast<ptrdiff_t>(token));
    for (size_t i = token; i < k.size(); ++i) {
      out.least[at + i % token] = std::min(out.least[at + i % token], k[i]);
      out.largest[at + i % token] = std::max(out.largest[at + i % token], k[i]);
    }
  }
  return out;
}

double LargestLogit(const KeySummary& summary, uint32_t layer, uint32_t head,
                    std::span<const float> query) {
  const size_t at = (size_t{layer} * summary.heads + head) * summary.dim;
  double sum = 0;
  for (size_t i = 0; i < query.size(); ++i) {
    const double q = query[i];
    sum += std::max(q * summary.least[at + i], q * summary.largest[at + i]);
  }
  return sum;
}

}  // namespace kvstow
