#include "kernels/importance/query_needs.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/importance/policy.h"
#include "kernels/importance/query_tables.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

absl::StatusOr<std::optional<CalibrationNeed>> QueryNeeds(const Recipe& recipe) {
  std::optional<CalibrationNeed> out;
  for (const Op& op : recipe.policy_ops()) {
    const ScoreOpInfo* const info = FindScoreOp(op.name);
    if (info == nullptr || !info->reads_queries) continue;
    KVSTOW_ASSIGN_OR_RETURN(CalibrationNeed need, ReadCalibrationNeed(OpArguments(op)));
    need.section = std::string(kQuerySection);
    if (out.has_value() && out->blob != need.blob) {
      return absl::InvalidArgumentError(
          absl::StrCat("recipe '", recipe.text(), "' names statistics of queries '", out->blob,
                       "' and '", need.blob, "': all of its ops read the same"));
    }
    out = std::move(need);
  }
  return out;
}

absl::StatusOr<Recipe> NameQueries(const Recipe& recipe, absl::string_view id) {
  KVSTOW_ASSIGN_OR_RETURN(const auto need, QueryNeeds(recipe));
  if (!need.has_value() || !absl::StartsWith(id, need->blob)) return recipe;
  std::vector<Op> ops(recipe.ops().begin(), recipe.ops().end());
  for (Op& op : std::span(ops).first(recipe.policy_ops().size())) {
    const ScoreOpInfo* const info = FindScoreOp(op.name);
    if (info == nullptr || !info->reads_queries) continue;
    std::erase_if(op.arguments, [](const OpArgument& a) { return a.name == "blob"; });
    op.arguments.push_back({"blob", std::string(id)});
  }
  return Recipe(std::move(ops));
}

}  // namespace kvstow
