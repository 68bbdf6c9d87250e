#include "proto/wire/spec.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

static_assert(static_cast<int>(DType::kF16) == v1::F16);
static_assert(static_cast<int>(DType::kBF16) == v1::BF16);
static_assert(static_cast<int>(DType::kF32) == v1::F32);
static_assert(static_cast<int>(DType::kF8E4M3) == v1::F8_E4M3);
static_assert(static_cast<int>(DType::kF8E5M2) == v1::F8_E5M2);
static_assert(static_cast<int>(RopeSpec::Layout::kInterleaved) == v1::Rope::INTERLEAVED);
static_assert(static_cast<int>(RopeSpec::Scaling::kLlama3) == v1::Rope::LLAMA3);
static_assert(static_cast<int>(RopeSpec::Scaling::kLongRope) == v1::Rope::LONGROPE);

void ToProto(const RopeSpec& rope, v1::Rope& out) {
  out.set_layout(static_cast<v1::Rope::Layout>(rope.layout));
  out.set_theta(rope.theta);
  out.set_rotary_dims(rope.rotary_dims);
  out.set_k_before_rope(!rope.k_after_rope);
  out.set_scaling(static_cast<v1::Rope::Scaling>(rope.scaling));
  out.set_factor(rope.factor);
  out.set_low_freq_factor(rope.low_freq_factor);
  out.set_high_freq_factor(rope.high_freq_factor);
  out.set_original_context(rope.original_context);
}

void ToProto(const RopeDetails& details, v1::Rope& out) {
  out.set_attention_factor(details.attention_factor);
  out.set_mscale(details.mscale);
  out.set_mscale_all_dim(details.mscale_all_dim);
  out.mutable_short_factors()->Assign(details.short_factors.begin(), details.short_factors.end());
  out.mutable_long_factors()->Assign(details.long_factors.begin(), details.long_factors.end());
  out.mutable_mrope_sections()->Assign(details.mrope_sections.begin(),
                                       details.mrope_sections.end());
}

RopeDetails DetailsOf(const v1::Rope& rope) {
  return {.attention_factor = rope.attention_factor(),
          .mscale = rope.mscale(),
          .mscale_all_dim = rope.mscale_all_dim(),
          .short_factors = {rope.short_factors().begin(), rope.short_factors().end()},
          .long_factors = {rope.long_factors().begin(), rope.long_factors().end()},
          .mrope_sections = {rope.mrope_sections().begin(), rope.mrope_sections().end()}};
}

absl::StatusOr<RopeSpec> FromProto(const v1::Rope& rope) {
  if (!v1::Rope::Layout_IsValid(rope.layout())) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec.rope.layout: ", rope.layout(), " is not known here"));
  }
  if (!v1::Rope::Scaling_IsValid(rope.scaling())) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec.rope.scaling: ", rope.scaling(), " is not known here"));
  }
  // Numbers that were left out take the value that means "nothing to do".
  const auto or_default = [](double value, double fallback) {
    return value == 0 ? fallback : value;
  };
  const RopeSpec none;
  RopeSpec out;
  out.layout = static_cast<RopeSpec::Layout>(rope.layout());
  out.scaling = static_cast<RopeSpec::Scaling>(rope.scaling());
  out.k_after_rope = !rope.k_before_rope();
  out.rotary_dims = rope.rotary_dims();
  out.theta = or_default(rope.theta(), none.theta);
  out.factor = or_default(rope.factor(), none.factor);
  out.low_freq_factor = or_default(rope.low_freq_factor(), none.low_freq_factor);
  out.high_freq_factor = or_default(rope.high_freq_factor(), none.high_freq_factor);
  out.original_context = rope.original_context();
  return out;
}

}  // namespace

void ToProto(const KvSpec& spec, v1::KvSpec& out) {
  out.set_model(spec.model);
  out.set_revision(spec.revision);
  out.set_layers(spec.layers);
  out.set_kv_heads(spec.kv_heads);
  out.set_head_dim_k(spec.head_dim_k);
  out.set_head_dim_v(spec.head_dim_v);
  out.set_dtype(static_cast<v1::DType>(spec.dtype));
  out.set_page_tokens(spec.page_tokens);
  out.set_rank(spec.rank);
  out.set_world_size(spec.world_size);
  ToProto(spec.rope, *out.mutable_rope());
  ToProto(spec.rope_details, *out.mutable_rope());
  out.set_engine(spec.engine);
  out.set_weight_quantization(spec.weight_quantization);
  out.set_adapter(spec.adapter);
  out.set_kv_scales(spec.kv_scales);
  out.set_sliding_window(spec.sliding_window);
  out.set_layer_layout(spec.layer_layout);
  if (spec.other_rope.layers.empty()) return;
  ToProto(spec.other_rope.rope, *out.mutable_other_rope());
  out.mutable_other_rope_layers()->Assign(spec.other_rope.layers.begin(),
                                          spec.other_rope.layers.end());
}

absl::StatusOr<KvSpec> FromProto(const v1::KvSpec& spec) {
  if (spec.dtype() == v1::DTYPE_UNSPECIFIED || !v1::DType_IsValid(spec.dtype())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "spec.dtype: ", spec.dtype(), " is not one of F16, BF16, F32, F8_E4M3, F8_E5M2"));
  }
  KvSpec out;
  out.model = spec.model();
  out.revision = spec.revision();
  out.layers = spec.layers();
  out.kv_heads = spec.kv_heads();
  out.head_dim_k = spec.head_dim_k();
  out.head_dim_v = spec.head_dim_v();
  out.dtype = static_cast<DType>(spec.dtype());
  out.page_tokens = spec.page_tokens();
  out.rank = spec.rank();
  out.world_size = spec.world_size() == 0 ? 1 : spec.world_size();
  KVSTOW_ASSIGN_OR_RETURN(out.rope, FromProto(spec.rope()));
  out.rope_details = DetailsOf(spec.rope());
  out.engine = spec.engine();
  out.weight_quantization = spec.weight_quantization();
  out.adapter = spec.adapter();
  out.kv_scales = spec.kv_scales();
  out.sliding_window = spec.sliding_window();
  out.layer_layout = spec.layer_layout();
  if (!spec.has_other_rope() && spec.other_rope_layers().empty()) return out;
  KVSTOW_ASSIGN_OR_RETURN(out.other_rope.rope, FromProto(spec.other_rope()));
  if (DetailsOf(spec.other_rope()) != RopeDetails()) {
    return absl::InvalidArgumentError(
        "spec.other_rope: attention_factor and the fields behind it must be left out: write them "
        "into layer_layout");
  }
  out.other_rope.layers = {spec.other_rope_layers().begin(), spec.other_rope_layers().end()};
  return out;
}

}  // namespace kvstow
