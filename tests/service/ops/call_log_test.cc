#include "service/ops/call_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "tests/log_lines.h"

namespace kvstow {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CallLogTest : public ::testing::Test {
 protected:
  void Note(absl::string_view method, absl::string_view space, absl::string_view code,
            Duration took) {
    clock_.Advance(milliseconds(1));
    log_.Note(method, space, code, took, clock_.Now());
  }
  ManualClock clock_;
  CallLog log_;
};

TEST_F(CallLogTest, FastCallsLeaveNothing) {
  for (int i = 0; i < 100; ++i) Note("Lookup", "s", "OK", CallLog::kSlow);
  EXPECT_THAT(log_.Slow(), IsEmpty());
  EXPECT_THAT(log_.Failing(), IsEmpty());
  EXPECT_EQ(log_.failed(), 0u);
}

TEST_F(CallLogTest, CallsOfOneKindShareARow) {
  Note("Pin", "s", "OK", milliseconds(5));
  Note("Pin", "s", "OK", milliseconds(9));
  Note("Pin", "s", "OK", milliseconds(7));
  Note("Pin", "other", "OK", milliseconds(8));
  const auto rows = log_.Slow();
  ASSERT_THAT(rows, SizeIs(2));
  EXPECT_EQ(rows[0].space, "s");
  EXPECT_EQ(rows[0].calls, 3u);
  EXPECT_EQ(rows[0].slowest, milliseconds(9));
  EXPECT_EQ(rows[1].space, "other");
}

TEST_F(CallLogTest, FailuresCountHoweverFastTheyAre) {
  Note("Get page", "s", "CORRUPT", {});
  Note("Get page", "s", "EXPIRED", {});
  Note("Get page", "s", "CORRUPT", {});
  const auto rows = log_.Failing();
  ASSERT_THAT(rows, SizeIs(2));
  EXPECT_EQ(rows[0].code, "CORRUPT");  // the last to happen
  EXPECT_EQ(rows[0].calls, 2u);
  EXPECT_EQ(rows[1].code, "EXPIRED");
  EXPECT_EQ(log_.failed(), 3u);
  EXPECT_THAT(log_.Slow(), IsEmpty());
}

TEST_F(CallLogTest, TheSlowestKindsStay) {
  for (int i = 0; i < 1000; ++i) Note("Lookup", absl::StrCat(i), "OK", milliseconds(2 + i % 500));
  const auto rows = log_.Slow();
  ASSERT_THAT(rows, SizeIs(CallLog::kSlowRows));
  for (const CallRow& row : rows) EXPECT_GE(row.slowest, milliseconds(494)) << row.space;
}

TEST_F(CallLogTest, AFloodOfNamesKeepsTheLastFailuresOnly) {
  for (int i = 0; i < 1000; ++i) Note("Lookup", absl::StrCat(i), "NOT_FOUND", {});
  const auto rows = log_.Failing();
  ASSERT_THAT(rows, SizeIs(CallLog::kFailingRows));
  EXPECT_EQ(rows[0].space, "999");
  EXPECT_EQ(log_.failed(), 1000u);
}

TEST_F(CallLogTest, WhatNoSpaceCanBeCalledIsNoName) {
  for (const std::string& text : {std::string(4 << 20, '\x01'), std::string(129, 'a'),
                                  std::string("\xff"), std::string("a \"b\"")}) {
    Note("Lookup", text, "NOT_FOUND", {});
  }
  Note("Lookup", std::string(128, 'a'), "NOT_FOUND", {});
  const auto rows = log_.Failing();
  ASSERT_THAT(rows, SizeIs(2));
  EXPECT_EQ(rows[0].space, std::string(128, 'a'));
  EXPECT_EQ(rows[1].space, "");
  EXPECT_EQ(rows[1].calls, 4u);
}

TEST_F(CallLogTest, AfterAnHourACallIsForgottenAndFasterOnesAreSlowAgain) {
  for (size_t i = 0; i < CallLog::kSlowRows; ++i) {
    Note("Flush", absl::StrCat(i), "OK", std::chrono::seconds(10));
  }
  Note("Flush", "", "UNAVAILABLE", {});
  Note("Pin", "s", "OK", milliseconds(3));
  EXPECT_THAT(log_.Slow(), SizeIs(CallLog::kSlowRows));
  clock_.Advance(minutes(59));
  log_.DropOld(clock_.Now());
  EXPECT_THAT(log_.Slow(), SizeIs(CallLog::kSlowRows));
  clock_.Advance(minutes(2));
  log_.DropOld(clock_.Now());
  EXPECT_THAT(log_.Slow(), IsEmpty());
  EXPECT_THAT(log_.Failing(), IsEmpty());
  Note("Pin", "s", "OK", milliseconds(3));
  EXPECT_THAT(log_.Slow(), SizeIs(1));
}

class CallLinesTest : public CallLogTest {
 protected:
  CallLinesTest() {
    EXPECT_TRUE(SetUpLog("warn", "text").ok());
    log_.LogFrom(std::chrono::seconds(1));
  }
  testing::LogLines lines_{"call"};
};

TEST_F(CallLinesTest, SlowAndFailingCallsGetALine) {
  const auto ids = [] { return CallIds{.request = "r", .trace = "t", .span = "s"}; };
  log_.Note("Pin", "a/b", "OK", milliseconds(1500), clock_.Now(), ids);
  Note("Pin", "s", "OK", milliseconds(999));
  Note("Get", "", "UNAVAILABLE", {});
  const auto lines = lines_.Take();
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(lines[0],
            nlohmann::json::parse(R"({"call":"Pin","space":"a/b","code":"OK",)"
                                  R"("ms":1500.0,"request":"r","trace":"t","span":"s"})"));
  EXPECT_EQ(lines[1], nlohmann::json::parse(R"({"call":"Get","code":"UNAVAILABLE","ms":0.0})"));
}

TEST_F(CallLinesTest, WhatNoSpaceCanBeCalledIsInNoLine) {
  Note("Pin", std::string(4 << 20, '\x01'), "UNAUTHENTICATED", {});
  const auto lines = lines_.Take();
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0], nlohmann::json::parse(R"({"call":"Pin","code":"UNAUTHENTICATED","ms":0.0})"));
}

