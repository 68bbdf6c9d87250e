#include "service/fitting/sound_pages.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/codec/decode_page.h"
#include "kernels/methods/joint_vectors.h"

namespace kvstow {
namespace {

constexpr size_t kLeastPages = 3;  // fewer have no page in the middle

double MedianOf(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// The scales of a page: of K of each layer, and of V. Empty where it has only first tokens.
using Scales = std::vector<double>;

// INVALID_ARGUMENT: the page holds NaN or Inf, be it in its first tokens.
absl::StatusOr<Scales> ScalesOf(const KvSpec& spec, const RawPage& page) {
  Scales out;
  const uint32_t tokens = page.header.tokens;
  const uint32_t first_tokens = CountFirstTokens(page.header.first_position, tokens);
  const std::span<const uint8_t> raw(page.raw.data(), page.raw.size());
  const size_t layer_bytes = LayerBytes(spec, tokens);
  std::vector<double> squares;
  const size_t width_k = size_t{spec.kv_heads} * spec.head_dim_k;
  const size_t width_v = size_t{spec.kv_heads} * spec.head_dim_v, width = width_k + width_v;
  std::vector<float> vectors(tokens * width);
  for (uint32_t layer = 0; layer < spec.layers; ++layer) {
    const JointVectors layout(spec, {{layer, 1}, tokens, page.header.first_position});
    if (!layout.Gather(raw.subspan(layer * layer_bytes, layer_bytes), {0, tokens},
                       vectors.data())) {
      return absl::InvalidArgumentError(absl::StrCat("layer ", layer, " has NaN or Inf"));
    }
    for (const auto& [first, size] : {std::pair(size_t{0}, width_k), std::pair(width_k, width_v)}) {
      squares.clear();
      for (size_t at = first_tokens * width + first; size > 0 && at < vectors.size(); at += width) {
        double sum = 0;
        for (size_t i = at; i < at + size; ++i) sum += double{vectors[i]} * vectors[i];
        squares.push_back(sum / static_cast<double>(size));
      }
      if (!squares.empty()) out.push_back(MedianOf(squares));
    }
  }
  return out;
}

absl::StatusOr<Scales> DecodedScales(const KvSpec& spec, const FitPage& page) {
  KVSTOW_ASSIGN_OR_RETURN(const RawPage raw, DecodeFitPage(page));
  return ScalesOf(spec, raw);
}

struct LookedAt {
  const FitPage* page;
  bool held_out;
  uint32_t tokens;
};

// Returns the median page's. Empty: there are too few pages.
Scales UsualScales(const std::vector<Scales>& pages) {
  Scales out;
  std::vector<double> values;
  const auto slabs = std::ranges::max(pages, {}, &Scales::size).size();
  for (size_t i = 0; i < slabs; ++i) {
    values.clear();
    for (const Scales& page : pages) {
      if (!page.empty()) values.push_back(page[i]);
    }
    if (values.size() < kLeastPages) return {};
    out.push_back(MedianOf(values));
  }
  return out;
}

bool IsLike(const Scales& page, const Scales& usual) {
  for (size_t i = 0; i < page.size() && i < usual.size(); ++i) {
    // Layers whose values are all zero say nothing.
    if (usual[i] <= 0) continue;
    if (page[i] > kMostScale * usual[i] || page[i] < usual[i] / kMostScale) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<RawPage> DecodeFitPage(const FitPage& page) {
  RawPage out;
  KVSTOW_ASSIGN_OR_RETURN(out.header, ParsePageHeader(page.header.span()));
  out.raw = ByteBlock(PageBytes(out.header.Geometry(), out.header.tokens));
  KVSTOW_RETURN_IF_ERROR(DecodePage(out.header, page.bodies, out.raw.span()));
  return out;
}

PageToEncode ToEncode(const RawPage& page) {
  return {.raw = {page.raw.data(), page.raw.size()},
          .tokens = page.header.tokens,
          .first_position = page.header.first_position,
          .key = page.header.key,
          .raw_digest = page.header.raw_digest};
}

absl::StatusOr<SoundPages> TakeSoundPages(const FitJob& job, const KvSpec& spec) {
  if (IsFloat8(spec.dtype)) {
    return absl::InvalidArgumentError("FP8 values have no lossy form: take a recipe without auto");
  }
  SoundPages out;
  std::vector<LookedAt> pages;
  std::vector<Scales> scales;
  for (const auto* part : {&job.fitted_on, &job.held_out}) {
    for (const FitPage& page : *part) {
      const auto header = ParsePageHeader(page.header.span());
      if (header.ok() && !SameGeometry(*header, spec)) {
        return absl::InvalidArgumentError("a page has another geometry than the space");
      }
      absl::StatusOr<Scales> of_page = DecodedScales(spec, page);
      if (!of_page.ok()) {
        ++out.left_out;
        out.why = std::string(of_page.status().message());
        continue;
      }
      pages.push_back({&page, part == &job.held_out, header->tokens});
      scales.push_back(*std::move(of_page));
    }
  }
  if (pages.empty()) return out;
  const Scales usual = UsualScales(scales);
  for (size_t i = 0; i < pages.size(); ++i) {
    const auto& [page, held_out, tokens] = pages[i];
    if (!IsLike(scales[i], usual)) {
      ++out.left_out;
      out.why = "its K or V is of another scale";
      continue;
    }
    (held_out ? out.held_out : out.fitted_on).push_back(*page);
    (held_out ? out.held_out_tokens : out.tokens) += tokens;
  }
  return out;
}

}  // namespace kvstow
