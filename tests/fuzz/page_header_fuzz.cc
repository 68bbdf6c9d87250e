// Page headers from anywhere: parsing never crashes, and what parses serializes to the same bytes.
// The input is a header without its digest, so that the fuzzer gets past it.
#include <cstdlib>

#include "kernels/page/encoded_page.h"
#include "tests/fuzz/right_digests.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstow;
  (void)ParsePageHeader({data, size}).ok();
  const std::string bytes = testing::WithHeaderDigest({data, size});
  const auto header = ParsePageHeader(AsBytes(bytes));
  if (header.ok() && SerializePageHeader(*header) != bytes) std::abort();
  return 0;
}
