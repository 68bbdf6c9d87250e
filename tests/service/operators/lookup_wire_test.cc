// Lookup's messages beside what generated code makes of them.
#include "service/operators/lookup_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "kvstow/v1/kv_cache.pb.h"

namespace kvstow {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

absl::Status ReadStatus(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return ReadLookupRequest(slice).status();
}

TEST(LookupWireTest, ReadsWhatGeneratedCodeWrites) {
  v1::LookupRequest request;
  request.set_space("a/space");
  request.set_fingerprint(std::string(16, 'f'));
  request.set_lease(true);
  for (const size_t bytes : {0, 1, 32, 64, 200}) request.add_keys(std::string(bytes, 'k'));
  const grpc::Slice slice(request.SerializeAsString());
  const auto query = ReadLookupRequest(slice);
  ASSERT_TRUE(query.ok()) << query.status();
  EXPECT_EQ(query->space, "a/space");
  EXPECT_EQ(query->fingerprint, request.fingerprint());
  EXPECT_TRUE(query->lease);
  EXPECT_THAT(query->keys, ElementsAreArray(request.keys()));

  const grpc::Slice empty;
  const auto nothing = ReadLookupRequest(empty);
  ASSERT_TRUE(nothing.ok());
  EXPECT_TRUE(nothing->space.empty() && nothing->keys.empty() && !nothing->lease);
}

TEST(LookupWireTest, FieldsOfLaterVersionsAreSkipped) {
  const std::string later = std::string("\x78\x96\x01", 3) + std::string("\x79", 1) +
                            std::string(8, 'x') + std::string("\x7a\x02yy", 4) +
                            std::string("\x7d", 1) + std::string(4, 'z');
  const grpc::Slice slice(later + "\x12\x01k" + later);
  const auto query = ReadLookupRequest(slice);
  ASSERT_TRUE(query.ok()) << query.status();
  EXPECT_THAT(query->keys, ElementsAreArray({"k"}));
}

TEST(LookupWireTest, WhatIsCutOrMalformedIsRefused) {
  v1::LookupRequest request;
  request.set_space("s");
  request.add_keys("0123456789");
  request.set_lease(true);
  const std::string whole = request.SerializeAsString();
  for (size_t bytes = 1; bytes < whole.size(); ++bytes) {
    if (bytes == 3 || bytes == 15) continue;  // between two fields
    EXPECT_THAT(ReadStatus(whole.substr(0, bytes)).message(), HasSubstr("malformed")) << bytes;
  }
  const std::string huge_key = std::string("\x12\xff\xff\xff\xff\x0f", 6) + "k";
  const std::string group = "\x0b", no_tag = std::string(1, '\0');
  for (const std::string& bad : {huge_key, group, no_tag}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ReadStatus(bad))) << ReadStatus(bad);
  }
  std::string many;
  for (int i = 0; i < kMaxKeysPerCall; ++i) many += std::string("\x12\x00", 2);
  EXPECT_TRUE(ReadStatus(many).ok());
  EXPECT_THAT(ReadStatus(many + many).message(), HasSubstr("at most 65536"));
}

TEST(LookupWireTest, GeneratedCodeReadsWhatIsWritten) {
  PrefixMatch match{.pages = {}, .lease = UINT64_MAX, .ttl = std::chrono::seconds(10)};
  match.pages.push_back({.stored_bytes = 1, .tokens = 16, .levels = 3, .tier = TierId::kGpu});
  match.pages.push_back(
      {.stored_bytes = UINT64_MAX, .tokens = UINT32_MAX, .levels = 255, .tier = TierId::kHost});
  match.pages.push_back({.tier = TierId::kDisk});
  const grpc::Slice bytes = WriteLookupResponse(match);
  v1::LookupResponse response;
  ASSERT_TRUE(response.ParseFromArray(bytes.begin(), static_cast<int>(bytes.size())));
  EXPECT_EQ(response.pages(), 3u);
  EXPECT_EQ(response.tokens(), 16 + uint64_t{UINT32_MAX});
  EXPECT_EQ(response.lease(), UINT64_MAX);
  EXPECT_EQ(response.lease_ttl_ms(), 10'000u);
  ASSERT_EQ(response.info_size(), 3);
  for (size_t i = 0; i < 3; ++i) {
    const v1::PageInfo& info = response.info(static_cast<int>(i));
    EXPECT_EQ(info.tokens(), match.pages[i].tokens);
    EXPECT_EQ(info.tier(), TierName(match.pages[i].tier));
    EXPECT_EQ(info.levels(), match.pages[i].levels);
    EXPECT_EQ(info.stored_bytes(), match.pages[i].stored_bytes);
  }
  EXPECT_EQ(WriteLookupResponse({.pages = {}, .ttl = std::chrono::seconds(10)}).size(), 0u)
      << "no lease, no time";
}

}  // namespace
}  // namespace kvstow
