#include "kernels/device/score_plan.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/importance/score_maps.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow::gpu {
namespace {

absl::Status NotOnDevices(absl::string_view what) {
  return absl::UnimplementedError(
      absl::StrCat(what, " is not on devices: let the CPU's policy choose"));
}

// The ops that devices take, with their usual numbers: those of score_ops.cc, which has checked the
// arguments.
struct DeviceOp {
  absl::string_view name;
  ScoreOpKind kind;
  absl::string_view number = "";  // the argument that is a whole number
  uint32_t usual_number = 0;
  absl::string_view real = "";  // or any
  double usual_real = 0;
};
constexpr DeviceOp kDeviceOps[] = {
    {"position", ScoreOpKind::kPosition},
    {"random", ScoreOpKind::kRandom, "seed", 7},
    {"key_norm", ScoreOpKind::kKeyNorm},
    {"value_norm", ScoreOpKind::kValueNorm},
    {"key_diversity", ScoreOpKind::kKeyDiversity},
    {"lag", ScoreOpKind::kLag, "size", 128},
    {"pool", ScoreOpKind::kPool, "width", 5},
    {"chunk", ScoreOpKind::kChunk, "size", 20},
    {"norm", ScoreOpKind::kNorm},
    {"heads", ScoreOpKind::kHeads},
    {"decay", ScoreOpKind::kDecay, "", 0, "half", 256},
    {"shift", ScoreOpKind::kShift, "", 0, "by", 0},
    {"plus", ScoreOpKind::kPlus, "", 0, "weight", 1},
    {"times", ScoreOpKind::kTimes},
};

// The place of the argument `kind` among its words.
absl::StatusOr<size_t> HowOf(const OpArguments& arguments, ScoreOpKind kind) {
  if (kind == ScoreOpKind::kNorm) {
    return arguments.Word("kind", {"standard", "softmax", "rank", "max", "sum"});
  }
  if (kind == ScoreOpKind::kPool || kind == ScoreOpKind::kHeads) {
    return arguments.Word("kind", {"mean", "max"});
  }
  return 0;
}

bool AllFinite(const ScoreMap& map) {
  return std::ranges::all_of(map.values, [](float x) { return std::isfinite(x); });
}

}  // namespace

absl::StatusOr<ScorePlan> ScorePlan::Make(const Recipe& recipe, const KvSpec& spec) {
  KVSTOW_RETURN_IF_ERROR(Validate(spec));
  if (IsFloat8(spec.dtype)) {
    return absl::InvalidArgumentError("tokens of FP8 pages have no scores");
  }
  const std::span<const Op> ops = recipe.policy_ops();
  KVSTOW_ASSIGN_OR_RETURN(ImportancePolicy policy, ImportancePolicy::Make(ops));
  if (ops.back().name != "budget") return NotOnDevices(absl::StrCat("'", ops.back().name, "'"));
  if (policy.budget().profile == LayerProfile::kLazy) return NotOnDevices("budget(profile=lazy)");
  ScorePlan plan(spec, std::move(policy));
  // Scores that the host gives have the first slots.
  for (const Op& op : ops) {
    if (op.name != "column" && op.name != "head_table") continue;
    KVSTOW_ASSIGN_OR_RETURN(plan.given_.emplace_back(),
                            FindScoreOp(op.name)->make(OpArguments(op)));
  }
  plan.slots_ = plan.given();
  std::vector<uint32_t> stack;
  uint32_t given = 0;
  for (const Op& op : ops.first(ops.size() - 1)) {
    if (op.name == "protect") continue;
    if (op.name == "column" || op.name == "head_table") {
      stack.push_back(given++);
      continue;
    }
    KVSTOW_RETURN_IF_ERROR(plan.AddOp(op, stack));
  }
  plan.first_ = stack.front();
  plan.last_ = stack.back();
  return plan;
}

