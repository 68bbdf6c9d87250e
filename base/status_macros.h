// Early return for absl::Status and absl::StatusOr.
//
//   KVSTOW_RETURN_IF_ERROR(store.Flush());
//   KVSTOW_ASSIGN_OR_RETURN(const Recipe recipe, ParseRecipe(text));
//
// Both work in functions that return absl::Status or absl::StatusOr<T>.
#ifndef KVSTOW_BASE_STATUS_MACROS_H_
#define KVSTOW_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define KVSTOW_RETURN_IF_ERROR(expr)                                                       \
  do {                                                                                     \
    if (absl::Status kvstow_status_ = (expr); !kvstow_status_.ok()) return kvstow_status_; \
  } while (false)

#define KVSTOW_ASSIGN_OR_RETURN(declaration, expr) \
  KVSTOW_ASSIGN_OR_RETURN_1_(KVSTOW_CONCAT_(kvstow_statusor_, __LINE__), declaration, expr)
#define KVSTOW_ASSIGN_OR_RETURN_1_(tmp, declaration, expr) \
  auto tmp = (expr);                                       \
  if (!tmp.ok()) return std::move(tmp).status();           \
  declaration = *std::move(tmp)
#define KVSTOW_CONCAT_(a, b) KVSTOW_CONCAT_1_(a, b)
#define KVSTOW_CONCAT_1_(a, b) a##b

#endif  // KVSTOW_BASE_STATUS_MACROS_H_
