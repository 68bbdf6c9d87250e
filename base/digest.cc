#include "base/digest.h"

#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <xxhash.h>
#if __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // the widest vectors that this machine has; the same digests
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstring>

#include "absl/strings/escaping.h"

namespace kvstow {
namespace {

Digest128 Canonical(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Digest128 out;
  std::memcpy(out.bytes.data(), canonical.digest, out.bytes.size());
  return out;
}

// The library's vector loops return with the upper halves of the registers in use. Intel's
// processors then run all SSE code that follows on the thread slower, a call of log() 30 times.
#if defined(__x86_64__)
__attribute__((target("avx"))) void ClearUpperHalves() { _mm256_zeroupper(); }
#endif
void EndVectors(size_t bytes) {
  constexpr size_t kLongInput = 240;  // shorter ones take no loop
  if (bytes <= kLongInput) return;
#if defined(__x86_64__)
  static const bool has_avx = __builtin_cpu_supports("avx") != 0;
  if (has_avx) ClearUpperHalves();
#endif
}

}  // namespace

uint64_t Xxh3(std::span<const uint8_t> bytes) {
  const uint64_t hash = XXH3_64bits(bytes.data(), bytes.size());
  EndVectors(bytes.size());
  return hash;
}

Digest128 Xxh3_128(std::span<const uint8_t> bytes) {
  const Digest128 digest = Canonical(XXH3_128bits(bytes.data(), bytes.size()));
  EndVectors(bytes.size());
  return digest;
}

std::string Digest128::Hex() const { return HexOf(bytes); }

void Xxh3Stream::Deleter::operator()(void* state) const {
  XXH3_freeState(static_cast<XXH3_state_t*>(state));
}

Xxh3Stream::Xxh3Stream() : state_(XXH3_createState()) {
  XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_.get()));
}
Xxh3Stream::~Xxh3Stream() = default;
Xxh3Stream::Xxh3Stream(Xxh3Stream&&) noexcept = default;
Xxh3Stream& Xxh3Stream::operator=(Xxh3Stream&&) noexcept = default;

void Xxh3Stream::Update(std::span<const uint8_t> bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_.get()), bytes.data(), bytes.size());
  EndVectors(bytes.size());
}

Digest128 Xxh3Stream::Finish() const {
  return Canonical(XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_.get())));
}

uint64_t Xxh3Stream::Finish64() const {
  return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_.get()));
}

Sha256Digest Sha256(std::span<const uint8_t> bytes) {
  Sha256Digest out;
  SHA256(bytes.data(), bytes.size(), out.data());
  return out;
}

Sha256Digest HmacSha256(std::span<const uint8_t> key, std::span<const uint8_t> bytes) {
  Sha256Digest out;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes.data(), bytes.size(),
       out.data(), nullptr);
  return out;
}

std::string HexOf(std::span<const uint8_t> bytes) {
  return absl::BytesToHexString(AsString(bytes));
}

}  // namespace kvstow
