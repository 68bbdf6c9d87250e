// What an address of several servers means, and which of them come first.
#include "client/connection/address_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

TEST(ParseAddresses, SplitsAtCommas) {
  const auto listed = ParseAddresses(
      "unix:/run/kvstow/kvstow.sock, 10.0.0.1:7380,dns:///kvstow.svc:7380,[::1]:7380");
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_THAT(
      *listed,
      ElementsAre(ListedAddress{"unix:/run/kvstow/kvstow.sock"}, ListedAddress{"10.0.0.1:7380"},
                  ListedAddress{"kvstow.svc:7380", /*by_name=*/true}, ListedAddress{"[::1]:7380"}));
}

TEST(ParseAddresses, TakesAnAddressOnce) {
  const auto listed = ParseAddresses("a:1,b:1,a:1");
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_THAT(*listed, ElementsAre(ListedAddress{"a:1"}, ListedAddress{"b:1"}));
}

TEST(ParseAddresses, NamesTheWrongPart) {
  const absl::Status empty = ParseAddresses("").status();
  EXPECT_TRUE(absl::IsInvalidArgument(empty));
  EXPECT_THAT(std::string(empty.message()), HasSubstr("it is empty: write HOST:PORT"));
  for (const char* bad : {",", "a:1,", ",a:1", "a:1,,b:1", "a:1, ,b:1"}) {
    const absl::Status status = ParseAddresses(bad).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("address:"), HasSubstr("an empty part")));
  }
  for (const char* bad : {"nothing", "http://x:1", "dns:///", "dns:///name", "dns:///unix:/x"}) {
    const absl::Status status = ParseAddresses(absl::StrCat("a:1,", bad)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("'", bad, "'")));
  }
}

TEST(ByPreference, IsTheSocketThenThisHostThenTheOthersInTheirOrder) {
  const OwnHost own{.name = "node-3", .addresses = {"10.0.0.3", "fd00::3"}};
  EXPECT_THAT(ByPreference({"10.0.0.9:1", "10.0.0.3:1", "10.0.0.1:1", "unix:/a", "node-3:2"}, own),
              ElementsAre("unix:/a", "10.0.0.3:1", "node-3:2", "10.0.0.9:1", "10.0.0.1:1"));
  EXPECT_THAT(ByPreference({"far:1", "[fd00::3]:1", "127.0.0.1:1", "localhost:1"}, own),
              ElementsAre("[fd00::3]:1", "127.0.0.1:1", "localhost:1", "far:1"));
  EXPECT_THAT(ByPreference({"127.example.org:1", "10.0.0.33:1", "127.0.0.1:1"}, own),
              ElementsAre("127.0.0.1:1", "127.example.org:1", "10.0.0.33:1"));
}

TEST(OwnHost, HasItsLoopback) {
  const OwnHost own = OwnHost::Read();
  EXPECT_FALSE(own.name.empty());
  EXPECT_THAT(own.addresses, Contains("127.0.0.1"));
  EXPECT_TRUE(own.Has(own.name + ":7380"));
  EXPECT_FALSE(own.Has("192.0.2.1:7380")) << "an address for documents";
}

TEST(SpreadBy, IsStableAndDiffersFromHostToHost) {
  const std::vector<std::string> nodes = {"a:1", "b:1", "c:1", "d:1"};
  std::map<std::string, int> first;
  for (int host = 0; host < 400; ++host) {
    const std::string name = absl::StrCat("worker-", host);
    const auto order = SpreadBy(name, nodes);
    EXPECT_THAT(order, UnorderedElementsAreArray(nodes));
    EXPECT_EQ(SpreadBy(name, {"d:1", "b:1", "a:1", "c:1"}), order);
    ++first[order[0]];
    // When the first node goes, its clients go to the second one, and nobody else moves.
    std::vector<std::string> left = order;
    left.erase(left.begin());
    EXPECT_EQ(SpreadBy(name, left), left);
  }
  for (const std::string& node : nodes) EXPECT_GT(first[node], 50) << "of 100 expected";
}

TEST(Resolve, GivesNumbersWithThePort) {
  const auto here = Resolve("localhost:7380");
  ASSERT_TRUE(here.ok()) << here.status();
  EXPECT_THAT(*here, Each(testing::AnyOf("127.0.0.1:7380", "[::1]:7380")));
  EXPECT_THAT(*here, Contains("127.0.0.1:7380"));
  const absl::Status none = Resolve("no-such-host.invalid:7380").status();
  EXPECT_TRUE(absl::IsUnavailable(none)) << none;
  EXPECT_THAT(std::string(none.message()), HasSubstr("no-such-host.invalid"));
}

}  // namespace
}  // namespace kvstow
