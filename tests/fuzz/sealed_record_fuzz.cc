// Sealed records and values of segments, as somebody who can write the disk may make them: the
// digest at their end is always right. Whatever parses is what a vault could have sealed, or in
// clear; nothing crashes, and nothing allocates from an unchecked length.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/digest.h"
#include "storage/disk/segment_format.h"
#include "storage/record.h"
#include "storage/seal/vault.h"
#include "tests/storage/test_keys.h"

namespace {

void Check(bool ok) {
  if (!ok) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstow;
  static Vault vault(std::make_shared<TestKeys>()), none(NoDataKeys());
  std::string bytes(reinterpret_cast<const char*>(data), size);
  const std::string key = SegmentKey({7, 1});
  const auto value = ParseSegmentValue(AsBytes(key), AsBytes(bytes));
  if (value.ok()) Check(value->place.file != 0 || value->body.size() == value->place.length);
  if (size > sizeof(uint64_t)) {
    const uint64_t digest = Xxh3(AsBytes(bytes).first(size - sizeof(uint64_t)));
    const auto* const fixed = reinterpret_cast<const char*>(&digest);
    std::copy(fixed, fixed + sizeof(digest), bytes.end() - sizeof(digest));
  }
  const auto page = vault.ParsePage(AsBytes(bytes));
  const auto space = vault.ParseSpace(AsBytes(bytes));
  Check(!page.ok() || IsSealedRecord(AsBytes(bytes)));
  Check(!space.ok() || IsSealedRecord(AsBytes(bytes)));
  none.ParsePage(AsBytes(bytes)).IgnoreError();
  none.ParseSpace(AsBytes(bytes)).IgnoreError();
  const auto cut = TruncatePageRecord(AsBytes(bytes), 1);
  if (cut.ok() && !cut->bytes.empty()) {
    const auto again = TruncatePageRecord(AsBytes(cut->bytes), 1);
    Check(again.ok() && again->segments <= 1);
  }
  return 0;
}
