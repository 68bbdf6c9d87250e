// Which node serves next, and when a node is asked. Time stands still unless a test moves it.
#include "client/connection/node_list.h"

#include <gtest/gtest.h>

namespace kvstow {
namespace {

constexpr Duration kRest = NodeList::kRest;
constexpr Duration kMoment = std::chrono::milliseconds(1);

class NodeListTest : public testing::Test {
 protected:
  std::string Question() { return list_.NextQuestion(now_).value_or(""); }

  Time now_{std::chrono::hours(1)};
  NodeList list_{{"a", "b", "c"}};
};

TEST_F(NodeListTest, TheFirstServesAndNobodyIsAsked) {
  EXPECT_EQ(list_.current(), "a");
  EXPECT_EQ(list_.next_question(), Time::max());
  EXPECT_EQ(Question(), "");
  EXPECT_EQ(list_.changes(), 0u);
}

TEST_F(NodeListTest, TheNextTakesOverAtOnce) {
  EXPECT_TRUE(list_.Failed("a", now_));
  EXPECT_EQ(list_.current(), "b");
  EXPECT_TRUE(list_.Failed("b", now_));
  EXPECT_EQ(list_.current(), "c");
  EXPECT_EQ(list_.changes(), 2u);
}

TEST_F(NodeListTest, AFailureOfAnotherNodeChangesNothing) {
  EXPECT_TRUE(list_.Failed("b", now_)) << "the call should go to a";
  EXPECT_EQ(list_.current(), "a");
  EXPECT_TRUE(list_.Failed("a", now_));
  EXPECT_EQ(list_.current(), "c") << "b has failed just now";
}

TEST_F(NodeListTest, WhenAllFailedCallsTryTheOneThatRestedLongest) {
  for (const char* node : {"a", "b", "c"}) {
    EXPECT_EQ(list_.Failed(node, now_), std::string(node) != "c");
    now_ += kMoment;
  }
  EXPECT_EQ(list_.current(), "a");
  EXPECT_FALSE(list_.Failed("a", now_)) << "the call should wait";
  EXPECT_EQ(list_.current(), "b");
  EXPECT_EQ(list_.changes(), 2u) << "trying the dead is no change";
  now_ += kRest;
  EXPECT_TRUE(list_.Failed("b", now_)) << "the others have rested";
  EXPECT_EQ(list_.current(), "a");
}

TEST_F(NodeListTest, APreferredNodeIsAskedOnceItHasRested) {
  list_.Failed("a", now_);
  EXPECT_EQ(list_.next_question(), now_ + kRest);
  now_ += kRest - kMoment;
  EXPECT_EQ(Question(), "");
  now_ += kMoment;
  EXPECT_EQ(Question(), "a");
  EXPECT_EQ(Question(), "") << "one question at a time";
  EXPECT_EQ(list_.next_question(), Time::max());
  EXPECT_EQ(list_.current(), "b") << "until it answers";
  list_.Answered("a", true, now_);
  EXPECT_EQ(list_.current(), "a");
  EXPECT_EQ(list_.changes(), 2u);
  EXPECT_EQ(list_.next_question(), Time::max());
}

TEST_F(NodeListTest, ABadAnswerIsAnotherRest) {
  list_.Failed("a", now_);
  for (int i = 0; i < 5; ++i) {
    now_ += kRest;
    ASSERT_EQ(Question(), "a");
    list_.Answered("a", false, now_);
    EXPECT_EQ(list_.current(), "b");
    EXPECT_EQ(list_.next_question(), now_ + kRest);
  }
  EXPECT_EQ(list_.changes(), 1u);
}

TEST_F(NodeListTest, TheBetterOneOfTwoIsAskedFirstAndThenTheOther) {
  list_.Failed("a", now_);
  list_.Failed("b", now_);
  now_ += kRest;
  ASSERT_EQ(Question(), "a");
  list_.Answered("a", false, now_);
  ASSERT_EQ(Question(), "b");
  list_.Answered("b", true, now_);
  EXPECT_EQ(list_.current(), "b");
  now_ += kRest;
  ASSERT_EQ(Question(), "a");
  list_.Answered("a", true, now_);
  EXPECT_EQ(list_.current(), "a");
}

TEST_F(NodeListTest, NoOneAsksALessPreferredNode) {
  list_.Failed("b", now_);
  list_.Failed("c", now_);
  now_ += 10 * kRest;
  EXPECT_EQ(Question(), "");
}

TEST_F(NodeListTest, ASuspectIsAskedAtOnce) {
  list_.Suspect("b");
  EXPECT_EQ(Question(), "") << "b does not serve";
  list_.Suspect("a");
  ASSERT_EQ(Question(), "a");
  list_.Answered("a", true, now_);
  EXPECT_EQ(list_.current(), "a");
  EXPECT_EQ(Question(), "");
  list_.Suspect("a");
  ASSERT_EQ(Question(), "a");
  list_.Answered("a", false, now_);
  EXPECT_EQ(list_.current(), "b");
}

TEST_F(NodeListTest, AnOldAnswerTakesNothingBack) {
  list_.Failed("a", now_);
  list_.Failed("b", now_);
  now_ += kRest;
  ASSERT_EQ(Question(), "a");
  list_.Answered("a", true, now_);
  ASSERT_EQ(list_.current(), "a");
  list_.Answered("b", true, now_);
  EXPECT_EQ(list_.current(), "a") << "b is less preferred";
}

TEST_F(NodeListTest, AnotherOrderKeepsTheCurrentNodeAndWhatIsKnown) {
  list_.Failed("a", now_);
  list_.SetOrder({"new", "a", "b"}, now_);
  EXPECT_EQ(list_.current(), "b");
  EXPECT_EQ(list_.changes(), 1u);
  ASSERT_EQ(Question(), "new") << "it may be better; a rests";
  list_.Answered("new", false, now_);
  EXPECT_EQ(Question(), "");
  now_ += kRest;
  EXPECT_EQ(Question(), "new");
}

TEST_F(NodeListTest, ACurrentNodeThatIsGoneIsReplaced) {
  list_.Failed("a", now_);
  list_.SetOrder({"a", "c"}, now_);
  EXPECT_EQ(list_.current(), "c") << "a rests";
  EXPECT_TRUE(list_.Failed("b", now_)) << "a call that is still there goes on at c";
  list_.Answered("b", true, now_);
  EXPECT_EQ(list_.current(), "c");
}

TEST(NodeListOfOne, HasNoOtherChoice) {
  NodeList list({"a"});
  EXPECT_FALSE(list.Failed("a", Time()));
  EXPECT_EQ(list.current(), "a");
  EXPECT_EQ(list.next_question(), Time::max());
  EXPECT_EQ(list.changes(), 0u);
}

}  // namespace
}  // namespace kvstow
