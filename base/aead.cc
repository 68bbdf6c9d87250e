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
constexpr size_t kGcmNonceBytes = 12;
// OpenSSL counts bytes in an int.
constexpr size_t kMostBytes = size_t{1} << 30;
// Room for some 8,000 keys that are not swapped.
constexpr size_t kSecureHeapBytes = size_t{1} << 18;

using Block = std::array<uint8_t, kBlock>;

void Need(bool ok, const char* what) {
  if (ok) return;
  Log().critical("encryption failed: {}", what);
  std::abort();
}

EVP_CIPHER_CTX* AsContext(void* context) { return static_cast<EVP_CIPHER_CTX*>(context); }

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
    std::copy(nonce.begin(), nonce.begin() + kGcmNonceBytes, message.begin() + 4);
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

void AeadMessage::Deleter::operator()(void* context) const {
  EVP_CIPHER_CTX_free(AsContext(context));
}

AeadMessage::AeadMessage(const SecretKey& key, const AeadNonce& nonce,
                         std::span<const uint8_t> bound, bool seal)
    : context_(EVP_CIPHER_CTX_new()) {
  static const EVP_CIPHER* const kGcm = Fetch("AES-256-GCM");
  std::array<uint8_t, kAeadKeyBytes> derived;
  DeriveKey(key, nonce, derived);
  const uint8_t* const rest = nonce.data() + kGcmNonceBytes;
  int n = 0;
  Need(context_ != nullptr &&
           EVP_CipherInit_ex2(AsContext(context_.get()), kGcm, derived.data(), rest, seal ? 1 : 0,
                              nullptr) == 1 &&
           EVP_CipherUpdate(AsContext(context_.get()), nullptr, &n, bound.data(),
                            static_cast<int>(bound.size())) == 1,
       "AES-256-GCM");
  Cleanse(derived);
}

AeadMessage AeadMessage::ToSeal(const SecretKey& key, const AeadNonce& nonce,
                                std::span<const uint8_t> bound) {
  return {key, nonce, bound, true};
}

AeadMessage AeadMessage::ToOpen(const SecretKey& key, const AeadNonce& nonce,
                                std::span<const uint8_t> bound) {
  return {key, nonce, bound, false};
}

void AeadMessage::Update(std::span<const uint8_t> in, uint8_t* out) {
  while (!in.empty()) {
    const auto piece = in.first(std::min(in.size(), kMostBytes));
    int n = 0;
    Need(EVP_CipherUpdate(AsContext(context_.get()), out, &n, piece.data(),
                          static_cast<int>(piece.size())) == 1,
         "AES-256-GCM");
    in = in.subspan(piece.size());
    out += piece.size();
  }
}

AeadTag AeadMessage::Tag() {
  EVP_CIPHER_CTX* const context = AsContext(context_.get());
  AeadTag out;
  Block none;
  int n = 0;
  Need(EVP_EncryptFinal_ex(context, none.data(), &n) == 1 &&
           EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, out.size(), out.data()) == 1,
       "AES-256-GCM");
  return out;
}

bool AeadMessage::Opens(const AeadTag& tag) {
  EVP_CIPHER_CTX* const context = AsContext(context_.get());
  AeadTag copy = tag;
  Block none;
  int n = 0;
  Need(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, copy.size(), copy.data()) == 1,
       "AES-256-GCM");
  return EVP_DecryptFinal_ex(context, none.data(), &n) == 1;
}

}  // namespace kvstow