absl::Status ScorePlan::AddOp(const Op& op, std::vector<uint32_t>& stack) {
  const auto* const found =
      std::ranges::find_if(kDeviceOps, [&](const DeviceOp& row) { return row.name == op.name; });
  if (found == std::end(kDeviceOps)) return NotOnDevices(absl::StrCat("'", op.name, "'"));
  const OpArguments arguments(op);
  ScoreOp out{.kind = found->kind};
  KVSTOW_ASSIGN_OR_RETURN(const size_t how, HowOf(arguments, found->kind));
  out.how = static_cast<uint8_t>(how);
  if (!found->number.empty()) {
    KVSTOW_ASSIGN_OR_RETURN(out.number,
                            arguments.Number(found->number, found->usual_number, 0, UINT32_MAX));
  }
  if (!found->real.empty()) {
    KVSTOW_ASSIGN_OR_RETURN(out.real, arguments.Real(found->real, found->usual_real, 0, 1e9));
  }
  const int takes = FindScoreOp(op.name)->takes;
  if (takes == 0) stack.push_back(slots_++);
  if (takes == 2) {
    out.from = stack.back();
    stack.pop_back();
  }
  out.to = stack.back();
  ops_.push_back(out);
  return absl::OkStatus();
}

ScoreLayout ScorePlan::LayoutOf(uint32_t tokens) const {
  ScoreLayout layout{.layers = spec_.layers, .tokens = tokens, .heads = spec_.kv_heads};
  layout.dim[0] = spec_.head_dim_k;
  layout.dim[1] = spec_.head_dim_v;
  layout.values = spec_.dtype == DType::kF16    ? Values::kF16
                  : spec_.dtype == DType::kBF16 ? Values::kBF16
                                                : Values::kF32;
  layout.part_offset[1] = SlabOffset(spec_, 0, Part::kV, tokens);
  layout.layer_bytes = LayerBytes(spec_, tokens);
  return layout;
}

absl::StatusOr<std::vector<std::optional<PreparedPage>>> ScorePlan::Prepare(
    std::span<const ScoreJob> pages, Owns owns) const {
  std::vector<std::optional<PreparedPage>> out;
  for (size_t i = 0; i < pages.size(); ++i) {
    const auto named = [&](const absl::Status& status) {
      return absl::Status(status.code(),
                          absl::StrCat("page ", i, " of the call: ", status.message()));
    };
    if (const absl::Status fits = CheckPage(pages[i], owns); !fits.ok()) return named(fits);
    auto prepared = PreparePage(pages[i]);
    if (!prepared.ok()) return named(prepared.status());
    out.push_back(*std::move(prepared));
  }
  return out;
}

absl::Status ScorePlan::CheckPage(const ScoreJob& page, Owns owns) const {
  const auto wrong = [](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(what...));
  };
  if (page.tokens < 1 || page.tokens > spec_.page_tokens) {
    return wrong(page.tokens, " tokens; this space has pages of 1 to ", spec_.page_tokens);
  }
  if (page.raw == nullptr || !owns(*page.raw)) return wrong("its buffer must be the device's own");
  if (const size_t bytes = PageBytes(spec_, page.tokens); page.raw->size() < bytes) {
    return wrong("a raw page has ", bytes, " bytes, the buffer ", page.raw->size());
  }
  if (!page.protected_tokens.empty() && page.protected_tokens.size() != page.tokens) {
    return wrong("protected tokens are given for ", page.protected_tokens.size(), " of ",
                 page.tokens, " tokens");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<PreparedPage>> ScorePlan::PreparePage(const ScoreJob& page) const {
  // The scores that are made here do not need the page's bytes.
  const PageToScore to_score{.spec = spec_,
                             .raw = {},
                             .tokens = page.tokens,
                             .first_position = page.first_position,
                             .columns = page.columns};
  ScoreStack stack{to_score, {}};
  for (const ScoreStep& step : given_) KVSTOW_RETURN_IF_ERROR(step(stack));
  ScoreMap window, variance;
  if (budget().profile == LayerProfile::kVariance) {
    KVSTOW_ASSIGN_OR_RETURN(window, ColumnScores(to_score, kWindowColumn));
    KVSTOW_ASSIGN_OR_RETURN(variance, ColumnScores(to_score, kVarianceColumn));
  }
  if (!AllFinite(window) || !AllFinite(variance) || !std::ranges::all_of(stack.scores, AllFinite)) {
    return std::nullopt;
  }
  ScoreMap shape;  // shares of layers do not depend on the scores themselves, but for `lazy`
  shape.layers = spec_.layers;
  shape.tokens = page.tokens;
  shape.heads = spec_.kv_heads;
  const std::vector<double> shares =
      LayerShares(budget(), policy_.protection(), shape, &window, &variance);
  return PreparedPage{std::move(stack.scores),
                      FillsOf(budget(), shares, page.tokens, spec_.kv_heads)};
}

}  // namespace kvstow::gpu
