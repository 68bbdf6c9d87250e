#include "kernels/importance/key_summary.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "kernels/page/convert.h"

namespace kvstow {

absl::StatusOr<KeySummary> SummarizeKeys(const KvSpec& spec, std::span<const uint8_t> raw,
                                         uint32_t tokens, const Selection* kept) {
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
    out.least.resize(at + token, std::numeric_limits<float>::infinity());
    out.largest.resize(at + token, -std::numeric_limits<float>::infinity());
    for (size_t i = 0; i < k.size(); ++i) {
      const size_t channel = i % token;
      const auto t = static_cast<uint32_t>(i / token);
      if (kept != nullptr && !kept->Kept(layer, t, static_cast<uint32_t>(channel / out.dim))) {
        continue;
      }
      out.least[at + channel] = std::min(out.least[at + channel], k[i]);
      out.largest[at + channel] = std::max(out.largest[at + channel], k[i]);
    }
  }
  return out;
}

size_t SummaryBytes(const KvSpec& spec, uint32_t layers) {
  return 2 * sizeof(float) * layers * spec.kv_heads * spec.head_dim_k;
}

std::string SerializeSummary(const KeySummary& summary) {
  ByteWriter out;
  for (const std::vector<float>* values : {&summary.least, &summary.largest}) {
    out.PutBytes({reinterpret_cast<const uint8_t*>(values->data()), values->size() * 4});
  }
  return std::move(out).Take();
}

absl::StatusOr<KeySummary> ReadSummary(const KvSpec& spec, uint32_t layers,
                                       std::span<const uint8_t> bytes) {
  if (layers == 0 || bytes.size() != SummaryBytes(spec, layers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a summary of ", layers, " layers does not have ", bytes.size(), " bytes"));
  }
  KeySummary out{layers, spec.kv_heads, spec.head_dim_k, {}, {}};
  const size_t half = bytes.size() / 2;
  out.least.resize(half / sizeof(float));
  out.largest.resize(half / sizeof(float));
  std::memcpy(out.least.data(), bytes.data(), half);
  std::memcpy(out.largest.data(), bytes.data() + half, half);
  return out;
}

double LargestLogit(const KeySummary& summary, uint32_t layer, uint32_t head,
                    std::span<const float> query) {
  const size_t at = (size_t{layer} * summary.heads + head) * summary.dim;
  if (summary.least[at] > summary.largest[at]) return -std::numeric_limits<double>::infinity();
  double sum = 0;
  for (size_t i = 0; i < query.size(); ++i) {
    const double q = query[i];
    sum += std::max(q * summary.least[at + i], q * summary.largest[at + i]);
  }
  return sum;
}

}  // namespace kvstow
