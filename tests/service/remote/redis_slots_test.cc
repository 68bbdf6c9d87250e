#include "service/remote/redis_slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "tests/storage/status_matchers.h"

namespace kvstow {
namespace {

absl::StatusOr<RedisSlotMap> ParseText(const std::string& text) {
  RedisReplyReader reader;
  std::vector<RedisReply> replies;
  EXPECT_OK(reader.Feed(AsBytes(text), replies));
  if (replies.size() != 1) return absl::InternalError("the test's text is no single reply");
  return RedisSlotMap::Parse(replies[0], "10.9.9.9");
}

std::string Node(const std::string& host, int port) {
  return absl::StrCat("*3\r\n$", host.size(), "\r\n", host, "\r\n:", port, "\r\n$2\r\nid\r\n");
}

TEST(RedisSlotsTest, KnowsTheVectorsOfTheSpecification) {
  EXPECT_EQ(RedisCrc16("123456789"), 0x31C3);
  EXPECT_EQ(RedisCrc16(""), 0);
  EXPECT_EQ(RedisSlotOf("foo"), 12182);
  EXPECT_EQ(RedisSlotOf("bar"), 5061);
  EXPECT_EQ(RedisSlotOf("hello"), 866);
}

TEST(RedisSlotsTest, HashTagsChooseTheSlot) {
  EXPECT_EQ(RedisSlotOf("{user1000}.following"), RedisSlotOf("user1000"));
  EXPECT_EQ(RedisSlotOf("foo{}{bar}"), RedisCrc16("foo{}{bar}") % kRedisSlots);
  EXPECT_EQ(RedisSlotOf("foo{{bar}}zap"), RedisSlotOf("{bar"));
  EXPECT_EQ(RedisSlotOf("foo{bar}{zap}"), RedisSlotOf("bar"));
  EXPECT_EQ(RedisSlotOf("foo{bar"), RedisCrc16("foo{bar") % kRedisSlots);
}

TEST(RedisSlotsTest, ReadsAMap) {
  const auto map =
      ParseText("*2\r\n*4\r\n:0\r\n:8000\r\n" + Node("10.0.0.1", 7000) + Node("10.0.0.2", 7001) +
                "*3\r\n:8001\r\n:16382\r\n" + "*4\r\n$-1\r\n:7002\r\n$2\r\nid\r\n*0\r\n");
  ASSERT_OK(map.status());
  ASSERT_NE(map->Find(0), nullptr);
  EXPECT_EQ(map->Find(8000)->primary.text(), "10.0.0.1:7000");
  ASSERT_EQ(map->Find(8000)->replicas.size(), 1u);
  EXPECT_EQ(map->Find(8000)->replicas[0].text(), "10.0.0.2:7001");
  EXPECT_EQ(map->Find(8001)->primary.text(), "10.9.9.9:7002") << "the host that was asked";
  EXPECT_EQ(map->Find(16383), nullptr);
  EXPECT_EQ(map->Find(65535), nullptr);
  EXPECT_EQ(map->holes(), 1u);
}

TEST(RedisSlotsTest, MovesASlot) {
  RedisSlotMap map = RedisSlotMap::Single({"a", 1});
  map.Move(5, {"b", 2});
  EXPECT_EQ(map.Find(5)->primary.text(), "b:2");
  EXPECT_EQ(map.Find(6)->primary.text(), "a:1");
  map.Move(6, {"b", 2});
  EXPECT_EQ(map.shards().size(), 2u);
  for (int i = 0; i < 5000; ++i) map.Move(7, {absl::StrCat("host", i), 1});
  EXPECT_LE(map.shards().size(), kMaxRedisNodes);
}

TEST(RedisSlotsTest, RefusesMapsThatCannotBe) {
  const std::string node = Node("a", 1);
  for (const std::string& text : std::vector<std::string>{
           "+OK\r\n", "*1\r\n:1\r\n", "*1\r\n*2\r\n:0\r\n:1\r\n",
           "*1\r\n*3\r\n:0\r\n:16384\r\n" + node, "*1\r\n*3\r\n:-1\r\n:5\r\n" + node,
           "*1\r\n*3\r\n:6\r\n:5\r\n" + node, "*1\r\n*3\r\n$1\r\n0\r\n:5\r\n" + node,
           "*1\r\n*3\r\n:0\r\n:5\r\n" + Node("a", 65536),
           "*1\r\n*3\r\n:0\r\n:5\r\n" + Node("a", -1), "*1\r\n*3\r\n:0\r\n:5\r\n" + Node("a b", 1),
           "*1\r\n*3\r\n:0\r\n:5\r\n" + Node(std::string(300, 'a'), 1),
           "*1\r\n*3\r\n:0\r\n:5\r\n*1\r\n$1\r\na\r\n", "*1\r\n*3\r\n:0\r\n:5\r\n:1\r\n",
           "*2\r\n*3\r\n:0\r\n:5\r\n" + node + "*3\r\n:5\r\n:6\r\n" + node}) {
    EXPECT_THAT(ParseText(text).status(), HasCode(absl::StatusCode::kInvalidArgument)) << text;
  }
  std::string many = "*2500\r\n";
  for (int i = 0; i < 2500; ++i) {
    absl::StrAppend(&many, "*3\r\n:", i, "\r\n:", i, "\r\n", Node(absl::StrCat("h", i), 1));
  }
  EXPECT_THAT(ParseText(many).status(), HasCode(absl::StatusCode::kInvalidArgument));
}

TEST(RedisSlotsTest, ReadsRedirections) {
  const auto moved = ParseRedisRedirect("MOVED 3999 127.0.0.1:6381", "h");
  ASSERT_TRUE(moved.has_value());
  EXPECT_FALSE(moved->ask);
  EXPECT_EQ(moved->slot, 3999);
  EXPECT_EQ(moved->to.text(), "127.0.0.1:6381");
  EXPECT_TRUE(ParseRedisRedirect("ASK 0 ::1:7000", "h")->ask);
  EXPECT_EQ(ParseRedisRedirect("ASK 0 ::1:7000", "h")->to.text(), "[::1]:7000");
  EXPECT_EQ(ParseRedisRedirect("MOVED 1 :7000", "h")->to.text(), "h:7000");
  for (const absl::string_view text :
       {"MOVED", "MOVED ", "MOVED 1", "MOVED 16384 a:1", "MOVED -1 a:1", "MOVED 1 a:0",
        "MOVED 1 a:65536", "MOVED 1 a:99999999999", "MOVED 1 a b:1", "MOVED 1 a:1 x", "ASK x a:1",
        "MOVED 1 ?:1", "ERR no", "", "moved 1 a:1", "MOVED 1 a"}) {
    EXPECT_FALSE(ParseRedisRedirect(text, "h").has_value()) << text;
  }
}

}  // namespace
}  // namespace kvstow
