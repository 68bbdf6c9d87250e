#include "kernels/codec/run_codecs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/codec/compose.h"
#include "kernels/codec/ops.h"
#include "kernels/importance/policy.h"
#include "kernels/methods/raw_run_codec.h"
#include "kernels/methods/rope_run_codec.h"
#include "kernels/methods/slab_run_codec.h"
#include "kernels/methods/sparse_run_codec.h"
#include "kernels/page/encoded_page.h"

namespace kvstow {
namespace {

constexpr size_t kRunBytes = 1 << 20;

absl::Status Wrong(const Recipe& recipe, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("recipe '", recipe.text(), "': ", why));
}

// A codec whose tokens have classes.
absl::StatusOr<std::unique_ptr<const RunCodec>> MakeClassed(
    const Recipe& recipe, const KvSpec& spec, std::shared_ptr<const Calibration> calibration) {
  const std::span<const Op> ops = recipe.codec_ops();
  const OpInfo* const info = ops.empty() ? nullptr : FindOp(ops.back().name);
  if (info == nullptr || info->make_classed == nullptr || ops.size() > 2 ||
      (ops.size() == 2 && ops[0].name != "run")) {
    return Wrong(recipe, "only kvstow and kvstow-cal may follow 'class'");
  }
  return info->make_classed(OpArguments(ops.back()), spec, std::move(calibration));
}

absl::Status OnlyExact(const Recipe& recipe, DType dtype) {
  return Wrong(recipe, absl::StrCat(DTypeName(dtype), " pages take only 'raw' and 'lossless'"));
}

size_t FirstAfterRun(const Recipe& recipe) { return recipe.codec_ops()[0].name == "run" ? 1 : 0; }

// Makes the run codec of the ops from `first` on.
absl::StatusOr<std::unique_ptr<const RunCodec>> MakeFrom(
    const Recipe& recipe, size_t first, const KvSpec& spec,
    std::shared_ptr<const Calibration> calibration) {
  const std::span<const Op> ops = recipe.codec_ops();
  if (first == ops.size()) return Wrong(recipe, "it must end in 'raw' or in a quantizer");
  const OpArguments arguments(ops[first]);
  const OpInfo* info = FindOp(ops[first].name);
  if (info == nullptr)
    return Wrong(recipe, absl::StrCat("there is no op or preset '", ops[first].name,
                                      "': `kvstow codec list` shows what there is"));
  const bool stands_alone = info->kind == OpKind::kRaw || info->kind == OpKind::kCalibrated ||
                            info->kind == OpKind::kRunCodec;
  if (stands_alone && first + 1 < ops.size())
    return Wrong(recipe, absl::StrCat("nothing may follow '", ops[first].name, "'"));
  if (info->kind == OpKind::kRaw) {
    KVSTOW_RETURN_IF_ERROR(arguments.Only({}));
    return MakeRawRunCodec(spec);
  }
  if (IsFloat8(spec.dtype) && info->kind != OpKind::kRunCodec) return OnlyExact(recipe, spec.dtype);
  if (info->kind == OpKind::kRope && first == FirstAfterRun(recipe)) {
    KVSTOW_RETURN_IF_ERROR(arguments.Only({}));
    KVSTOW_ASSIGN_OR_RETURN(auto inner, MakeFrom(recipe, first + 1, FloatSpec(spec), nullptr));
    if (inner->exact()) return Wrong(recipe, "'rope' takes no exact codec");
    return MakeRopeRunCodec(spec, std::move(inner));
  }
  if (info->kind == OpKind::kCalibrated) {
    if (first > 0) return Wrong(recipe, absl::StrCat("'", ops[first].name, "' stands alone"));
    return info->make_calibrated(arguments, spec, std::move(calibration));
  }
  if (info->kind == OpKind::kRunCodec) {
    KVSTOW_ASSIGN_OR_RETURN(auto own, info->make_run_codec(arguments, spec));
    if (IsFloat8(spec.dtype) && !own->exact()) return OnlyExact(recipe, spec.dtype);
    return own;
  }
  absl::StatusOr<SlabOps> slabs = ComposeSlabOps(ops.subspan(first));
  if (!slabs.ok()) return Wrong(recipe, slabs.status().message());
  return MakeSlabRunCodec(spec, std::move(slabs->transforms), std::move(slabs->quantizer));
}

}  // namespace

