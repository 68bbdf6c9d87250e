#include "base/status_macros.h"

#include <gtest/gtest.h>

#include <memory>

namespace kvstow {
namespace {

absl::Status FailIf(bool fail) { return fail ? absl::NotFoundError("not here") : absl::OkStatus(); }

absl::StatusOr<std::unique_ptr<int>> Boxed(bool fail, int value) {
  KVSTOW_RETURN_IF_ERROR(FailIf(fail));
  return std::make_unique<int>(value);
}

absl::StatusOr<int> Sum(bool fail_first, bool fail_second) {
  KVSTOW_ASSIGN_OR_RETURN(const std::unique_ptr<int> a, Boxed(fail_first, 40));
  KVSTOW_ASSIGN_OR_RETURN(const std::unique_ptr<int> b, Boxed(fail_second, 2));
  return *a + *b;
}

TEST(StatusMacrosTest, GoOnWhenAllIsWell) {
  ASSERT_TRUE(Sum(false, false).ok());
  EXPECT_EQ(*Sum(false, false), 42);
}

TEST(StatusMacrosTest, ReturnTheFirstError) {
  EXPECT_EQ(Sum(true, false).status(), absl::NotFoundError("not here"));
  EXPECT_EQ(Sum(false, true).status(), absl::NotFoundError("not here"));
}

TEST(StatusMacrosTest, EvaluateTheirArgumentOnce) {
  int calls = 0;
  const auto call = [&calls]() -> absl::Status {
    KVSTOW_RETURN_IF_ERROR((++calls, absl::OkStatus()));
    return absl::OkStatus();
  };
  EXPECT_TRUE(call().ok());
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace kvstow
