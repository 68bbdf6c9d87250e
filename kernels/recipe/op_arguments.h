// Reads the arguments of one op of a recipe.
//
// A view: the op must outlive it. Thread-safe. INVALID_ARGUMENT names the op, the argument and its
// allowed values.
#ifndef KVSTOW_KERNELS_RECIPE_OP_ARGUMENTS_H_
#define KVSTOW_KERNELS_RECIPE_OP_ARGUMENTS_H_

#include <cstdint>
#include <initializer_list>
#include <span>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

class OpArguments {
 public:
  explicit OpArguments(const Op& op) : op_(op) {}

  const Op& op() const { return op_; }
  // Returns a whole number within [low, high], or `otherwise` when the argument is absent.
  absl::StatusOr<uint32_t> Number(absl::string_view name, uint32_t otherwise, uint32_t low,
                                  uint32_t high) const;
  // Returns a decimal number within [low, high], or `otherwise` when the argument is absent.
  absl::StatusOr<double> Real(absl::string_view name, double otherwise, double low,
                              double high) const;
  // Returns the word as it stands, or `otherwise` when the argument is absent.
  absl::string_view Text(absl::string_view name, absl::string_view otherwise) const;
  // Returns the place in `words` of the given word, or 0 when the argument is absent.
  absl::StatusOr<size_t> Word(absl::string_view name,
                              std::initializer_list<absl::string_view> words) const;
  // Fails for a name that `names` lacks, a name given twice, and an argument without a name.
  absl::Status Only(std::span<const absl::string_view> names) const;
  absl::Status Only(std::initializer_list<absl::string_view> names) const {
    return Only(std::span(names.begin(), names.size()));
  }

 private:
  const OpArgument* Find(absl::string_view name) const;

  const Op& op_;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_RECIPE_OP_ARGUMENTS_H_
