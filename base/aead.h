// Authenticated encryption: XAES-256-GCM (c2sp.org/XAES-256-GCM), by OpenSSL.
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

namespace kvstow {

inline constexpr size_t kAeadKeyBytes = 32;
using AeadNonce = std::array<uint8_t, 24>;
using AeadTag = std::array<uint8_t, 16>;

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

  // Encrypts or decrypts the next bytes of the message. `out` has as many bytes, and may be `in`.
  void Update(std::span<const uint8_t> in, uint8_t* out);
  // Ends a message that is sealed.
  AeadTag Tag();
  // Ends a message that is opened. Returns whether key, nonce, bound bytes and message are those
  // that gave `tag`.
  bool Opens(const AeadTag& tag);

 private:
  struct Deleter {
    void operator()(void* context) const;
  };
  AeadMessage(const SecretKey& key, const AeadNonce& nonce, std::span<const uint8_t> bound,
              bool seal);

  std::unique_ptr<void, Deleter> context_;
};

}  // namespace kvstow

#endif  // KVSTOW_BASE_AEAD_H_
