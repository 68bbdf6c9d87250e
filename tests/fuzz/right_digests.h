// What a fuzzer made, with the digests that its parser asks for: else it would never get past them.
#ifndef KVSTOW_TESTS_FUZZ_RIGHT_DIGESTS_H_
#define KVSTOW_TESTS_FUZZ_RIGHT_DIGESTS_H_

#include <span>
#include <string>

#include "base/bytes.h"
#include "base/digest.h"

namespace kvstow::testing {

// A page's header. `bytes` are all of it but the digest.
inline std::string WithHeaderDigest(std::span<const uint8_t> bytes) {
  std::string out(AsString(bytes));
  const uint64_t digest = Xxh3(bytes);
  out.append(reinterpret_cast<const char*>(&digest), sizeof(digest));
  return out;
}

// Reads the header of a golden page, which stands behind its size (uint32), and makes its digest
// right; "" when it is cut off.
inline std::string GoldenHeader(ByteReader& in) {
  const auto head = in.GetBytes(in.Get<uint32_t>());
  if (head.size() < sizeof(uint64_t)) return "";
  return WithHeaderDigest(head.first(head.size() - sizeof(uint64_t)));
}

// A calibration's blob. `blob` is all of it but the digest.
inline std::string WithBlobDigest(std::string blob) {
  const Digest128 digest = Xxh3_128(AsBytes(blob));
  blob.append(digest.bytes.begin(), digest.bytes.end());
  return blob;
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_FUZZ_RIGHT_DIGESTS_H_
