#include "base/aes_gcm.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"

namespace kvstow {
namespace {

using Bytes = std::vector<uint8_t>;
using Maker = std::unique_ptr<AesGcm> (*)(AesGcm::Use, std::span<const uint8_t>);

Bytes FromHex(const std::string& hex) {
  Bytes out;
  for (size_t i = 0; i < hex.size(); i += 2) {
    out.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return out;
}

GcmNonce NonceOf(const Bytes& bytes) {
  GcmNonce out;
  std::copy_n(bytes.begin(), out.size(), out.begin());
  return out;
}

// Each library on its own.
class AesGcmOf : public testing::TestWithParam<std::pair<const char*, Maker>> {
 protected:
  void SetUp() override {
    if (Make(AesGcm::Use::kSeal, Bytes(16)) == nullptr) {
      GTEST_SKIP() << GetParam().first << " is not for this processor";
    }
  }
  static std::unique_ptr<AesGcm> Make(AesGcm::Use use, const Bytes& key) {
    return GetParam().second(use, key);
  }
};

INSTANTIATE_TEST_SUITE_P(All, AesGcmOf,
                         testing::Values(std::pair<const char*, Maker>{"OpenSsl", MakeOpenSslGcm},
                                         std::pair<const char*, Maker>{"IpsecMb", MakeIpsecMbGcm}),
                         [](const auto& param) { return std::string(param.param.first); });

// Test cases 4 and 16 of "The Galois/Counter Mode of Operation", McGrew and Viega, appendix B.
TEST_P(AesGcmOf, GivesThePublishedExamples) {
  const std::string half = "feffe9928665731c6d6a8f9467308308";
  const Bytes bound = FromHex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
  const GcmNonce nonce = NonceOf(FromHex("cafebabefacedbaddecaf888"));
  const Bytes plain = FromHex(
      "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
      "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39");
  struct Case {
    std::string key, coded, tag;
  };
  for (const Case& c : {Case{half,
                             "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e"
                             "21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091",
                             "5bc94fbc3221a5db94fae95ae7121a47"},
                        Case{half + half,
                             "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
                             "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
                             "76fc6ece0f4e1768cddf8853bb2d551b"}}) {
    const auto seals = Make(AesGcm::Use::kSeal, FromHex(c.key));
    Bytes out(plain.size());
    seals->Begin(nonce, bound);
    seals->Update(plain, out.data());
    EXPECT_EQ(HexOf(seals->Tag()), c.tag);
    EXPECT_EQ(HexOf(out), c.coded);
  }
}

TEST_P(AesGcmOf, OpensWhatWasSealedInOtherPiecesAndNothingElse) {
  std::mt19937 random(7);
  const auto bytes = [&](size_t size) {
    Bytes out(size);
    for (uint8_t& b : out) b = static_cast<uint8_t>(random());
    return out;
  };
  const auto code = [&](AesGcm& cipher, Bytes& message) {  // in its place, in pieces
    for (size_t at = 0; at < message.size();) {
      const size_t piece = std::min<size_t>(message.size() - at, 1 + random() % 3000);
      cipher.Update(std::span(message).subspan(at, piece), message.data() + at);
      at += piece;
    }
  };
  for (const size_t key_bytes : {16, 32}) {
    const Bytes key = bytes(key_bytes);
    const auto seals = Make(AesGcm::Use::kSeal, key), opens = Make(AesGcm::Use::kOpen, key);
    const auto other = MakeOpenSslGcm(AesGcm::Use::kSeal, key);
    for (const size_t size : {0, 1, 15, 16, 17, 255, 768, 769, 4096, 70'001}) {
      const Bytes plain = bytes(size), bound = bytes(random() % 40);
      const GcmNonce nonce = NonceOf(bytes(12));
      Bytes sealed = plain, same(size);
      seals->Begin(nonce, bound);
      code(*seals, sealed);
      const GcmTag tag = seals->Tag();
      other->Begin(nonce, bound);
      other->Update(plain, same.data());
      EXPECT_TRUE(other->Tag() == tag && same == sealed) << size;

      const auto open = [&](Bytes message, const GcmNonce& n, const Bytes& b, const GcmTag& t) {
        opens->Begin(n, b);
        code(*opens, message);
        return opens->Opens(t) && message == plain;
      };
      EXPECT_TRUE(open(sealed, nonce, bound, tag)) << size;
      GcmTag bad_tag = tag;
      bad_tag[random() % 16] ^= 1;
      EXPECT_FALSE(open(sealed, nonce, bound, bad_tag)) << size;
      GcmNonce bad_nonce = nonce;
      bad_nonce[random() % 12] ^= 1;
      EXPECT_FALSE(open(sealed, bad_nonce, bound, tag)) << size;
      Bytes bad_bound = bound;
      bad_bound.push_back(0);
      EXPECT_FALSE(open(sealed, nonce, bad_bound, tag)) << size;
      if (size > 0) sealed[random() % size] ^= 0x10;
      EXPECT_EQ(open(sealed, nonce, bound, tag), size == 0) << size;
    }
  }
}

}  // namespace
}  // namespace kvstow
