#include "service/access/call_ids.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kSpan[] = "b7ad6b7169203331";

TEST(CallIds, ATraceparentGivesTraceAndSpan) {
  for (const std::string& parent : {absl::StrCat("00-", kTrace, "-", kSpan, "-01"),
                                    absl::StrCat("cc-", kTrace, "-", kSpan, "-01-later")}) {
    const CallIds ids = ReadCallIds("", parent);
    EXPECT_EQ(ids.trace, kTrace) << parent;
    EXPECT_EQ(ids.span, kSpan) << parent;
  }
}

TEST(CallIds, WhatIsNoTraceparentCountsAsNone) {
  const std::string good = absl::StrCat("00-", kTrace, "-", kSpan, "-01");
  EXPECT_EQ(ReadCallIds("", absl::StrCat(good, "-more")).trace, "") << "version 00 ends there";
  EXPECT_EQ(ReadCallIds("", absl::StrCat("ff", good.substr(2))).trace, "");
  EXPECT_EQ(ReadCallIds("", absl::StrCat("00-", std::string(32, '0'), "-", kSpan, "-01")).trace,
            "");
  EXPECT_EQ(ReadCallIds("", absl::StrCat("00-", kTrace, "-", std::string(16, '0'), "-01")).trace,
            "");
  for (size_t at = 0; at < good.size(); ++at) {
    EXPECT_EQ(ReadCallIds("", good.substr(0, at)).trace, "") << at;
    std::string wrong = good;
    wrong[at] = 'G';
    EXPECT_EQ(ReadCallIds("", wrong).trace, "") << wrong;
  }
}

TEST(CallIds, ARequestIdIsShortAndPlain) {
  EXPECT_EQ(ReadCallIds("a-B_9.z", "").request, "a-B_9.z");
  EXPECT_EQ(ReadCallIds(std::string(64, 'a'), "").request, std::string(64, 'a'));
  for (const std::string& wrong :
       {std::string(), std::string(65, 'a'), std::string("a b"), std::string("a\nb"),
        std::string("\"}"), std::string("\xc3\xa9"), std::string("a\0b", 3)}) {
    EXPECT_EQ(ReadCallIds(wrong, "").request, "") << wrong;
  }
}

}  // namespace
}  // namespace kvstow
