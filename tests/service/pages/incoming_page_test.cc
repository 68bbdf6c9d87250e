// A page on its way in, by each of the ways in which transports bring one: the same rules, and one
// answer.
#include "service/pages/incoming_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "base/digest.h"
#include "tests/service/bare_server.h"

namespace kvstow {
namespace {

using testing::BareServer;

constexpr uint32_t kTokens = 4;

struct Arrival {
  const char* name;
  v1::PutResult (*store)(IncomingPage& page, std::span<const uint8_t> bytes);
};
void PrintTo(const Arrival& way, std::ostream* out) { *out << way.name; }

v1::PutResult InPieces(IncomingPage& page, std::span<const uint8_t> bytes) {
  if (const absl::Status s = page.Stage(); !s.ok()) return page.Refuse(s.message());
  for (size_t at = 0; at < bytes.size();) {
    const auto piece = bytes.subspan(at, std::min<size_t>(100, bytes.size() - at));
    if (const absl::Status s = page.Append(at, piece); !s.ok()) return page.Refuse(s.message());
    at += piece.size();
  }
  return page.Store();
}

v1::PutResult Filled(IncomingPage& page, std::span<const uint8_t> bytes) {
  if (const absl::Status s = page.Stage(); !s.ok()) return page.Refuse(s.message());
  const absl::Status filled = page.Fill(96, [&](std::span<uint8_t> piece) {
    std::memcpy(piece.data(), bytes.data() + page.received(), piece.size());
    return absl::OkStatus();
  });
  return filled.ok() ? page.Store() : page.Refuse(filled.message());
}

v1::PutResult InPlace(IncomingPage& page, std::span<const uint8_t> bytes) {
  return page.Store(SharedBytes(nullptr, bytes));
}

const Arrival kWays[] = {{"pieces", InPieces}, {"filled", Filled}, {"place", InPlace}};

class IncomingPageTest : public ::testing::TestWithParam<Arrival> {
 protected:
  v1::PutPage PageOf(const std::string& key, bool with_digest) const {
    v1::PutPage page;
    page.set_key(key);
    page.set_tokens(kTokens);
    page.set_payload_bytes(bytes_.size());
    const Digest128 digest = Xxh3_128(bytes_);
    if (with_digest) page.set_digest(digest.bytes.data(), digest.bytes.size());
    return page;
  }
  v1::PutResult Put(const v1::PutPage& page) {
    IncomingPage incoming(parts_.puts, *space_, "", v1::RAW, page, "");
    if (auto answer = incoming.Begin()) return *std::move(answer);
    return GetParam().store(incoming, bytes_);
  }

  BareServer server_;
  LocalParts parts_ = server_.Local();
  const std::shared_ptr<const Space> space_ = parts_.spaces.Find(Caller{}, "exact").value();
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(PageBytes(BareServer::Spec(), kTokens), 0x3c);
};

TEST_P(IncomingPageTest, IsStoredAndThenAlreadyThere) {
  EXPECT_EQ(Put(PageOf("k", true)).status(), v1::STORED);
  IncomingPage again(parts_.puts, *space_, "", v1::RAW, PageOf("k", true), "");
  const auto answer = again.Begin();
  ASSERT_TRUE(answer.has_value()) << "its bytes need not come";
  EXPECT_EQ(answer->status(), v1::ALREADY_THERE);
  EXPECT_EQ(Put(PageOf("k", false)).status(), v1::ALREADY_THERE) << "told from the bytes";
  EXPECT_EQ(server_.staging().open_tickets(), 0u);
}

TEST_P(IncomingPageTest, WhatCannotBeAPageIsRefusedBeforeItsBytes) {
  v1::PutPage page = PageOf("k", true);
  page.set_tokens(5);
  IncomingPage incoming(parts_.puts, *space_, "", v1::RAW, page, "");
  const auto answer = incoming.Begin();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status(), v1::REFUSED);
  EXPECT_THAT(answer->message(), ::testing::HasSubstr("tokens is 5"));
}

TEST_P(IncomingPageTest, AParentHasAKeyToo) {
  IncomingPage incoming(parts_.puts, *space_, "", v1::RAW, PageOf("k", true), std::string(65, 'p'));
  const auto answer = incoming.Begin();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status(), v1::REFUSED);
  EXPECT_THAT(answer->message(), ::testing::HasSubstr("parent_key has 65 bytes"));
}

TEST_P(IncomingPageTest, DamageOnTheWayIsRefused) {
  const v1::PutPage page = PageOf("k", true);
  bytes_[17] ^= 1;
  const v1::PutResult result = Put(page);
  EXPECT_EQ(result.status(), v1::REFUSED);
  EXPECT_THAT(result.message(), ::testing::HasSubstr("damaged on its way"));
}

TEST_P(IncomingPageTest, OtherBytesUnderAKeyAreAConflict) {
  EXPECT_EQ(Put(PageOf("k", true)).status(), v1::STORED);
  bytes_[17] ^= 1;
  EXPECT_EQ(Put(PageOf("k", true)).status(), v1::CONFLICT);
}

INSTANTIATE_TEST_SUITE_P(Ways, IncomingPageTest, ::testing::ValuesIn(kWays),
                         [](const auto& info) { return std::string(info.param.name); });

class StagedPageTest : public IncomingPageTest {};

TEST_P(StagedPageTest, ItsDigestMayComeBehindItsBytes) {
  IncomingPage page(parts_.puts, *space_, "", v1::RAW, PageOf("k", false), "");
  ASSERT_FALSE(page.Begin().has_value());
  ASSERT_TRUE(page.Stage().ok());
  ASSERT_TRUE(page.Append(0, std::span(bytes_).first(100)).ok());
  const std::string digest(AsString(Xxh3_128(bytes_).bytes));
  EXPECT_TRUE(absl::IsInvalidArgument(page.SetDigest(digest))) << "too early";
  ASSERT_TRUE(page.Append(100, std::span(bytes_).subspan(100)).ok());
  ASSERT_TRUE(page.whole());
  EXPECT_TRUE(absl::IsInvalidArgument(page.SetDigest("short")));
  ASSERT_TRUE(page.SetDigest(digest).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(page.SetDigest(digest))) << "twice";
  EXPECT_EQ(page.Store().status(), v1::STORED);
}

TEST_P(StagedPageTest, APageThatGoesGivesItsRoomBack) {
  {
    IncomingPage page(parts_.puts, *space_, "", v1::RAW, PageOf("k", true), "");
    ASSERT_FALSE(page.Begin().has_value());
    ASSERT_TRUE(page.Admit().ok());
    ASSERT_TRUE(page.Stage().ok());
    ASSERT_TRUE(page.Append(0, std::span(bytes_).first(100)).ok());
    EXPECT_EQ(server_.staging().open_tickets(), 1u);
    EXPECT_GT(server_.admission().put_bytes(), 0u);
  }
  EXPECT_EQ(server_.staging().open_tickets(), 0u);
  EXPECT_EQ(server_.admission().put_bytes(), 0u);
}

TEST_P(StagedPageTest, PiecesOutOfOrderAreRefused) {
  IncomingPage page(parts_.puts, *space_, "", v1::RAW, PageOf("k", true), "");
  ASSERT_FALSE(page.Begin().has_value());
  ASSERT_TRUE(page.Stage().ok());
  EXPECT_TRUE(absl::IsInvalidArgument(page.Append(100, std::span(bytes_).subspan(100))));
  EXPECT_EQ(page.received(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Ways, StagedPageTest, ::testing::Values(kWays[0]),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvstow
