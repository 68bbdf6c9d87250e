// Matchers for absl::Status that print the message when they fail.
#ifndef KVSTOW_TESTS_STORAGE_STATUS_MATCHERS_H_
#define KVSTOW_TESTS_STORAGE_STATUS_MATCHERS_H_

#include <gmock/gmock.h>

#include <string>

#include "absl/status/status.h"

namespace kvstow {

MATCHER_P(HasCode, code, std::string("has the code ") + absl::StatusCodeToString(code)) {
  *result_listener << arg;
  return arg.code() == code;
}
#define EXPECT_OK(expr) EXPECT_THAT((expr), HasCode(absl::StatusCode::kOk))
#define ASSERT_OK(expr) ASSERT_THAT((expr), HasCode(absl::StatusCode::kOk))

}  // namespace kvstow

#endif  // KVSTOW_TESTS_STORAGE_STATUS_MATCHERS_H_
