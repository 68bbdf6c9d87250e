// The access file: what it may say, and what is said about one that is wrong.
#include "service/access/access_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/service/access/tenants.h"

namespace kvstow::testing {
namespace {

using ::testing::HasSubstr;

TEST(AccessFile, SaysTenantsIdentitiesAndShares) {
  const auto file = ParseAccessFile(R"({
    "tenants": {"team-a": {"weight": 2, "guarantee": {"host": "4GiB"},
                           "limit": {"host": "8GiB", "disk": 1000}, "pages": 7, "spaces": 16,
                           "streams": 32, "put_bytes_per_second": "200MiB",
                           "get_bytes_per_second": "1GiB", "remote_bytes": "2TiB",
                           "kv_events": true},
                "team-b": {}},
    "identities": [{"certificate": "spiffe://prod/team-a", "tenant": "team-a", "role": "worker"},
                   {"uid": 1001, "tenant": "team-b", "role": "reader"},
                   {"certificate": "dns:ops.example", "role": "admin"}],
    "shared_spaces": [{"space": "docs", "tenant": "team-a", "with": ["team-b"]}]})");
  ASSERT_TRUE(file.ok()) << file.status();
  const TenantLimits& a = file->tenants.at("team-a").limits;
  EXPECT_EQ(a.weight, 2);
  EXPECT_EQ(a.guarantee, (TierBytes{0, uint64_t{4} << 30, 0}));
  EXPECT_EQ(a.limit, (TierBytes{0, uint64_t{8} << 30, 1000}));
  EXPECT_EQ(a.pages, 7u);
  EXPECT_EQ(a.spaces, 16u);
  EXPECT_EQ(a.streams, 32u);
  EXPECT_EQ(a.put_bytes_per_second, uint64_t{200} << 20);
  EXPECT_EQ(a.get_bytes_per_second, uint64_t{1} << 30);
  EXPECT_EQ(a.remote_bytes, uint64_t{2} << 40);
  EXPECT_TRUE(file->tenants.at("team-a").kv_events);
  EXPECT_EQ(file->tenants.at("team-b").limits, TenantLimits{});
  ASSERT_EQ(file->identities.size(), 3u);
  EXPECT_EQ(std::get<std::string>(file->identities[0].fact), "spiffe://prod/team-a");
  EXPECT_EQ(file->identities[0].caller.tenant, "team-a");
  EXPECT_EQ(file->identities[0].caller.role, Role::kWorker);
  EXPECT_EQ(std::get<uid_t>(file->identities[1].fact), 1001u);
  EXPECT_EQ(file->identities[1].caller.identity, "uid:1001");
  EXPECT_EQ(file->identities[2].caller.role, Role::kAdmin);
  EXPECT_EQ(file->shares.at(0).owner, "team-a");
  EXPECT_FALSE(file->shares[0].write);
}

TEST(AccessFile, NamesThePlaceOfEveryMistake) {
  const std::string hash = TokenHash("x");
  const struct {
    std::string text, place;
  } rows[] = {
      {"", "it is no JSON object"},
      {"[]", "it is no JSON object"},
      {R"({"tenants": )", "it is no JSON object"},
      {R"({"tenants": [[[[[[[[[[]]]]]]]]]]})", "it is no JSON object"},
      {R"({"tenant": {}})", "tenant: there is no such key"},
      {R"({"tenants": {"a": {}, "a": {}}})", "a: an object has this key twice"},
      {R"({"tenants": {"a/b": {}}})", "tenants.a/b: the name of a tenant"},
      {R"({"tenants": {"a": []}})", "tenants.a: write an object"},
      {R"({"tenants": {"a": {"wait": 1}}})", "tenants.a.wait: there is no such key"},
      {R"({"tenants": {"a": {"weight": 0}}})", "tenants.a.weight: write a number above 0"},
      {R"({"tenants": {"a": {"pages": -1}}})", "tenants.a.pages: write a number from 0 on"},
      {R"({"tenants": {"a": {"limit": {"ram": 1}}}})", "tenants.a.limit.ram: there is no such"},
      {R"({"tenants": {"a": {"limit": {"host": "4 apples"}}}})", "tenants.a.limit.host: "},
      {R"({"tenants": {"a": {"limit": {"host": 1}, "guarantee": {"host": 2}}}})",
       "tenants.a.guarantee.host: 2 bytes are guaranteed, and at most 1 allowed"},
      {R"({"identities": {}})", "identities: write a list"},
      {R"({"identities": [{"role": "admin"}]})", "identities[0]: an identity is one of"},
      {R"({"identities": [{"uid": 1, "certificate": "dns:x", "role": "admin"}]})",
       "identities[0]: an identity is one of"},
      {R"({"identities": [{"uid": -1, "role": "admin"}]})", "identities[0].uid: write the number"},
      {R"({"identities": [{"uid": 4294967295, "role": "admin"}]})", "identities[0].uid: "},
      {R"({"identities": [{"certificate": "ops", "role": "admin"}]})",
       "identities[0].certificate: write a name as"},
      {R"({"identities": [{"certificate": "dns:", "role": "admin"}]})",
       "identities[0].certificate: write a name as"},
      {R"({"identities": [{"token_sha256": "12", "name": "x", "role": "admin"}]})",
       "identities[0].token_sha256: write the 64"},
      {R"({"identities": [{"token_sha256": ")" + TokenHash("") + R"(", "name": "x"}]})",
       "identities[0].token_sha256: this is the SHA-256 of an empty token"},
      {R"({"identities": [{"token_sha256": ")" + hash + R"(", "role": "admin"}]})",
       "identities[0].name: "},
      {R"({"identities": [{"uid": 1, "name": "x", "role": "admin"}]})", "identities[0].name: "},
      {R"({"identities": [{"uid": 1, "role": "king"}]})", "identities[0].role: write reader"},
      {R"({"identities": [{"uid": 1}]})", "identities[0].role: write reader"},
      {R"({"identities": [{"uid": 1, "role": "worker"}]})", "identities[0].tenant: say whose"},
      {R"({"tenants": {"a": {}}, "identities": [{"uid": 1, "role": "admin", "tenant": "a"}]})",
       "identities[0].tenant: an admin's calls are about all tenants"},
      {R"({"identities": [{"uid": 1, "role": "worker", "tenant": "x"}]})",
       "identities[0].tenant: there is no tenant 'x'"},
      {R"({"identities": [{"uid": 1, "role": "admin"}, {"uid": 1, "role": "admin"}]})",
       "identities[1]: uid:1 is there twice"},
      {R"({"tenants": {"a": {}}, "shared_spaces": [{"tenant": "a", "with": ["a"]}]})",
       "shared_spaces[0].space: name the space"},
      {R"({"tenants": {"a": {}}, "shared_spaces": [{"space": "s", "tenant": "a", "with": []}]})",
       "shared_spaces[0].with: name a tenant"},
      {R"({"tenants": {"a": {}}, "shared_spaces": [{"space": "s", "tenant": "a", "with": ["a"]}]})",
       "shared_spaces[0].with: 'a' owns the space"},
      {R"({"tenants": {"a": {}}, "shared_spaces": [{"space": "s", "tenant": "a", "with": ["b"]}]})",
       "shared_spaces[0].with: there is no tenant 'b'"},
      {R"({"tenants": {"a": {}, "b": {}, "c": {}}, "shared_spaces": [
           {"space": "s", "tenant": "a", "with": ["c"]},
           {"space": "s", "tenant": "b", "with": ["c"]}]})",
       "shared_spaces[1].with: 'c' finds two spaces under the name 's'"},
      {std::string(kMaxAccessFileBytes + 1, ' '), "bytes: at most"},
  };
  for (const auto& row : rows) {
    const absl::Status status = ParseAccessFile(row.text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << row.place << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.place));
  }
}

TEST(AccessFile, TwoTokensOfOneHashAreOneIdentity) {
  Json file = AccessJson();
  Json again = file["identities"][0];
  again["name"] = "somebody";
  file["identities"].push_back(again);
  EXPECT_THAT(std::string(ParseAccessFile(file.dump()).status().message()),
              HasSubstr("there twice"));
}

}  // namespace
}  // namespace kvstow::testing
