// The file of data keys, with its digest made right, and the text of master keys.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/digest.h"
#include "service/keys/key_file.h"
#include "service/keys/master_key.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstow;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  ParseMasterKeys(bytes, "fuzz").IgnoreError();
  if (size > sizeof(uint64_t)) {
    const uint64_t digest = Xxh3(AsBytes(bytes).first(size - sizeof(uint64_t)));
    const auto* const fixed = reinterpret_cast<const char*>(&digest);
    std::copy(fixed, fixed + sizeof(digest), bytes.end() - sizeof(digest));
  }
  const auto file = ParseKeyFile(AsBytes(bytes));
  if (file.ok() && SerializeKeyFile(*file) != bytes) std::abort();
  return 0;
}