absl::StatusOr<std::optional<CalibrationNeed>> CalibrationNeeds(const Recipe& recipe) {
  for (const Op& op : recipe.ops()) {
    const OpInfo* info = FindOp(op.name);
    if (info == nullptr || info->kind != OpKind::kCalibrated) continue;
    KVSTOW_ASSIGN_OR_RETURN(CalibrationNeed need, ReadCalibrationNeed(OpArguments(op)));
    return std::optional<CalibrationNeed>(std::move(need));
  }
  return std::optional<CalibrationNeed>();
}

bool IsForNormedKeys(const Recipe& recipe) {
  return std::ranges::any_of(recipe.codec_ops(), [](const Op& op) {
    const auto keys = OpArguments(op).Number("keys", 0, 0, 2);
    return op.name == "planes" && keys.ok() && *keys == 2;
  });
}

absl::StatusOr<Recipe> NameCalibration(const Recipe& recipe, absl::string_view id) {
  KVSTOW_ASSIGN_OR_RETURN(const auto need, CalibrationNeeds(recipe));
  if (!need.has_value() || !absl::StartsWith(id, need->blob)) return recipe;
  std::vector<Op> ops(recipe.ops().begin(), recipe.ops().end());
  for (Op& op : ops) {
    if (op.name != need->section) continue;
    std::erase_if(op.arguments, [](const OpArgument& a) { return a.name == "blob"; });
    op.arguments.push_back({"blob", std::string(id)});
  }
  return Recipe(std::move(ops));
}

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeRunCodec(
    const Recipe& recipe, const KvSpec& spec, std::shared_ptr<const Calibration> calibration) {
  if (recipe.policy_ops().empty())
    return MakeFrom(recipe, FirstAfterRun(recipe), spec, std::move(calibration));
  if (calibration != nullptr && recipe.drops_tokens()) {
    return Wrong(recipe, "a calibrated codec takes whole tokens: end the policy in 'class'");
  }
  if (IsFloat8(spec.dtype)) return Wrong(recipe, "FP8 pages take only 'raw' and 'lossless'");
  KVSTOW_RETURN_IF_ERROR(ImportancePolicy::Make(recipe.policy_ops()).status());
  if (!recipe.drops_tokens()) return MakeClassed(recipe, spec, std::move(calibration));
  KvSpec head = spec;
  head.layers = head.kv_heads = 1;
  head.other_rope = {};
  if (recipe.codec_ops().empty()) {
    return MakeSparseRunCodec(spec, MakeRawRunCodec(head));
  }
  KVSTOW_ASSIGN_OR_RETURN(auto codec, MakeFrom(recipe, FirstAfterRun(recipe), head, nullptr));
  return MakeSparseRunCodec(spec, std::move(codec));
}

absl::StatusOr<uint32_t> LayersPerRun(const Recipe& recipe, const KvSpec& spec, uint32_t levels) {
  const auto fewest =
      static_cast<uint32_t>((spec.layers * levels + kMaxSegments - 1) / kMaxSegments);
  const size_t layer = LayerBytes(spec, spec.page_tokens);
  const auto usual = static_cast<uint32_t>(
      std::clamp<size_t>(kRunBytes / layer, std::max(fewest, 1u), spec.layers));
  KVSTOW_ASSIGN_OR_RETURN(const auto calibrated, CalibrationNeeds(recipe));
  if (calibrated.has_value()) {
    if (calibrated->layers_per_run >= fewest)
      return std::min(calibrated->layers_per_run, spec.layers);
    return Wrong(recipe, absl::StrCat("runs must have at least ", fewest, " layers"));
  }
  const std::span<const Op> ops = recipe.codec_ops();
  if (ops.empty() || ops[0].name != "run") return usual;
  const OpArguments arguments(ops[0]);
  KVSTOW_RETURN_IF_ERROR(arguments.Only({"layers"}));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t asked,
                          arguments.Number("layers", usual, std::max(fewest, 1u), kMaxLayers));
  return std::min(asked, spec.layers);
}

absl::StatusOr<uint32_t> LayersTogether(const Recipe& recipe, const KvSpec& spec, uint32_t levels) {
  const bool apart = std::ranges::none_of(recipe.codec_ops(), [](const Op& op) {
    const OpInfo* const info = FindOp(op.name);
    return info != nullptr &&
           (info->kind == OpKind::kCalibrated || info->kind == OpKind::kRunCodec);
  });
  return apart ? absl::StatusOr<uint32_t>(1) : LayersPerRun(recipe, spec, levels);
}

}  // namespace kvstow
