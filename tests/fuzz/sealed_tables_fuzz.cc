// Files of sealed tables, as somebody who can write the disk may make them: the digest of the head
// is always right. What opens says the same of itself without its key.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/bytes.h"
#include "base/digest.h"
#include "service/spaces/sealed_tables.h"
#include "storage/seal/seal.h"
#include "tests/storage/test_keys.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstow;
  constexpr size_t kTenantAt = 12;
  constexpr uint64_t kNumber = 0x0123456789abcdef;  // of the seed
  static TestKeys keys;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  ByteReader in(AsBytes(bytes));
  in.GetBytes(kTenantAt);
  in.GetBytes(in.Get<uint16_t>() + kSealBytes);
  if (in.ok() && in.remaining() >= sizeof(uint64_t)) {
    const size_t head = size - in.remaining();
    const uint64_t digest = Xxh3(AsBytes(bytes).first(head));
    std::copy_n(reinterpret_cast<const char*>(&digest), sizeof(digest), bytes.begin() + head);
  }
  const auto place = PlaceOfTables(kNumber, AsBytes(bytes));
  const auto opened = OpenTables(keys, kNumber, bytes);
  if (opened.ok() && !(place.ok() && *place == opened->place && opened->blob.size() < size)) {
    std::abort();
  }
  return 0;
}
