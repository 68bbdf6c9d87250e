#include "kernels/page/page.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

struct DTypeRow {
  DType dtype;
  absl::string_view name;
  size_t bytes;
};

constexpr DTypeRow kDTypes[] = {
    {DType::kF16, "F16", 2},        {DType::kBF16, "BF16", 2},      {DType::kF32, "F32", 4},
    {DType::kF8E4M3, "F8_E4M3", 1}, {DType::kF8E5M2, "F8_E5M2", 1},
};

const DTypeRow* FindDType(DType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return &row;
  }
  return nullptr;
}

absl::Status CheckRange(absl::string_view field, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, "; it must be ", low, " to ", high));
}

absl::Status ValidateRope(const RopeSpec& rope, uint32_t head_dim_k) {
  if (rope.layout > RopeSpec::Layout::kInterleaved) {
    return absl::InvalidArgumentError("rope.layout is not one of none, half, interleaved");
  }
  if (rope.scaling > RopeSpec::Scaling::kLongRope) {
    return absl::InvalidArgumentError(
        "rope.scaling is not one of none, linear, ntk, yarn, llama3, longrope");
  }
  KVSTOW_RETURN_IF_ERROR(CheckRange("rope.rotary_dims", rope.rotary_dims, 0, head_dim_k));
  const auto positive = [](double x) { return std::isfinite(x) && x > 0; };
  if (!positive(rope.theta)) {
    return absl::InvalidArgumentError("rope.theta must be a positive number");
  }
  if (!positive(rope.factor) || !positive(rope.low_freq_factor) ||
      !positive(rope.high_freq_factor)) {
    return absl::InvalidArgumentError("factors of rope.scaling must be positive numbers");
  }
  return absl::OkStatus();
}

absl::Status ValidateOtherRope(const KvSpec& spec) {
  const auto& [rope, layers] = spec.other_rope;
  const auto refused = [](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("other_rope: ", why));
  };
  if (layers.empty()) {
    if (rope == RopeSpec()) return absl::OkStatus();
    return refused("no layer has it: list its layers, or leave it out");
  }
  if (const absl::Status valid = ValidateRope(rope, spec.head_dim_k); !valid.ok()) {
    return refused(valid.message());
  }
  if (rope == spec.rope) return refused("it is the RoPE of the other layers: leave it out");
  if (rope.k_after_rope != spec.rope.k_after_rope) {
    return refused("K of all layers is stored before RoPE, or of all behind it");
  }
  if (std::ranges::adjacent_find(layers, std::greater_equal<>()) != layers.end()) {
    return refused("its layers are not in ascending order");
  }
  if (layers.size() >= spec.layers) return refused("all layers have it: make it the RoPE");
  return CheckRange("other_rope: its last layer", layers.back(), 0, spec.layers - 1);
}

// NaN would differ from itself.
absl::Status ValidateDetails(const RopeDetails& details) {
  const auto finite = [](double x) { return std::isfinite(x); };
  const bool ok = finite(details.attention_factor) && finite(details.mscale) &&
                  finite(details.mscale_all_dim) &&
                  std::ranges::all_of(details.short_factors, finite) &&
                  std::ranges::all_of(details.long_factors, finite);
  if (!ok) return absl::InvalidArgumentError("rope: its factors must be finite numbers");
  const size_t most = std::max(
      {details.short_factors.size(), details.long_factors.size(), details.mrope_sections.size()});
  return CheckRange("rope: numbers in a list of factors or sections", most, 0, kMaxHeadDim);
}

// "name: HAVE here, ASKED asked", once and for the first difference only.
template <typename T>
void Compare(absl::string_view name, const T& have, const T& asked, std::string& out) {
  if (out.empty() && have != asked)
    out = absl::StrCat(name, ": ", have, " here, ", asked, " asked");
}

template <typename T>
std::string ListText(const std::vector<T>& values) {
  return values.empty() ? "none" : absl::StrJoin(values, ",");
}

