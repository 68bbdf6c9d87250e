#include "kernels/importance/policy.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/importance/token_steps.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {
namespace {

absl::StatusOr<Protection> ReadProtection(const Op& op) {
  const OpArguments arguments(op);
  KVSTOW_RETURN_IF_ERROR(arguments.Only(kProtectionArguments));
  Protection out;
  KVSTOW_ASSIGN_OR_RETURN(out.first, arguments.Number("first", 0, 0, kMaxPageTokens));
  KVSTOW_ASSIGN_OR_RETURN(out.last, arguments.Number("last", 0, 0, kMaxPageTokens));
  return out;
}

absl::StatusOr<Budget> ReadBudget(const Op& op) {
  const OpArguments arguments(op);
  KVSTOW_RETURN_IF_ERROR(arguments.Only(kBudgetArguments));
  Budget out;
  KVSTOW_ASSIGN_OR_RETURN(out.keep, arguments.Real("keep", 1, 0, 1));
  if (!arguments.Text("count", "").empty()) {
    KVSTOW_ASSIGN_OR_RETURN(out.count, arguments.Number("count", 0, 0, kMaxPageTokens));
  }
  if (const std::string least(arguments.Text("threshold", "")); !least.empty()) {
    // The one argument that may be negative.
    const bool minus = least[0] == '-';
    const Op positive{op.name, {{"threshold", minus ? least.substr(1) : least}}};
    KVSTOW_ASSIGN_OR_RETURN(const double size, OpArguments(positive).Real("threshold", 0, 0, 1e30));
    out.threshold = minus ? -size : size;
  }
  KVSTOW_ASSIGN_OR_RETURN(const size_t scope,
                          arguments.Word("scope", {"head", "layer", "page", "token"}));
  out.scope = static_cast<BudgetScope>(scope);
  KVSTOW_ASSIGN_OR_RETURN(
      const size_t profile,
      arguments.Word("profile", {"flat", "pyramid", "decay", "variance", "lazy"}));
  out.profile = static_cast<LayerProfile>(profile);
  KVSTOW_ASSIGN_OR_RETURN(out.beta, arguments.Real("beta", 20, 1, 1e6));
  KVSTOW_ASSIGN_OR_RETURN(out.decay, arguments.Real("decay", 0.95, 0.01, 1));
  KVSTOW_ASSIGN_OR_RETURN(out.lazy, arguments.Real("lazy", 0.9, 0, 1));
  KVSTOW_ASSIGN_OR_RETURN(out.floor, arguments.Real("floor", 0, 0, 1));
  KVSTOW_ASSIGN_OR_RETURN(out.split, arguments.Real("split", 0, 0, 1));
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t merge, arguments.Number("merge", 0, 0, 1));
  out.merge = merge != 0;
  return out;
}

}  // namespace

absl::StatusOr<Recipe> WithKeep(const Recipe& recipe, double keep) {
  if (!recipe.drops_tokens()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "recipe '", recipe.text(), "' keeps every token: put a policy before it, as 'snapkv|",
        recipe.text(), "', to keep a share"));
  }
  std::vector<Op> ops(recipe.ops().begin(), recipe.ops().end());
  std::vector<OpArgument>& arguments = ops[recipe.policy_ops().size() - 1].arguments;
  std::erase_if(arguments, [](const OpArgument& a) {
    return a.name == "keep" || a.name == "count" || a.name == "threshold";
  });
  arguments.push_back({"keep", absl::StrFormat("%.6f", keep)});
  return Recipe(std::move(ops));
}

absl::Status ImportancePolicy::AddScoreOp(const Op& op, int& height) {
  const ScoreOpInfo* info = FindScoreOp(op.name);
  if (info == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", op.name, "' makes no score: a policy is score ops, then protect, budget or class"));
  }
  if (height < info->takes) {
    return absl::InvalidArgumentError(absl::StrCat("op '", op.name, "' takes ", info->takes,
                                                   " scores; the ops before it leave ", height));
  }
  const OpArguments arguments(op);
  KVSTOW_RETURN_IF_ERROR(arguments.Only(info->arguments));
  KVSTOW_ASSIGN_OR_RETURN(ScoreStep step, info->make(arguments));
  steps_.push_back(std::move(step));
  if (op.name == "column") columns_.emplace_back(arguments.Text("name", ""));
  reads_queries_ = reads_queries_ || info->reads_queries;
  height += info->gives - info->takes;
  return absl::OkStatus();
}

