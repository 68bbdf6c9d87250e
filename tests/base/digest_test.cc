#include "base/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kvstow {
namespace {

// The bytes that xxHash's own sanity check hashes (tests/sanity_test.c of that project).
std::vector<uint8_t> SanityBytes(size_t size) {
  std::vector<uint8_t> bytes(size);
  uint64_t state = 2654435761u;
  for (uint8_t& b : bytes) {
    b = static_cast<uint8_t>(state >> 56);
    state *= 11400714785074694797ull;
  }
  return bytes;
}

TEST(DigestTest, Xxh3IsThePublishedOne) {
  const std::pair<size_t, uint64_t> vectors[] = {
      {0, 0x2D06800538D394C2},   {1, 0xC44BDFF4074EECDB},    {6, 0x27B56A84CD2D7325},
      {12, 0xA713DAF0DFBB77E7},  {24, 0xA3FE70BF9D3510EB},   {48, 0x397DA259ECBA1F11},
      {80, 0xBCDEFBBB2C47C90A},  {195, 0xCD94217EE362EC3A},  {403, 0xCDEB804D65C6DEA4},
      {512, 0x617E49599013CB6B}, {2048, 0xDD59E2C3A5F038E0}, {2367, 0xCB37AEB9E5D361ED},
  };
  for (const auto& [size, digest] : vectors) EXPECT_EQ(Xxh3(SanityBytes(size)), digest) << size;
}

TEST(DigestTest, Xxh3Of128BitsIsThePublishedOneInCanonicalOrder) {
  EXPECT_EQ(Xxh3_128({}).Hex(), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(Xxh3_128(SanityBytes(1)).Hex(), "a6cd5e9392000f6ac44bdff4074eecdb");
  EXPECT_EQ(Xxh3_128(SanityBytes(6)).Hex(), "082afe0b8162d12a3e7039bdda43cfc6");
}

TEST(DigestTest, AStreamDigestsWhatAWholeDoes) {
  const std::vector<uint8_t> bytes = SanityBytes(5000);
  const std::span<const uint8_t> span(bytes);
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{64}, size_t{1024}, size_t{5000}}) {
    Xxh3Stream stream;
    for (size_t at = 0; at < span.size(); at += piece) {
      stream.Update(span.subspan(at, std::min(piece, span.size() - at)));
    }
    Xxh3Stream moved = std::move(stream);
    EXPECT_EQ(moved.Finish(), Xxh3_128(span)) << "pieces of " << piece;
    EXPECT_EQ(moved.Finish64(), Xxh3(span)) << "pieces of " << piece;
    EXPECT_EQ(moved.Finish(), Xxh3_128(span)) << "Finish changes nothing";
  }
  EXPECT_EQ(Xxh3Stream().Finish(), Xxh3_128({}));
  EXPECT_EQ(Xxh3Stream().Finish64(), Xxh3({}));
}

TEST(DigestTest, OneChangedBitChangesEveryDigest) {
  std::vector<uint8_t> bytes = SanityBytes(300);
  const uint64_t short_digest = Xxh3(bytes);
  const Digest128 digest = Xxh3_128(bytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= 1 << (i % 8);
    EXPECT_NE(Xxh3(bytes), short_digest) << i;
    EXPECT_NE(Xxh3_128(bytes), digest) << i;
    bytes[i] ^= 1 << (i % 8);
  }
}

// FIPS 180-2, appendix B.
TEST(DigestTest, Sha256IsThePublishedOne) {
  EXPECT_EQ(HexOf(Sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(HexOf(Sha256(AsBytes("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(HexOf(Sha256(AsBytes(std::string(1'000'000, 'a')))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// RFC 4231, test cases 1, 2 and 6.
TEST(DigestTest, HmacSha256IsThePublishedOne) {
  EXPECT_EQ(HexOf(HmacSha256(std::vector<uint8_t>(20, 0x0b), AsBytes("Hi There"))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(HexOf(HmacSha256(AsBytes("Jefe"), AsBytes("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(HexOf(HmacSha256(std::vector<uint8_t>(131, 0xaa),
                             AsBytes("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(DigestTest, HexAndViews) {
  const std::string text("\x00\xff\x10", 3);
  EXPECT_EQ(HexOf(AsBytes(text)), "00ff10");
  EXPECT_EQ(AsString(AsBytes(text)), text);
}

#if defined(__x86_64__)
// Whether this processor tells which of its registers are in use.
bool TellsWhatIsInUse() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  constexpr uint32_t kSystemUsesXsave = 1 << 27, kXgetbvOfOne = 1 << 2;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kSystemUsesXsave) == 0) return false;
  return __get_cpuid_count(0xd, 1, &a, &b, &c, &d) != 0 && (a & kXgetbvOfOne) != 0;
}

bool UpperHalvesInUse() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
  return (low & 1 << 2) != 0;
}

// They would make the SSE code of the caller slow.
TEST(DigestTest, NoUpperHalvesOfVectorRegistersStayInUse) {
  if (!TellsWhatIsInUse()) GTEST_SKIP() << "this processor does not tell what is in use";
  asm volatile("vzeroupper");
  if (UpperHalvesInUse()) GTEST_SKIP() << "this processor calls cleared registers in use";
  for (const size_t size : {241, 1023, 4096, 1 << 20}) {
    const std::vector<uint8_t> bytes = SanityBytes(size);
    Xxh3(bytes);
    EXPECT_FALSE(UpperHalvesInUse()) << "Xxh3 of " << size;
    Xxh3_128(bytes);
    EXPECT_FALSE(UpperHalvesInUse()) << "Xxh3_128 of " << size;
    Xxh3Stream stream;
    stream.Update(bytes);
    EXPECT_FALSE(UpperHalvesInUse()) << "a stream of " << size;
  }
}
#endif

}  // namespace
}  // namespace kvstow
