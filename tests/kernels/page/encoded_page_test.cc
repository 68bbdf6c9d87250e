#include "kernels/page/encoded_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/kernels/pages.h"
#include "tests/paths.h"

namespace kvstow {
namespace {

using ::testing::HasSubstr;

// Two token classes, two levels, two runs.
PageHeader SomeHeader() {
  PageHeader header;
  header.key = "key";
  header.pipeline = "raw";
  header.exact = true;
  header.layers = 3;
  header.kv_heads = 300;
  header.head_dim_k = 64;
  header.head_dim_v = 1;
  header.tokens = 3;
  header.first_position = uint64_t{1} << 63;
  header.raw_digest.bytes[3] = 9;
  header.token_classes = {0, 2, 0};
  for (uint8_t level = 0; level < 2; ++level) {
    for (const uint8_t token_class : {0, 2}) {
      header.segments.push_back({0, 2, token_class, level, 1u << 31, 1.5f, ~uint64_t{0}});
      header.segments.push_back({2, 1, token_class, level, 0, 0.25f, 7});
    }
  }
  return header;
}

absl::StatusOr<PageHeader> Reparse(const PageHeader& header) {
  return ParsePageHeader(AsBytes(SerializePageHeader(header)));
}

// The bytes with their digest made right again.
std::string Redigest(std::string bytes) {
  bytes.resize(bytes.size() - 8);
  const uint64_t digest = Xxh3(AsBytes(bytes));
  bytes.append(reinterpret_cast<const char*>(&digest), 8);
  return bytes;
}

TEST(PageHeaderTest, EveryFieldComesBack) {
  PageHeader header = SomeHeader();
  EXPECT_EQ(Reparse(header).value(), header);
  header.calibration[15] = 1;
  header.fell_back = true;
  header.rope = {.layout = RopeSpec::Layout::kHalf, .theta = 5e5};
  EXPECT_EQ(Reparse(header).value(), header);
  header.rope.scaling = RopeSpec::Scaling::kLlama3;
  header.rope.factor = 8;
  header.rope.high_freq_factor = 4;
  header.rope.original_context = 8192;
  header.rope.k_after_rope = false;
  header.rope.rotary_dims = 32;
  EXPECT_EQ(Reparse(header).value(), header);
  header.token_ids = {kMaxVocabulary - 1, kUnknownToken, 0};
  EXPECT_EQ(Reparse(header).value(), header);
  header.other_rope = {.rope = {.layout = RopeSpec::Layout::kHalf, .k_after_rope = false},
                       .layers = {0, 2}};
  EXPECT_EQ(Reparse(header).value(), header);
  header.token_classes.clear();
  std::erase_if(header.segments, [](const SegmentInfo& s) { return s.token_class > 0; });
  EXPECT_EQ(Reparse(header).value(), header);
}

// A header with classes of tokens. No recipe of this build makes one.
TEST(PageHeaderTest, GoldenFile) {
  const std::string path = TestsPath("golden/page_header_v1_classes.bin");
  std::ifstream in(path, std::ios::binary);
  const std::string golden((std::istreambuf_iterator<char>(in)), {});
  if (SerializePageHeader(SomeHeader()) != golden) {
    const auto made = std::filesystem::temp_directory_path() / "page_header_v1_classes.bin";
    std::ofstream(made, std::ios::binary) << SerializePageHeader(SomeHeader());
    FAIL() << "the header differs from " << path << "; what was made is in " << made;
  }
  EXPECT_EQ(ParsePageHeader(AsBytes(golden)).value(), SomeHeader());
}

TEST(PageHeaderTest, SegmentsForLevelsCountsLeadingSegments) {
  const PageHeader header = SomeHeader();
  EXPECT_EQ(SegmentsForLevels(header, 1), 4u);
  EXPECT_EQ(SegmentsForLevels(header, 2), 8u);
  EXPECT_EQ(SegmentsForLevels(header, 0), 8u);
  EXPECT_EQ(SegmentsForLevels(header, 9), 8u);
}

TEST(PageHeaderTest, ContradictionsAreFound) {
  const struct {
    std::function<void(PageHeader&)> change;
    const char* message;
  } cases[] = {
      {[](PageHeader& h) { h.layers = 4; }, "cover 3 of 4 layers"},
      {[](PageHeader& h) { h.layers = 2; }, "cover 3 of 2 layers"},
      {[](PageHeader& h) { h.layers = 0; }, "layers"},
      {[](PageHeader& h) { h.head_dim_k = 2000; }, "head_dim_k"},
      {[](PageHeader& h) { h.tokens = 0, h.token_classes = {}; }, "page_tokens"},
      {[](PageHeader& h) { h.dtype = static_cast<DType>(9); }, "dtype"},
      {[](PageHeader& h) {
         h.token_classes = {0, 0, 0};
       },
       "token class 2"},
      {[](PageHeader& h) {
         h.token_classes = {0, 2, 3};
       },
       "token class 3"},
      {[](PageHeader& h) { h.token_classes = {}; }, "token class 2"},
      {[](PageHeader& h) {
         h.token_ids = {1, 2, kMaxVocabulary};
       },
       "token ids are out of range"},
      {[](PageHeader& h) { std::swap(h.segments[0], h.segments[7]); }, "order of level"},
      {[](PageHeader& h) { h.segments[1] = h.segments[0]; }, "twice"},
      {[](PageHeader& h) { h.segments[1].first_layer = 1; }, "layer by layer"},
      {[](PageHeader& h) { h.segments[0].layer_count = 0; }, "layer by layer"},
      {[](PageHeader& h) { h.segments[7].layer_count = 2; }, "no base segment"},
      {[](PageHeader& h) { h.segments[7].token_class = 1; }, "no base segment"},
      {[](PageHeader& h) { h.segments.clear(); }, "cover 0 of 3 layers"},
  };
  for (const auto& c : cases) {
    PageHeader header = SomeHeader();
    c.change(header);
    EXPECT_TRUE(absl::IsInvalidArgument(Validate(header))) << c.message;
    const absl::Status status = Reparse(header).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << c.message << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

TEST(PageHeaderTest, OtherVersionsAreNamed) {
  std::string bytes = SerializePageHeader(SomeHeader());
  bytes[4] = 2;
  const absl::Status status = ParsePageHeader(AsBytes(Redigest(bytes))).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 2"));
}

TEST(PageHeaderTest, FlagsOfALaterVersionAreNamed) {
  for (const int flag : {64, 128}) {
    std::string bytes = SerializePageHeader(SomeHeader());
    bytes[6] = static_cast<char>(bytes[6] | flag);
    const absl::Status status = ParsePageHeader(AsBytes(Redigest(bytes))).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("a later version wrote it"));
    EXPECT_TRUE(absl::IsDataLoss(ParsePageHeader(AsBytes(bytes)).status()))
        << "its digest is first";
  }
}

// What a writer leaves out must not be there with the value that it has then: a header has one
// form.
TEST(PageHeaderTest, WhatMayBeLeftOutIsNotWrittenWithItsDefault) {
  PageHeader header = SomeHeader();
  header.calibration[15] = 1;
  std::string bytes = SerializePageHeader(header);
  const size_t id = bytes.find(header.pipeline) + header.pipeline.size() + 16;
  ASSERT_EQ(bytes[id + 15], 1);
  bytes[id + 15] = 0;
  const absl::Status zero = ParsePageHeader(AsBytes(Redigest(bytes))).status();
  EXPECT_TRUE(absl::IsDataLoss(zero)) << zero;
  EXPECT_THAT(std::string(zero.message()), HasSubstr("calibration"));

  header = SomeHeader();
  header.rope = {.rotary_dims = 1, .theta = 10000, .factor = 2};
  bytes = SerializePageHeader(header);
  const auto with = [&](size_t at, absl::string_view was, absl::string_view is) {
    std::string changed = bytes;
    EXPECT_EQ(changed.substr(at, was.size()), was);
    changed.replace(at, was.size(), is.data(), is.size());
    return ParsePageHeader(AsBytes(Redigest(changed))).status();
  };
  // Behind the flags, dtype, layers, 300 heads, dims, tokens, and a position of 10 bytes.
  const size_t rope = 24;
  ASSERT_TRUE(ParsePageHeader(AsBytes(bytes)).ok());
  const absl::Status dims = with(rope + 1, absl::string_view("\1", 1), absl::string_view("\0", 1));
  EXPECT_TRUE(absl::IsDataLoss(dims)) << dims;
  const double two = 2, one = 1;
  const absl::Status factor = with(rope + 10, {reinterpret_cast<const char*>(&two), sizeof(two)},
                                   {reinterpret_cast<const char*>(&one), sizeof(one)});
  EXPECT_TRUE(absl::IsDataLoss(factor)) << factor;
}

// With a digest that fits, a changed byte is another valid header or is refused; never a crash, and
// what parses serializes to the same bytes.
TEST(PageHeaderTest, EveryByteIsCheckedBehindTheDigest) {
  PageHeader header = SomeHeader();
  header.other_rope = {.rope = {.layout = RopeSpec::Layout::kHalf}, .layers = {1}};
  const std::string good = SerializePageHeader(header);
  for (size_t i = 0; i + 8 < good.size(); ++i) {
    for (int value = 0; value < 256; ++value) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(value);
      bytes = Redigest(bytes);
      const auto header = ParsePageHeader(AsBytes(bytes));
      if (header.ok()) {
        EXPECT_EQ(SerializePageHeader(*header), bytes) << "byte " << i << " = " << value;
      } else {
        EXPECT_TRUE(absl::IsDataLoss(header.status()) ||
                    absl::IsFailedPrecondition(header.status()))
            << header.status();
      }
    }
  }
  for (size_t n = 0; n < good.size(); ++n) {
    const absl::Status status =
        ParsePageHeader(AsBytes(Redigest(good.substr(0, n) + std::string(8, 0)))).status();
    EXPECT_EQ(status.ok(), n + 8 == good.size()) << n;
  }
}

TEST(PageHeaderTest, IsSmall) {
  const KvSpec spec = testing::SpecOf(DType::kF16, 30, 3, 64, 64, 16);
  const auto codec = MakeCodec(*ParseRecipe("int8"), spec);
  const auto page = (*codec)->Encode(
      {.raw = testing::GaussianPage(spec, 16), .tokens = 16, .key = std::string(32, 'k')});
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_LE(page->header_bytes.size(), 160u);
}

TEST(DecodePageTest, HeadersOfOtherBuildsAreRefusedByName) {
  const KvSpec spec = testing::SpecOf(DType::kF16, 1, 1, 8, 8, 2);
  const auto raw = testing::GaussianPage(spec, 2);
  const auto codec = MakeCodec(*ParseRecipe("raw"), spec);
  const EncodedPage page = (*codec)->Encode({.raw = raw, .tokens = 2}).value();
  std::vector<uint8_t> out(raw.size());
  const auto decode = [&](const std::function<void(PageHeader&)>& change) {
    PageHeader header = page.header;
    change(header);
    return DecodePage(header, page.segments, out);
  };
  EXPECT_TRUE(decode([](PageHeader&) {}).ok());
  EXPECT_TRUE(
      absl::IsFailedPrecondition(decode([](PageHeader& h) { h.pipeline = "warp(9)|raw"; })));
  EXPECT_TRUE(absl::IsFailedPrecondition(decode([](PageHeader& h) {
    h.token_classes = {1, 1};
    h.segments[0].token_class = 1;
  })));
  EXPECT_TRUE(absl::IsDataLoss(decode([](PageHeader& h) { h.pipeline = "levels(9)"; })));
  EXPECT_TRUE(absl::IsDataLoss(decode([](PageHeader& h) { h.pipeline = "|"; })));
  EXPECT_TRUE(absl::IsDataLoss(decode([](PageHeader& h) { h.exact = false; })));
  EXPECT_TRUE(absl::IsDataLoss(decode([](PageHeader& h) { h.layers = 2; })));
  EXPECT_TRUE(absl::IsDataLoss(decode([](PageHeader& h) { h.raw_digest.bytes[0] ^= 1; })));
}

}  // namespace
}  // namespace kvstow
