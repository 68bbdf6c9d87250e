// Heads of HTTP requests from anywhere: a reader that saw the beginning says the same of the whole,
// or that it is not complete; never a crash.
#include <cstdlib>

#include "service/ops/http_message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstow;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto whole = ReadHttpRequest(bytes);
  if (!whole.has_value() && size > kMaxHttpHeadBytes) std::abort();
  if (!whole.has_value()) return 0;
  if (whole->refused == 0 && whole->path.empty()) std::abort();
  const auto half = ReadHttpRequest(bytes.substr(0, size / 2));
  const bool same = half.has_value() && half->refused == 0;
  if (same && (whole->refused != 0 || half->path != whole->path)) std::abort();
  return 0;
}