// As Compare; an empty text is shown as such.
void CompareText(absl::string_view name, const std::string& have, const std::string& asked,
                 std::string& out) {
  const auto shown = [](const std::string& text) {
    return text.empty() ? std::string("none") : absl::StrCat("'", text, "'");
  };
  if (have != asked) Compare(name, shown(have), shown(asked), out);
}

// StrCat prints six digits: lists that differ only beyond them are shown alike.
template <typename T>
void CompareList(absl::string_view name, const std::vector<T>& have, const std::vector<T>& asked,
                 std::string& out) {
  if (out.empty() && have != asked)
    out = absl::StrCat(name, ": ", ListText(have), " here, ", ListText(asked), " asked");
}

void CompareRope(absl::string_view name, const RopeSpec& have, const RopeSpec& asked,
                 std::string& out) {
  const auto compare = [&](absl::string_view field, const auto& a, const auto& b) {
    Compare(absl::StrCat(name, ".", field), a, b, out);
  };
  compare("layout", static_cast<int>(have.layout), static_cast<int>(asked.layout));
  compare("scaling", static_cast<int>(have.scaling), static_cast<int>(asked.scaling));
  compare("k_after_rope", have.k_after_rope, asked.k_after_rope);
  compare("rotary_dims", have.rotary_dims, asked.rotary_dims);
  compare("theta", have.theta, asked.theta);
  compare("factor", have.factor, asked.factor);
  compare("low_freq_factor", have.low_freq_factor, asked.low_freq_factor);
  compare("high_freq_factor", have.high_freq_factor, asked.high_freq_factor);
  compare("original_context", have.original_context, asked.original_context);
}

void CompareDetails(const RopeDetails& have, const RopeDetails& asked, std::string& out) {
  Compare("rope.attention_factor", have.attention_factor, asked.attention_factor, out);
  Compare("rope.mscale", have.mscale, asked.mscale, out);
  Compare("rope.mscale_all_dim", have.mscale_all_dim, asked.mscale_all_dim, out);
  CompareList("rope.short_factors", have.short_factors, asked.short_factors, out);
  CompareList("rope.long_factors", have.long_factors, asked.long_factors, out);
  CompareList("rope.mrope_sections", have.mrope_sections, asked.mrope_sections, out);
}

}  // namespace

size_t DTypeBytes(DType dtype) {
  const DTypeRow* row = FindDType(dtype);
  return row == nullptr ? 0 : row->bytes;
}

absl::string_view DTypeName(DType dtype) {
  const DTypeRow* row = FindDType(dtype);
  return row == nullptr ? "unknown" : row->name;
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dtype '", name, "': use F16, BF16, F32, F8_E4M3 or F8_E5M2"));
}

absl::Status Validate(const KvSpec& spec) {
  KVSTOW_RETURN_IF_ERROR(CheckRange("layers", spec.layers, 1, kMaxLayers));
  KVSTOW_RETURN_IF_ERROR(CheckRange("kv_heads", spec.kv_heads, 1, kMaxHeads));
  KVSTOW_RETURN_IF_ERROR(CheckRange("head_dim_k", spec.head_dim_k, 1, kMaxHeadDim));
  KVSTOW_RETURN_IF_ERROR(CheckRange("head_dim_v", spec.head_dim_v, 0, kMaxHeadDim));
  KVSTOW_RETURN_IF_ERROR(CheckRange("page_tokens", spec.page_tokens, 1, kMaxPageTokens));
  if (FindDType(spec.dtype) == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype is ", static_cast<int>(spec.dtype), ", which is not a known type"));
  }
  KVSTOW_RETURN_IF_ERROR(CheckRange("world_size", spec.world_size, 1, UINT32_MAX));
  KVSTOW_RETURN_IF_ERROR(CheckRange("rank", spec.rank, 0, spec.world_size - 1));
  KVSTOW_RETURN_IF_ERROR(ValidateRope(spec.rope, spec.head_dim_k));
  KVSTOW_RETURN_IF_ERROR(ValidateDetails(spec.rope_details));
  KVSTOW_RETURN_IF_ERROR(ValidateOtherRope(spec));
  const uint64_t bytes = PageBytes(spec, spec.page_tokens);
  if (bytes > kMaxPageBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a page of ", spec.page_tokens, " tokens has ",
                                                   bytes, " bytes; the limit is ", kMaxPageBytes,
                                                   ": use fewer page_tokens"));
  }
  return absl::OkStatus();
}

