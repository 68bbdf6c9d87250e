#include "client/key_chain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "absl/strings/str_split.h"
#include "base/digest.h"
#include "tests/paths.h"

namespace kvstow {
namespace {

std::string Hex(const std::string& key) { return HexOf(AsBytes(key)); }

// The vectors were computed by another implementation (Python's hashlib) from the definition in the
// header. They are for ever: keys name what is stored.
TEST(KeyChain, KeysAreTheSpecifiedDigests) {
  const std::vector<int32_t> first = {1, 2, 3, 4}, second = {5, 6}, edge = {-1, 2147483647};
  const std::string key = PageKey("", first);
  EXPECT_EQ(Hex(key), "15611ac44c11bd12b3e19c3c145ff7faea8b9fad9b4b9dba8bc62617266b6c88");
  EXPECT_EQ(Hex(PageKey(key, second)),
            "fbb142cd608bccd28f71151f6ba89514f954e6ce5ee199ab7640fae27b9abd85");
  EXPECT_EQ(Hex(PageKey("", first, std::vector<std::string>{"lora:a", ""})),
            "c46477eaa347264ff5266a58a224e9739cd1ae80cb33a6afc89b0a320cca274b");
  EXPECT_EQ(Hex(PageKey("", {})),
            "b937dfb358c4a7b55e737d0dcf93b99dcc3fc8aa1f09ad6a18ff82a663630c80");
  EXPECT_EQ(Hex(PageKey("", edge)),
            "40f1abc1986fc2e0283c211c7928d91934b3a0475009a507cd57cae787a2c1f6");
}

TEST(KeyChain, AChainIsItsPagesOneByOneWithTheExtrasInTheFirst) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7};
  const std::vector<std::string> extras = {"salt"};
  const auto keys = PageKeys(extras, tokens, 3);
  ASSERT_EQ(keys.size(), 3u);
  const std::span<const int32_t> t(tokens);
  EXPECT_EQ(keys[0], PageKey("", t.subspan(0, 3), extras));
  EXPECT_EQ(keys[1], PageKey(keys[0], t.subspan(3, 3)));
  EXPECT_EQ(keys[2], PageKey(keys[1], t.subspan(6, 1)));
}

TEST(KeyChain, ExtrasOfAPageEnterItsKeyAndThoseBehind) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::vector<std::string> salt = {"salt"};
  const std::vector<std::vector<std::string>> images = {{"a"}, {"b", "c"}};
  const auto keys = PageKeys(salt, tokens, 3, images);
  ASSERT_EQ(keys.size(), 3u);
  const std::span<const int32_t> t(tokens);
  EXPECT_EQ(keys[0], PageKey("", t.subspan(0, 3), std::vector<std::string>{"salt", "a"}));
  EXPECT_EQ(keys[1], PageKey(keys[0], t.subspan(3, 3), images[1]));
  EXPECT_EQ(keys[2], PageKey(keys[1], t.subspan(6, 3)));
  // The same tokens with another image in the second page share the first page alone.
  const auto other = PageKeys(salt, tokens, 3, std::vector<std::vector<std::string>>{{"a"}, {"d"}});
  EXPECT_EQ(other[0], keys[0]);
  EXPECT_NE(other[1], keys[1]);
  EXPECT_NE(other[2], keys[2]);
  // The page of an extra, and the place where an extra ends, count.
  EXPECT_NE(PageKeys({}, tokens, 3, std::vector<std::vector<std::string>>{{"b", "c"}})[2], keys[2]);
  EXPECT_NE(PageKeys({}, tokens, 9, std::vector<std::vector<std::string>>{{"bc"}})[0],
            PageKeys({}, tokens, 9, std::vector<std::vector<std::string>>{{"b", "c"}})[0]);
}

// tests/golden/page_keys_v1.txt: a case a line, made by another implementation
// (tests/reference/page_keys.py): page_tokens, token ids, extras by page, and the keys that are
// due.
TEST(KeyChain, GoldenFile) {
  std::ifstream in(TestsPath("golden/page_keys_v1.txt"));
  const auto list = [](const std::string& text, char separator) -> std::vector<std::string> {
    if (text.empty()) return {};
    return absl::StrSplit(text, separator);
  };
  int cases = 0;
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, '|');
    ASSERT_EQ(fields.size(), 4u) << line;
    std::vector<int32_t> tokens;
    for (const std::string& id : list(fields[1], ',')) tokens.push_back(std::stoi(id));
    std::vector<std::vector<std::string>> extras;
    for (const std::string& page : list(fields[2], ';')) extras.push_back(list(page, ','));
    std::vector<std::string> keys;
    const auto page_tokens = static_cast<uint32_t>(std::stoi(fields[0]));
    for (const std::string& key : PageKeys({}, tokens, page_tokens, extras)) {
      keys.push_back(Hex(key));
    }
    EXPECT_EQ(keys, list(fields[3], ',')) << line;
    ++cases;
  }
  EXPECT_GE(cases, 5) << "tests/golden/page_keys_v1.txt is missing";
}

TEST(KeyChain, EqualKeysMeanEqualPrefixes) {
  std::vector<int32_t> a(600), b(600);
  for (int i = 0; i < 600; ++i) a[i] = b[i] = i;
  b[300] = -7;
  const auto x = PageKeys({}, a, 256), y = PageKeys({}, b, 256);
  EXPECT_EQ(x[0], y[0]);
  EXPECT_NE(x[1], y[1]);
  EXPECT_NE(x[2], y[2]) << "a page after a difference must differ";
  EXPECT_TRUE(PageKeys({}, {}, 256).empty());
  EXPECT_TRUE(PageKeys({}, a, 0).empty());
}

}  // namespace
}  // namespace kvstow
