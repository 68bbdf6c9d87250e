// Authenticated encryption: XAES-256-GCM (c2sp.org/XAES-256-GCM).
//
// XAES-256-GCM derives an AES-256-GCM key for each message from the key and the first half of a
// random nonce of 192 bits. Random nonces do not repeat: 2^80 messages of one key collide with a
// chance of 2^-32. So no counter is kept that a crash could set back, and a key may serve for ever.
//
// A message goes through in pieces of any size, so that encryption may take the place of a copy.
// Bytes that AeadMessage decrypts mean nothing before Opens() returned true.
//
// Keys are thread-safe to read; a message belongs to one thread at a time. A failure of OpenSSL
// itself (no random bytes, no memory) ends the process: nothing may go on in clear.
#ifndef KVSTOW_BASE_AEAD_H_
#define KVSTOW_BASE_AEAD_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/aes_gcm.h"

namespace kvstow {

inline constexpr size_t kAeadKeyBytes = 32;
using AeadNonce = std::array<uint8_t, 24>;
using AeadTag = GcmTag;

// 256 secret bits. They lie in memory that is not swapped and in no core dump, where the system
// lets it, and are cleared at the end.
class SecretKey {
 public:
  static SecretKey Random();
  explicit SecretKey(std::span<const uint8_t, kAeadKeyBytes> bytes);
  ~SecretKey();
  SecretKey(SecretKey&& other) noexcept : bytes_(other.bytes_) { other.bytes_ = nullptr; }
  SecretKey& operator=(SecretKey&&) = delete;
  SecretKey(const SecretKey&) = delete;

  std::span<const uint8_t, kAeadKeyBytes> bytes() const {
    return std::span<const uint8_t, kAeadKeyBytes>(bytes_, kAeadKeyBytes);
  }

 private:
  SecretKey();
  uint8_t* bytes_;
};

AeadNonce RandomNonce();
// Fills `bytes` with bits that nobody can foresee.
void RandomBytes(std::span<uint8_t> bytes);
// Clears secrets for sure, though nobody reads the bytes again.
void Cleanse(std::span<uint8_t> bytes);

class AeadMessage {
 public:
  // `bound` is authenticated with the message and not part of it.
  static AeadMessage ToSeal(const SecretKey& key, const AeadNonce& nonce,
                            std::span<const uint8_t> bound);
  static AeadMessage ToOpen(const SecretKey& key, const AeadNonce& nonce,
                            std::span<const uint8_t> bound);

  // As those of AesGcm.
  void Update(std::span<const uint8_t> in, uint8_t* out) { cipher_->Update(in, out); }
  AeadTag Tag() { return cipher_->Tag(); }
  bool Opens(const AeadTag& tag) { return cipher_->Opens(tag); }

 private:
  AeadMessage(const SecretKey& key, const AeadNonce& nonce, std::span<const uint8_t> bound,
              AesGcm::Use use);

  std::unique_ptr<AesGcm> cipher_;
};

}  // namespace kvstow

#endif  // KVSTOW_BASE_AEAD_H_
