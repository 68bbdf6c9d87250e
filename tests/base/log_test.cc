#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace kvstow {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// Puts a string in place of standard error for the length of a test.
class LogTest : public testing::Test {
 protected:
  void SetUp() override {
    sinks_ = Log().sinks();
    Log().sinks() = {std::make_shared<spdlog::sinks::ostream_sink_st>(out_)};
  }
  void TearDown() override { Log().sinks() = sinks_; }

  std::ostringstream out_;
  std::vector<spdlog::sink_ptr> sinks_;
};

TEST_F(LogTest, TextIsTimeLevelAndMessage) {
  ASSERT_TRUE(SetUpLog("info", "text").ok());
  Log().info("ready in {} ms", 12);
  EXPECT_THAT(out_.str(), MatchesRegex("....-..-..T..:..:......? info ready in 12 ms\n"));
}

TEST_F(LogTest, AJsonLineStaysOneJsonStringWhateverTheMessage) {
  ASSERT_TRUE(SetUpLog("info", "json").ok());
  Log().warn("{}", std::string("a \"quoted\" C:\\path\r\n\ttab \x01 ") + '\0' + " end é");
  const std::string line = out_.str();
  EXPECT_THAT(line, HasSubstr(R"("level":"warning","message":"a \"quoted\" C:\\path\u000d\n\ttab )"
                              R"(\u0001 \u0000 end é"})"));
  EXPECT_THAT(line, MatchesRegex(R"(\{"time":"....-..-..T..:..:......?[+-]..:..",.*\}.)"));
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
}

TEST_F(LogTest, TheLevelIsALimit) {
  ASSERT_TRUE(SetUpLog("warn", "text").ok());
  Log().info("not this");
  Log().error("but this");
  EXPECT_THAT(out_.str(),
              testing::AllOf(HasSubstr("but this"), testing::Not(HasSubstr("not this"))));
  ASSERT_TRUE(SetUpLog("off", "text").ok());
  Log().critical("nothing");
  EXPECT_THAT(out_.str(), testing::Not(HasSubstr("nothing")));
}

TEST_F(LogTest, WrongNamesAreRefusedAndChangeNothing) {
  ASSERT_TRUE(SetUpLog("error", "text").ok());
  for (const auto& [level, format] : {std::pair("loud", "text"), std::pair("", "text"),
                                      std::pair("info", "xml"), std::pair("info", "")}) {
    const absl::Status status = SetUpLog(level, format);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << level << " " << format;
  }
  EXPECT_THAT(std::string(SetUpLog("loud", "text").message()), HasSubstr("'loud'"));
  EXPECT_EQ(Log().level(), spdlog::level::err);
}

}  // namespace
}  // namespace kvstow
