#include "kernels/recipe/op_arguments.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvstow {

const OpArgument* OpArguments::Find(absl::string_view name) const {
  for (const OpArgument& argument : op_.arguments) {
    if (argument.name == name) return &argument;
  }
  return nullptr;
}

absl::StatusOr<uint32_t> OpArguments::Number(absl::string_view name, uint32_t otherwise,
                                             uint32_t low, uint32_t high) const {
  const OpArgument* argument = Find(name);
  if (argument == nullptr) return otherwise;
  uint32_t value = 0;
  if (absl::SimpleAtoi(argument->value, &value) && value >= low && value <= high) return value;
  return absl::InvalidArgumentError(absl::StrCat("op '", op_.name, "': ", name, "='",
                                                 argument->value, "' must be a whole number from ",
                                                 low, " to ", high));
}

absl::StatusOr<double> OpArguments::Real(absl::string_view name, double otherwise, double low,
                                         double high) const {
  const OpArgument* argument = Find(name);
  if (argument == nullptr) return otherwise;
  double value = 0;
  const bool plain = argument->value.find_first_not_of("0123456789.") == std::string::npos;
  if (plain && absl::SimpleAtod(argument->value, &value) && value >= low && value <= high)
    return value;
  return absl::InvalidArgumentError(absl::StrCat("op '", op_.name, "': ", name, "='",
                                                 argument->value, "' must be a number from ", low,
                                                 " to ", high));
}

absl::string_view OpArguments::Text(absl::string_view name, absl::string_view otherwise) const {
  const OpArgument* argument = Find(name);
  return argument == nullptr ? otherwise : absl::string_view(argument->value);
}

absl::StatusOr<size_t> OpArguments::Word(absl::string_view name,
                                         std::initializer_list<absl::string_view> words) const {
  const OpArgument* argument = Find(name);
  if (argument == nullptr) return 0;
  const auto* found = std::find(words.begin(), words.end(), argument->value);
  if (found != words.end()) return static_cast<size_t>(found - words.begin());
  return absl::InvalidArgumentError(absl::StrCat("op '", op_.name, "': ", name, "='",
                                                 argument->value,
                                                 "' must be one of: ", absl::StrJoin(words, ", ")));
}

absl::Status OpArguments::Only(std::span<const absl::string_view> names) const {
  for (const OpArgument& argument : op_.arguments) {
    const bool known = std::find(names.begin(), names.end(), argument.name) != names.end();
    if (known && Find(argument.name) == &argument) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("op '", op_.name, "': argument '", argument.name, "' ('", argument.value,
                     "') is ", known ? "given twice" : "unknown",
                     "; it takes: ", names.empty() ? "none" : absl::StrJoin(names, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace kvstow
