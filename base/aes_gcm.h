// AES-GCM (NIST SP 800-38D) with keys of 128 and 256 bits, a nonce of 96 bits and a tag of 128.
//
// A message goes through in pieces of any size, so that encryption may take the place of a copy.
// What Update decrypts means nothing before Opens() returned true.
//
// Two libraries compute the same bytes. Intel's ipsec-mb uses the vector forms of AES and of
// carry-less multiplication (VAES, VPCLMULQDQ), which OpenSSL 3.0 does not: it is the choice where
// the processor has them with AVX-512, and three times as fast there. OpenSSL is the choice
// elsewhere.
//
// An object has one key and serves one thread at a time, message after message. It clears the key
// at its end. A failure of a library itself (no memory) ends the process: nothing may go on in
// clear.
#ifndef KVSTOW_BASE_AES_GCM_H_
#define KVSTOW_BASE_AES_GCM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvstow {

using GcmNonce = std::array<uint8_t, 12>;
using GcmTag = std::array<uint8_t, 16>;

class AesGcm {
 public:
  enum class Use : uint8_t { kSeal, kOpen };
  // The fastest for this processor. The key has 16 or 32 bytes.
  static std::unique_ptr<AesGcm> Make(Use use, std::span<const uint8_t> key);

  virtual ~AesGcm() = default;
  // Begins a message. `bound` is authenticated with it and not part of it. A key that seals must
  // never meet a nonce twice.
  virtual void Begin(const GcmNonce& nonce, std::span<const uint8_t> bound) = 0;
  // Encrypts or decrypts the next bytes of the message. `out` has as many bytes, and may be `in`.
  virtual void Update(std::span<const uint8_t> in, uint8_t* out) = 0;
  // Ends a message that is sealed.
  virtual GcmTag Tag() = 0;
  // Ends a message that is opened. Returns whether key, nonce, bound bytes and message are those
  // that gave `tag`.
  virtual bool Opens(const GcmTag& tag) = 0;
};

// One library's. MakeIpsecMbGcm returns null where this build or this processor lacks what it
// needs.
std::unique_ptr<AesGcm> MakeOpenSslGcm(AesGcm::Use use, std::span<const uint8_t> key);
std::unique_ptr<AesGcm> MakeIpsecMbGcm(AesGcm::Use use, std::span<const uint8_t> key);

}  // namespace kvstow

#endif  // KVSTOW_BASE_AES_GCM_H_
