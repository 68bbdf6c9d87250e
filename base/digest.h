// Digests: XXH3 finds damage (fast, not a secret), SHA-256 names things (collision-resistant).
//
// Free functions, thread-safe. Digests are values. docs/FORMAT.md gives their bytes at rest.
#ifndef KVSTOW_BASE_DIGEST_H_
#define KVSTOW_BASE_DIGEST_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace kvstow {

// XXH3-64 of `bytes`, seed 0: every record at rest and every segment carries one.
uint64_t Xxh3(std::span<const uint8_t> bytes);

// XXH3-128 in its canonical (big-endian) byte order: the identity of a raw page's content.
struct Digest128 {
  std::array<uint8_t, 16> bytes{};
  bool operator==(const Digest128&) const = default;
  std::string Hex() const;
};
Digest128 Xxh3_128(std::span<const uint8_t> bytes);

// Digests bytes that come in pieces.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(Xxh3Stream&&) noexcept;
  Xxh3Stream& operator=(Xxh3Stream&&) noexcept;
  void Update(std::span<const uint8_t> bytes);
  // Return the digest of the bytes so far.
  Digest128 Finish() const;
  uint64_t Finish64() const;  // as Xxh3 does; only the end differs from Finish

 private:
  struct Deleter {
    void operator()(void* state) const;
  };
  std::unique_ptr<void, Deleter> state_;
};

using Sha256Digest = std::array<uint8_t, 32>;
Sha256Digest Sha256(std::span<const uint8_t> bytes);
// HMAC-SHA-256 (RFC 2104): names things too, but only for those who have the key.
Sha256Digest HmacSha256(std::span<const uint8_t> key, std::span<const uint8_t> bytes);

std::string HexOf(std::span<const uint8_t> bytes);

inline std::span<const uint8_t> AsBytes(absl::string_view s) {
  return {reinterpret_cast<const uint8_t*>(s.data()), s.size()};
}
inline absl::string_view AsString(std::span<const uint8_t> b) {
  return {reinterpret_cast<const char*>(b.data()), b.size()};
}

}  // namespace kvstow

#endif  // KVSTOW_BASE_DIGEST_H_
