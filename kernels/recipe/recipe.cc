#include "kernels/recipe/recipe.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace kvstow {

std::string PipelineText(std::span<const Op> ops) {
  std::string out;
  for (const Op& op : ops) {
    absl::StrAppend(&out, out.empty() ? "" : "|", op.name);
    absl::string_view open = "(";
    for (const OpArgument& a : op.arguments) {
      absl::StrAppend(&out, open, a.name, a.name.empty() ? "" : "=", a.value);
      open = ",";
    }
    if (!op.arguments.empty()) out += ')';
  }
  return out;
}

Recipe::Recipe(std::vector<Op> ops, std::string text)
    : text_(std::move(text)), pipeline_(PipelineText(ops)), ops_(std::move(ops)) {
  if (text_.empty()) text_ = pipeline_;
  for (size_t i = 0; i < ops_.size(); ++i) {
    if (ops_[i].name == "budget" || ops_[i].name == "class") policy_ops_ = i + 1;
  }
}

}  // namespace kvstow