absl::StatusOr<ImportancePolicy> ImportancePolicy::Make(std::span<const Op> ops) {
  ImportancePolicy policy;
  int height = 0;
  if (ops.empty() || (ops.back().name != "budget" && ops.back().name != "class")) {
    return absl::InvalidArgumentError("a policy ends in 'budget' or 'class'");
  }
  const absl::string_view action = ops.back().name;
  if (action == "class") {
    const OpArguments arguments(ops.back());
    KVSTOW_RETURN_IF_ERROR(arguments.Only(kClassArguments));
    KVSTOW_ASSIGN_OR_RETURN(policy.power_, arguments.Real("power", kDefaultClassPower, 0, 2));
  } else {
    KVSTOW_ASSIGN_OR_RETURN(policy.budget_, ReadBudget(ops.back()));
  }
  ops = ops.first(ops.size() - 1);
  if (!ops.empty() && ops.back().name == "protect") {
    KVSTOW_ASSIGN_OR_RETURN(policy.protection_, ReadProtection(ops.back()));
    ops = ops.first(ops.size() - 1);
  }
  for (const Op& op : ops) KVSTOW_RETURN_IF_ERROR(policy.AddScoreOp(op, height));
  const int want = policy.budget_.split > 0 ? 2 : 1;
  if (height != want) {
    return absl::InvalidArgumentError(absl::StrCat("the ops before '", action, "' leave ", height,
                                                   " scores; it takes ", want,
                                                   want == 2 ? " (split)" : ""));
  }
  if (policy.budget_.profile == LayerProfile::kVariance) {
    policy.columns_.emplace_back(kWindowColumn);
    policy.columns_.emplace_back(kVarianceColumn);
  }
  return policy;
}

absl::Status ImportancePolicy::Run(ScoreStack& stack) const {
  const KvSpec& spec = stack.page.spec;
  if (stack.page.raw.size() != PageBytes(spec, stack.page.tokens) || stack.page.tokens == 0) {
    return absl::InvalidArgumentError(absl::StrCat("a page of ", stack.page.tokens,
                                                   " tokens does not have ", stack.page.raw.size(),
                                                   " bytes"));
  }
  if (!stack.page.protected_tokens.empty() &&
      stack.page.protected_tokens.size() != stack.page.tokens) {
    return absl::InvalidArgumentError(absl::StrCat("protected tokens are given for ",
                                                   stack.page.protected_tokens.size(), " of ",
                                                   stack.page.tokens, " tokens"));
  }
  for (const ScoreStep& step : steps_) KVSTOW_RETURN_IF_ERROR(step(stack));
  return absl::OkStatus();
}

absl::StatusOr<ScoreMap> ImportancePolicy::Scores(const PageToScore& page) const {
  ScoreStack stack{page, {}};
  KVSTOW_RETURN_IF_ERROR(Run(stack));
  return std::move(stack.scores.back());
}

std::vector<float> ImportancePolicy::LogStepsOf(const PageToScore& page, const ScoreMap& scores,
                                                LayerRange layers) const {
  return LogSteps(scores, layers, power_, protection_, page.protected_tokens);
}

absl::StatusOr<Selection> ImportancePolicy::Select(const PageToScore& page) const {
  ScoreStack stack{page, {}};
  KVSTOW_RETURN_IF_ERROR(Run(stack));
  ScoreMap window, variance;
  if (budget_.profile == LayerProfile::kVariance) {
    KVSTOW_ASSIGN_OR_RETURN(window, ColumnScores(page, kWindowColumn));
    KVSTOW_ASSIGN_OR_RETURN(variance, ColumnScores(page, kVarianceColumn));
  }
  const ScoreMap& scores = stack.scores.back();
  const std::vector<double> shares = LayerShares(budget_, protection_, scores, &window, &variance);
  Selection out = SelectTokens(budget_, protection_, page.protected_tokens, shares, scores,
                               budget_.split > 0 ? &stack.scores.front() : nullptr);
  out.merge = budget_.merge;
  return out;
}

}  // namespace kvstow
