#include "service/remote/redis_reply.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/status/statusor.h"
#include "base/digest.h"
#include "tests/storage/status_matchers.h"

namespace kvstow {
namespace {

using Kind = RedisReply::Kind;

absl::StatusOr<std::vector<RedisReply>> Read(const std::string& bytes, size_t piece) {
  RedisReplyReader reader;
  std::vector<RedisReply> replies;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    const std::string some = bytes.substr(at, piece);
    absl::Status fed = reader.Feed(AsBytes(some), replies);
    if (!fed.ok()) return fed;
  }
  return replies;
}

TEST(RedisReplyTest, ReadsAllKindsInPiecesOfAnySize) {
  const std::string text =
      std::string("+OK\r\n-ERR no\r\n:42\r\n:-7\r\n$5\r\na\r\nbc\r\n$-1\r\n") +
      "$0\r\n\r\n*0\r\n*-1\r\n*3\r\n$2\r\nx\n\r\n*2\r\n:1\r\n+two\r\n$-1\r\n+end\r\n";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    const auto replies = Read(text, piece);
    ASSERT_OK(replies.status());
    ASSERT_EQ(replies->size(), 11u) << piece;
    const auto& r = *replies;
    EXPECT_EQ(r[0].kind, Kind::kStatus);
    EXPECT_EQ(r[0].text, "OK");
    EXPECT_TRUE(r[1].is_error());
    EXPECT_EQ(r[1].text, "ERR no");
    EXPECT_EQ(r[2].integer, 42);
    EXPECT_EQ(r[3].integer, -7);
    EXPECT_EQ(r[4].kind, Kind::kBulk);
    EXPECT_EQ(r[4].view(), "a\r\nbc");
    EXPECT_EQ(r[5].kind, Kind::kNil);
    EXPECT_EQ(r[6].kind, Kind::kBulk);
    EXPECT_EQ(r[6].bytes.size(), 0u);
    EXPECT_EQ(r[7].kind, Kind::kArray);
    EXPECT_EQ(r[8].kind, Kind::kNil);
    ASSERT_EQ(r[9].elements.size(), 3u);
    EXPECT_EQ(r[9].elements[0].text, "x\n");
    ASSERT_EQ(r[9].elements[1].elements.size(), 2u);
    EXPECT_EQ(r[9].elements[1].elements[1].text, "two");
    EXPECT_EQ(r[9].elements[2].kind, Kind::kNil);
    EXPECT_EQ(r[10].text, "end");
  }
}

TEST(RedisReplyTest, ReadsLargeValuesWhereTheyBelong) {
  std::string value(300'000, '\0');
  for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 7 + i / 251);
  const std::string text = "$300000\r\n" + value + "\r\n$3\r\nabc\r\n";
  RedisReplyReader reader;
  std::vector<RedisReply> replies;
  for (size_t at = 0; at < text.size();) {
    size_t took = 0;
    for (const std::span<uint8_t> space : reader.Space()) {
      const size_t n = std::min({space.size(), text.size() - at, size_t{50'000}});
      std::copy_n(text.data() + at, n, space.begin());
      at += n;
      took += n;
      if (n < space.size()) break;
    }
    ASSERT_OK(reader.Took(took, replies));
  }
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_TRUE(replies[0].view() == value);
  EXPECT_EQ(replies[1].view(), "abc");
}

TEST(RedisReplyTest, RefusesWhatIsNoReply) {
  std::string endless = "+" + std::string(kMaxRedisReplyBytes + 10, 'x');
  std::string deep;
  for (int i = 0; i < 20; ++i) deep += "*1\r\n";
  const std::vector<std::string> bad = {"HTTP/1.1 400 Bad Request\r\n\r\n",
                                        "$67108865\r\n",
                                        "$9223372036854775807\r\n",
                                        "$99999999999999999999999999\r\n",
                                        "$-2\r\n",
                                        "$+5\r\n",
                                        "$ 5\r\n",
                                        "$\r\n",
                                        "$5\n",
                                        "$3\r\nabcd\r\n",
                                        "*100001\r\n",
                                        "*2147483647\r\n",
                                        "*9223372036854775807\r\n",
                                        "*2\r\n*60000\r\n" + std::string(":1\r\n:1\r\n") +
                                            [] {
                                              std::string all;
                                              for (int i = 0; i < 59998; ++i) all += ":1\r\n";
                                              return all;
                                            }() +
                                            "*60000\r\n",
                                        "*1\r\n$1\r\nabcd\r\n",
                                        ":abc\r\n",
                                        "?\r\n",
                                        "\r\n",
                                        deep,
                                        endless,
                                        "*1\r\n$9999999999\r\n" + endless};
  for (const std::string& text : bad) {
    EXPECT_THAT(Read(text, 1 << 20).status(), HasCode(absl::StatusCode::kInvalidArgument))
        << text.substr(0, 40);
  }
}

TEST(RedisReplyTest, ErrorsBecomeStatuses) {
  const auto code = [](absl::string_view error) { return StatusOfRedisError("n", error).code(); };
  EXPECT_EQ(code("OOM command not allowed when used memory > 'maxmemory'."),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code("NOAUTH Authentication required."), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(code("WRONGPASS invalid username-password pair"), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(code("NOPERM this user has no permissions"), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(code("WRONGTYPE Operation against a key"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("CLUSTERDOWN The cluster is down"), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code("ERR anything"), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(RedisErrorPasses("LOADING Redis is loading the dataset in memory"));
  EXPECT_FALSE(RedisErrorPasses("ERR anything"));
}

}  // namespace
}  // namespace kvstow
