#include "base/aead.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstdlib>

#include "base/log.h"

namespace kvstow {
namespace {

constexpr size_t kBlock = 16;
// Room for some 8,000 keys that are not swapped.
constexpr size_t kSecureHeapBytes = size_t{1} << 18;

using Block = std::array<uint8_t, kBlock>;

void Need(bool ok, const char* what) {
  if (ok) return;
  Log().critical("encryption failed: {}", what);
  std::abort();
}

// A look-up by name at every message would cost more than a small message does.
const EVP_CIPHER* Fetch(const char* name) {
  const EVP_CIPHER* const cipher = EVP_CIPHER_fetch(nullptr, name, nullptr);
  Need(cipher != nullptr, name);
  return cipher;
}

// The key of AES-256-GCM for messages with this first half of a nonce: two blocks of CMAC, as NIST
// SP 800-108r1 derives keys in counter mode.
void DeriveKey(const SecretKey& key, const AeadNonce& nonce,
               std::span<uint8_t, kAeadKeyBytes> out) {
  static const EVP_CIPHER* const kEcb = Fetch("AES-256-ECB");
  EVP_CIPHER_CTX* const context = EVP_CIPHER_CTX_new();
  Need(context != nullptr &&
           EVP_EncryptInit_ex2(context, kEcb, key.bytes().data(), nullptr, nullptr) == 1,
       "AES-256");
  const auto encrypt = [&](const Block& in, uint8_t* to) {
    int n = 0;
    Need(EVP_EncryptUpdate(context, to, &n, in.data(), kBlock) == 1 && n == kBlock, "AES-256");
  };
  Block subkey{};
  encrypt(subkey, subkey.data());
  const uint8_t carry = subkey[0] >> 7;
  for (size_t i = 0; i < kBlock; ++i) {
    const uint8_t next = i + 1 < kBlock ? subkey[i + 1] >> 7 : 0;
    subkey[i] = static_cast<uint8_t>(subkey[i] << 1 | next);
  }
  subkey[kBlock - 1] ^= static_cast<uint8_t>(carry * 0x87);
  for (uint8_t counter = 1; counter <= 2; ++counter) {
    Block message{0, counter, 'X', 0};
    std::copy(nonce.begin(), nonce.begin() + sizeof(GcmNonce), message.begin() + 4);
    for (size_t i = 0; i < kBlock; ++i) message[i] ^= subkey[i];
    encrypt(message, out.data() + (counter - 1) * kBlock);
  }
  Cleanse(subkey);
  EVP_CIPHER_CTX_free(context);
}

}  // namespace

SecretKey::SecretKey() {
  static const int kHeap = CRYPTO_secure_malloc_init(kSecureHeapBytes, kAeadKeyBytes);
  bytes_ = kHeap == 0 ? nullptr : static_cast<uint8_t*>(OPENSSL_secure_malloc(kAeadKeyBytes));
  if (bytes_ == nullptr) bytes_ = static_cast<uint8_t*>(OPENSSL_malloc(kAeadKeyBytes));
  Need(bytes_ != nullptr, "no memory for a key");
}

SecretKey::SecretKey(std::span<const uint8_t, kAeadKeyBytes> bytes) : SecretKey() {
  std::copy(bytes.begin(), bytes.end(), bytes_);
}

SecretKey SecretKey::Random() {
  SecretKey out;
  Need(RAND_priv_bytes(out.bytes_, kAeadKeyBytes) == 1, "no random bytes");
  return out;
}

SecretKey::~SecretKey() { OPENSSL_secure_clear_free(bytes_, kAeadKeyBytes); }

void RandomBytes(std::span<uint8_t> bytes) {
  Need(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1, "no random bytes");
}

AeadNonce RandomNonce() {
  AeadNonce out;
  RandomBytes(out);
  return out;
}

void Cleanse(std::span<uint8_t> bytes) { OPENSSL_cleanse(bytes.data(), bytes.size()); }

AeadMessage::AeadMessage(const SecretKey& key, const AeadNonce& nonce,
                         std::span<const uint8_t> bound, AesGcm::Use use) {
  std::array<uint8_t, kAeadKeyBytes> derived;
  DeriveKey(key, nonce, derived);
  cipher_ = AesGcm::Make(use, derived);
  Cleanse(derived);
  GcmNonce rest;
  std::copy(nonce.begin() + rest.size(), nonce.end(), rest.begin());
  cipher_->Begin(rest, bound);
}

AeadMessage AeadMessage::ToSeal(const SecretKey& key, const AeadNonce& nonce,
                                std::span<const uint8_t> bound) {
  return {key, nonce, bound, AesGcm::Use::kSeal};
}

AeadMessage AeadMessage::ToOpen(const SecretKey& key, const AeadNonce& nonce,
                                std::span<const uint8_t> bound) {
  return {key, nonce, bound, AesGcm::Use::kOpen};
}

}  // namespace kvstow