TEST_F(CallLinesTest, AFullTableDoesNotHideWhatIsSlow) {
  for (size_t i = 0; i < CallLog::kSlowRows; ++i) {
    Note("Flush", absl::StrCat(i), "OK", std::chrono::seconds(30));
    clock_.Advance(std::chrono::seconds(1));
  }
  EXPECT_THAT(lines_.Take(), SizeIs(CallLog::kSlowRows));
  Note("Pin", "s", "OK", std::chrono::seconds(2));
  EXPECT_THAT(lines_.Take(), SizeIs(1));
}

TEST_F(CallLinesTest, AFloodLeavesTenLinesASecondAndItsNumber) {
  for (int i = 0; i < 500; ++i) Note("Lookup", "s", "NOT_FOUND", {});
  EXPECT_THAT(lines_.Take(), SizeIs(CallLog::kLines));
  clock_.Advance(std::chrono::seconds(1));
  Note("Lookup", "s", "NOT_FOUND", {});
  const auto lines = lines_.Take();
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0]["left_out"], 500 - CallLog::kLines);
  EXPECT_EQ(log_.failed(), 501u);
}

TEST_F(CallLinesTest, WithoutALimitNothingSlowIsLogged) {
  CallLog silent;
  silent.Note("Pin", "s", "OK", std::chrono::hours(1), clock_.Now());
  EXPECT_THAT(lines_.Take(), IsEmpty());
}

}  // namespace
}  // namespace kvstow
