#include "kernels/codec/parse_recipe.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "kernels/codec/ops.h"
#include "kernels/codec/presets.h"
#include "kernels/codec/rate_codec.h"
#include "kernels/importance/policy.h"

namespace kvstow {
namespace {

constexpr size_t kMaxRecipeChars = 1024;  // bounds what a page header may make us parse

bool InWord(char c) {
  return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_' || c == '-' || c == '.';
}

// A cursor over recipe text; the first error sticks.
class Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  absl::StatusOr<std::vector<Op>> Pipeline() {
    std::vector<Op> ops;
    do {
      KVSTOW_ASSIGN_OR_RETURN(Op op, OneOp());
      ops.push_back(std::move(op));
    } while (Take('|'));
    if (at_ != text_.size()) return Expected("'|', '(' or the end");
    return ops;
  }

 private:
  absl::StatusOr<Op> OneOp() {
    Op op;
    SkipSpace();
    const size_t begin = at_;
    op.name = Word();
    if (op.name.empty() || !absl::ascii_islower(op.name[0])) {
      at_ = begin;
      return Expected("the name of an op or a preset, in lower case");
    }
    if (!Take('(')) return op;
    do {
      OpArgument argument{.value = Word()};
      if (argument.value.empty()) return Expected("an argument: a number or a word");
      if (Take('=')) {
        argument.name = std::move(argument.value);
        argument.value = Word();
        if (argument.value.empty()) return Expected("a number or a word");
      }
      op.arguments.push_back(std::move(argument));
    } while (Take(','));
    if (!Take(')')) return Expected("',' or ')'");
    return op;
  }

  std::string Word() {
    SkipSpace();
    const size_t begin = at_;
    while (at_ < text_.size() && InWord(text_[at_])) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  bool Take(char c) {
    SkipSpace();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    SkipSpace();
    return true;
  }

  void SkipSpace() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  absl::Status Expected(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("recipe '", text_, "': expected ", what, " at character ", at_ + 1));
  }

  const absl::string_view text_;
  size_t at_ = 0;
};

const Preset* FindPreset(absl::string_view name) {
  for (const std::span<const Preset> table : {CodecPresets(), PolicyPresets()}) {
    for (const Preset& preset : table) {
      if (preset.name == name) return &preset;
    }
  }
  return nullptr;
}

// A step, or what rate control is to find one for.
bool IsRate(absl::string_view name) { return name == "step" || IsRateTarget(name); }

absl::Status OneRate(const Op& op) {
  const auto is_rate = [](const OpArgument& a) { return IsRate(a.name); };
  if (std::count_if(op.arguments.begin(), op.arguments.end(), is_rate) < 2) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", op.name, "': give only one of step, ratio, error and divergence"));
}

// Arguments of a preset replace those that its pipeline writes out.
absl::Status Override(const Op& preset, std::vector<Op>& ops) {
  for (const OpArgument& given : preset.arguments) {
    if (std::ranges::count(preset.arguments, given.name, &OpArgument::name) > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("preset '", preset.name, "': give '", given.name, "' only once"));
    }
    bool found = false;
    std::string known;
    for (Op& op : ops) {
      for (OpArgument& argument : op.arguments) {
        if (argument.name.empty()) continue;
        absl::StrAppend(&known, known.empty() ? "" : ", ", argument.name);
        const bool same = argument.name == given.name;
        if (found || !(same || (argument.name == "step" && IsRate(given.name)))) continue;
        argument = given;
        found = true;
      }
    }
    if (found) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("preset '", preset.name, "' has no argument '", given.name, "' ('",
                     given.value, "'): give by name one of: ", known.empty() ? "(none)" : known));
  }
  return absl::OkStatus();
}

// Arguments that stand by place get their names, so that one codec has one pipeline.
absl::Status NameArguments(Op& op) {
  const std::span<const absl::string_view> names = OpArgumentNames(op.name);
  if (names.empty()) return absl::OkStatus();
  for (size_t i = 0; i < op.arguments.size(); ++i) {
    OpArgument& argument = op.arguments[i];
    if (!argument.name.empty()) continue;
    if (i >= names.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("op '", op.name, "' takes at most ", names.size(), " arguments"));
    }
    argument.name = std::string(names[i]);
  }
  return absl::OkStatus();
}

// Refuses what a space may have and a codec may not: `auto`, and two forms.
absl::Status IsOfACodec(absl::string_view text) {
  absl::string_view rest = absl::StripLeadingAsciiWhitespace(text);
  const bool forms = absl::StartsWith(rest, "hot=");
  const bool fits = absl::ConsumePrefix(&rest, "auto") && (rest.empty() || !InWord(rest[0]));
  if (!forms && !fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("recipe '", text, "' is one of a space, whose server codes pages twice: name ",
                   "one form here, for example kvstow"));
}

}  // namespace

absl::StatusOr<Recipe> ParseRecipe(absl::string_view text) {
  if (text.size() > kMaxRecipeChars) {
    return absl::InvalidArgumentError(
        absl::StrCat("a recipe of ", text.size(), " characters; the limit is ", kMaxRecipeChars));
  }
  KVSTOW_RETURN_IF_ERROR(IsOfACodec(text));
  KVSTOW_ASSIGN_OR_RETURN(std::vector<Op> parsed, Parser(text).Pipeline());
  std::string canonical = PipelineText(parsed);
  std::vector<Op> ops;
  for (Op& op : parsed) {
    const Preset* preset = IsOp(op.name) ? nullptr : FindPreset(op.name);
    if (preset == nullptr) {
      ops.push_back(std::move(op));
      continue;
    }
    KVSTOW_ASSIGN_OR_RETURN(std::vector<Op> expanded, Parser(preset->pipeline).Pipeline());
    KVSTOW_RETURN_IF_ERROR(OneRate(op));
    KVSTOW_RETURN_IF_ERROR(Override(op, expanded));
    std::move(expanded.begin(), expanded.end(), std::back_inserter(ops));
  }
  for (Op& op : ops) {
    KVSTOW_RETURN_IF_ERROR(NameArguments(op));
    KVSTOW_RETURN_IF_ERROR(OneRate(op));
  }
  return Recipe(std::move(ops), std::move(canonical));
}

}  // namespace kvstow
