#include "base/aead.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/digest.h"

namespace kvstow {
namespace {

using Bytes = std::vector<uint8_t>;

SecretKey KeyOf(uint8_t byte) {
  std::array<uint8_t, kAeadKeyBytes> bytes;
  bytes.fill(byte);
  return SecretKey(bytes);
}

AeadNonce NonceOf(const std::string& text) {
  AeadNonce out;
  std::copy(text.begin(), text.end(), out.begin());
  return out;
}

// The ciphertext with its tag behind it.
Bytes Sealed(const SecretKey& key, const AeadNonce& nonce, std::span<const uint8_t> bound,
             std::span<const uint8_t> plain) {
  Bytes out(plain.size());
  AeadMessage message = AeadMessage::ToSeal(key, nonce, bound);
  message.Update(plain, out.data());
  const AeadTag tag = message.Tag();
  out.insert(out.end(), tag.begin(), tag.end());
  return out;
}

bool Opens(const SecretKey& key, const AeadNonce& nonce, std::span<const uint8_t> bound,
           Bytes sealed, std::string* plain = nullptr) {
  AeadTag tag;
  std::copy(sealed.end() - tag.size(), sealed.end(), tag.begin());
  sealed.resize(sealed.size() - tag.size());
  AeadMessage message = AeadMessage::ToOpen(key, nonce, bound);
  message.Update(sealed, sealed.data());
  if (plain != nullptr) *plain = std::string(AsString(sealed));
  return message.Opens(tag);
}

// The two examples of c2sp.org/XAES-256-GCM: with the highest bit of its subkey clear, and set.
TEST(Aead, GivesThePublishedExamples) {
  const AeadNonce nonce = NonceOf("ABCDEFGHIJKLMNOPQRSTUVWX");
  const auto plain = AsBytes("XAES-256-GCM");
  EXPECT_EQ(HexOf(Sealed(KeyOf(1), nonce, {}, plain)),
            "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271");
  EXPECT_EQ(HexOf(Sealed(KeyOf(3), nonce, AsBytes("c2sp.org/XAES-256-GCM"), plain)),
            "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d");
}

// The accumulated vector of c2sp.org/XAES-256-GCM: 10,000 messages from one stream of SHAKE-128,
// their ciphertexts digested by another.
TEST(Aead, GivesThePublishedDigestOfTenThousandMessages) {
  EVP_MD_CTX* const digest = EVP_MD_CTX_new();
  Bytes stream(10'000 * (kAeadKeyBytes + sizeof(AeadNonce) + 2 + 2 * 255));
  ASSERT_EQ(EVP_DigestInit_ex(digest, EVP_shake128(), nullptr), 1);
  ASSERT_EQ(EVP_DigestFinalXOF(digest, stream.data(), stream.size()), 1);
  ASSERT_EQ(EVP_DigestInit_ex(digest, EVP_shake128(), nullptr), 1);
  std::span<const uint8_t> rest(stream);
  const auto take = [&](size_t n) {
    const auto out = rest.first(n);
    rest = rest.subspan(n);
    return out;
  };
  for (int i = 0; i < 10'000; ++i) {
    const SecretKey key(take(kAeadKeyBytes).first<kAeadKeyBytes>());
    AeadNonce nonce;
    const auto bytes = take(nonce.size());
    std::copy(bytes.begin(), bytes.end(), nonce.begin());
    const auto plain = take(take(1)[0]);
    const auto bound = take(take(1)[0]);
    const Bytes sealed = Sealed(key, nonce, bound, plain);
    ASSERT_EQ(EVP_DigestUpdate(digest, sealed.data(), sealed.size()), 1);
    ASSERT_TRUE(Opens(key, nonce, bound, sealed)) << i;
  }
  Bytes out(32);
  ASSERT_EQ(EVP_DigestFinalXOF(digest, out.data(), out.size()), 1);
  EVP_MD_CTX_free(digest);
  EXPECT_EQ(HexOf(out), "e6b9edf2df6cec60c8cbd864e2211b597fb69a529160cd040d56c0c210081939");
}

TEST(Aead, PiecesGiveTheSameMessage) {
  const SecretKey key = SecretKey::Random();
  const AeadNonce nonce = RandomNonce();
  Bytes plain(10'000);
  RandomBytes(plain);
  const Bytes whole = Sealed(key, nonce, AsBytes("bound"), plain);
  Bytes pieces = plain;
  AeadMessage message = AeadMessage::ToSeal(key, nonce, AsBytes("bound"));
  for (size_t at = 0, n = 1; at < pieces.size(); at += n, n = n * 3 + 1) {
    n = std::min(n, pieces.size() - at);
    message.Update({pieces.data() + at, n}, pieces.data() + at);  // in place
  }
  const AeadTag tag = message.Tag();
  pieces.insert(pieces.end(), tag.begin(), tag.end());
  EXPECT_EQ(pieces, whole);
}

TEST(Aead, OpensNothingThatDiffersInOneBit) {
  const SecretKey key = SecretKey::Random(), other = SecretKey::Random();
  const AeadNonce nonce = RandomNonce();
  const Bytes sealed = Sealed(key, nonce, AsBytes("bound"), AsBytes("secret"));
  std::string plain;
  ASSERT_TRUE(Opens(key, nonce, AsBytes("bound"), sealed, &plain));
  EXPECT_EQ(plain, "secret");
  for (size_t bit = 0; bit < 8 * sealed.size(); ++bit) {
    Bytes flipped = sealed;
    flipped[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_FALSE(Opens(key, nonce, AsBytes("bound"), flipped)) << bit;
  }
  for (size_t bit = 0; bit < 8 * nonce.size(); ++bit) {
    AeadNonce flipped = nonce;
    flipped[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_FALSE(Opens(key, flipped, AsBytes("bound"), sealed)) << bit;
  }
  EXPECT_FALSE(Opens(key, nonce, AsBytes("Bound"), sealed));
  EXPECT_FALSE(Opens(key, nonce, {}, sealed));
  EXPECT_FALSE(Opens(other, nonce, AsBytes("bound"), sealed));
}

TEST(Aead, RandomNoncesAndKeysDiffer) {
  std::set<AeadNonce> nonces;
  std::set<std::string> keys;
  for (int i = 0; i < 20'000; ++i) nonces.insert(RandomNonce());
  for (int i = 0; i < 100; ++i) keys.insert(std::string(AsString(SecretKey::Random().bytes())));
  EXPECT_EQ(nonces.size(), 20'000u);
  EXPECT_EQ(keys.size(), 100u);
}

// More keys than the memory that is not swapped has room for.
TEST(Aead, ThereIsRoomForManyKeys) {
  std::vector<SecretKey> keys;
  std::set<std::string> values;
  for (int i = 0; i < 12'000; ++i) keys.push_back(SecretKey::Random());
  for (const SecretKey& key : keys) values.insert(std::string(AsString(key.bytes())));
  EXPECT_EQ(values.size(), keys.size());
}

}  // namespace
}  // namespace kvstow