std::string FirstDifference(const KvSpec& have, const KvSpec& asked) {
  std::string out;
  Compare("model", have.model, asked.model, out);
  Compare("revision", have.revision, asked.revision, out);
  Compare("layers", have.layers, asked.layers, out);
  Compare("kv_heads", have.kv_heads, asked.kv_heads, out);
  Compare("head_dim_k", have.head_dim_k, asked.head_dim_k, out);
  Compare("head_dim_v", have.head_dim_v, asked.head_dim_v, out);
  Compare("dtype", DTypeName(have.dtype), DTypeName(asked.dtype), out);
  Compare("page_tokens", have.page_tokens, asked.page_tokens, out);
  Compare("rank", have.rank, asked.rank, out);
  Compare("world_size", have.world_size, asked.world_size, out);
  CompareRope("rope", have.rope, asked.rope, out);
  Compare("engine", have.engine, asked.engine, out);
  CompareText("weight_quantization", have.weight_quantization, asked.weight_quantization, out);
  CompareText("adapter", have.adapter, asked.adapter, out);
  CompareText("kv_scales", have.kv_scales, asked.kv_scales, out);
  Compare("sliding_window", have.sliding_window, asked.sliding_window, out);
  CompareText("layer_layout", have.layer_layout, asked.layer_layout, out);
  CompareDetails(have.rope_details, asked.rope_details, out);
  CompareRope("other_rope", have.other_rope.rope, asked.other_rope.rope, out);
  CompareList("other_rope.layers", have.other_rope.layers, asked.other_rope.layers, out);
  return out;
}

const RopeSpec& RopeOfLayer(const RopeSpec& usual, const OtherRope& other, uint32_t layer) {
  return std::ranges::binary_search(other.layers, layer) ? other.rope : usual;
}

size_t SlabValues(const KvSpec& spec, Part part, uint32_t tokens) {
  const size_t dim = part == Part::kK ? spec.head_dim_k : spec.head_dim_v;
  return size_t{tokens} * spec.kv_heads * dim;
}

size_t BytesPerToken(const KvSpec& spec) { return PageBytes(spec, 1); }

size_t LayerBytes(const KvSpec& spec, uint32_t tokens) {
  return (SlabValues(spec, Part::kK, tokens) + SlabValues(spec, Part::kV, tokens)) *
         DTypeBytes(spec.dtype);
}

size_t PageBytes(const KvSpec& spec, uint32_t tokens) {
  return spec.layers * LayerBytes(spec, tokens);
}

size_t SlabOffset(const KvSpec& spec, uint32_t layer, Part part, uint32_t tokens) {
  const size_t before = part == Part::kK ? 0 : SlabValues(spec, Part::kK, tokens);
  return layer * LayerBytes(spec, tokens) + before * DTypeBytes(spec.dtype);
}

void CopyTokens(const KvSpec& spec, uint32_t layers, uint32_t tokens, std::span<const uint8_t> raw,
                TokenRange wanted, std::span<uint8_t> out) {
  for (uint32_t layer = 0; layer < layers; ++layer) {
    for (const Part part : {Part::kK, Part::kV}) {
      const size_t token = SlabValues(spec, part, 1) * DTypeBytes(spec.dtype);
      std::copy_n(raw.begin() + SlabOffset(spec, layer, part, tokens) + wanted.first * token,
                  wanted.count * token, out.begin() + SlabOffset(spec, layer, part, wanted.count));
    }
  }
}

}  // namespace kvstow
