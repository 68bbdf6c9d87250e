// Every recipe passes these tests of pages that are damaged, cut or made by somebody hostile.
#ifndef KVSTOW_TESTS_CONFORMANCE_CODEC_DAMAGE_CONFORMANCE_H_
#define KVSTOW_TESTS_CONFORMANCE_CODEC_DAMAGE_CONFORMANCE_H_

#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "kernels/codec/decode_page.h"
#include "tests/conformance/codec_conformance.h"

namespace kvstow::testing {

TEST_P(CodecConformance, EveryDamagedByteIsFound) {
  const KvSpec spec = SpecOf(GetParam().dtype, 3, 1, 8, 4, 4);
  const auto raw = GaussianPage(spec, 4);
  const EncodedPage page = Encode(*Make(spec), raw, 4);
  std::vector<uint8_t> header(page.header_bytes.span().begin(), page.header_bytes.span().end());
  for (size_t i = 0; i < header.size(); ++i) {
    for (const int flip : {1, 0x80, 0xff}) {
      auto damaged = header;
      damaged[i] ^= static_cast<uint8_t>(flip);
      EXPECT_TRUE(absl::IsDataLoss(ParsePageHeader(damaged).status())) << "byte " << i;
    }
    EXPECT_TRUE(absl::IsDataLoss(ParsePageHeader(std::span(header).first(i)).status()));
  }
  for (size_t s = 0; s < page.segments.size(); ++s) {
    for (size_t i = 0; i < page.segments[s].size(); ++i) {
      std::vector<uint8_t> body(page.segments[s].span().begin(), page.segments[s].span().end());
      body[i] ^= 0xff;
      auto damaged = page.segments;
      damaged[s] = SharedBytes::Take(std::move(body));
      EXPECT_TRUE(absl::IsDataLoss(VerifySegments(page.header, damaged)));
      // Without the check it decodes to finite values or says that it cannot.
      std::vector<uint8_t> out(raw.size());
      const absl::Status status = DecodePage(page.header, damaged, out);
      EXPECT_TRUE(status.ok() || absl::IsDataLoss(status) || absl::IsFailedPrecondition(status))
          << status;
      EXPECT_TRUE(!page.header.exact || absl::IsDataLoss(status));
    }
  }
}

// As above where the header goes along: what a decoder meets when a writer was wrong or hostile.
TEST_P(CodecConformance, ChangedBodiesThatTheHeaderVouchesForDecodeOrAreFound) {
  const KvSpec spec = SpecOf(GetParam().dtype, 3, 1, 12, 4, 12);
  const auto raw = GaussianPage(spec, 12);
  const EncodedPage page = Encode(*Make(spec), raw, 12);
  const auto expect_sound = [&](size_t s, std::vector<uint8_t> body, absl::string_view what) {
    PageHeader header = page.header;
    header.segments[s].bytes = static_cast<uint32_t>(body.size());
    auto segments = page.segments;
    segments[s] = SharedBytes::Take(std::move(body));
    std::vector<uint8_t> out(raw.size());
    const absl::Status status = DecodePage(header, segments, out);
    ASSERT_TRUE(status.ok() || absl::IsDataLoss(status) || absl::IsFailedPrecondition(status))
        << what << ": " << status;
    if (!status.ok()) return;
    ASSERT_FALSE(header.exact) << what;  // its raw digest says so
    std::vector<float> values(out.size() / DTypeBytes(spec.dtype));
    EXPECT_TRUE(LoadFloats(spec.dtype, out.data(), values.size(), values.data())) << what;
  };
  for (size_t s = 0; s < page.segments.size(); ++s) {
    const auto whole = page.segments[s].span();
    const size_t stride = whole.size() / 256 + 1;  // a long body is sampled: each is decoded anew
    for (size_t size = 0; size < whole.size(); size += stride)
      expect_sound(s, {whole.begin(), whole.begin() + size}, absl::StrCat("cut at ", size));
    std::vector<uint8_t> body(whole.begin(), whole.end());
    body.push_back(0);
    expect_sound(s, body, "a byte more");
    body.pop_back();
    for (size_t i = 0; i < body.size(); i += stride) {
      for (const int flip : {1, 0x10, 0x80, 0xff}) {
        body[i] ^= static_cast<uint8_t>(flip);
        expect_sound(s, body, absl::StrCat("byte ", i, " with ", flip));
        body[i] ^= static_cast<uint8_t>(flip);
      }
    }
  }
}

TEST_P(CodecConformance, AHeaderOfOtherFieldsDecodesOrSaysWhatIsWrong) {
  const KvSpec spec = SpecOf(GetParam().dtype, 2, 1, 8, 4, 6);
  const auto raw = GaussianPage(spec, 6);
  const EncodedPage page = Encode(*Make(spec), raw, 6);
  const auto bytes = page.header_bytes.span();
  const std::string fields(bytes.begin(), bytes.end() - sizeof(uint64_t));
  for (size_t i = 0; i < fields.size(); ++i) {
    for (int flip = 1; flip < 256; flip = flip * 3 + 1) {
      std::string changed = fields;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      const uint64_t digest = Xxh3(AsBytes(changed));
      changed.append(reinterpret_cast<const char*>(&digest), sizeof(digest));
      const auto header = ParsePageHeader(AsBytes(changed));
      if (!header.ok()) continue;
      const size_t size = PageBytes(header->Geometry(), header->tokens);
      if (size > 1 << 20) continue;  // a header may name a large page: whoever decodes it decides
      std::vector<uint8_t> out(size);
      const absl::Status status = DecodePage(*header, page.segments, out);
      EXPECT_TRUE(status.ok() || absl::IsDataLoss(status) || absl::IsFailedPrecondition(status) ||
                  absl::IsInvalidArgument(status))
          << "byte " << i << ": " << status;
    }
  }
}

TEST_P(CodecConformance, MissingAndCutBodiesAreFound) {
  const KvSpec spec = UsualSpec();
  const auto raw = GaussianPage(spec, 40);
  const EncodedPage page = Encode(*Make(spec), raw, 40);
  std::vector<uint8_t> out(raw.size());
  const size_t base = SegmentsForLevels(page.header, 1);
  EXPECT_TRUE(
      absl::IsDataLoss(DecodePage(page.header, std::span(page.segments).first(base - 1), out)));
  EXPECT_TRUE(absl::IsDataLoss(DecodePage(page.header, std::span<const SharedBytes>(), out)));
  for (size_t s = 0; s < page.segments.size(); ++s) {
    for (const size_t size : {size_t{0}, page.segments[s].size() - 1}) {
      auto damaged = page.segments;
      damaged[s] = damaged[s].Slice(0, size);
      EXPECT_TRUE(absl::IsDataLoss(VerifySegments(page.header, damaged)));
      EXPECT_TRUE(absl::IsDataLoss(DecodePage(page.header, damaged, out)));
    }
  }
  auto more = page.segments;
  more.push_back(more[0]);
  EXPECT_TRUE(absl::IsInvalidArgument(DecodePage(page.header, more, out)));
  EXPECT_TRUE(absl::IsInvalidArgument(VerifySegments(page.header, more)));
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_CONFORMANCE_CODEC_DAMAGE_CONFORMANCE_H_
