// Encoded payloads from anywhere: they parse or are refused, and what parses has the bodies that
// its header vouches for; never a crash. The input is a golden file (tests/golden is the seed
// corpus): uint32 size of a header, the header, bodies. Both digests are made right, so that the
// fuzzer gets past them; the input as it is comes first.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "kernels/page/encoded_payload.h"
#include "tests/fuzz/right_digests.h"

namespace kvstow {
namespace {

SharedBytes Joined(const std::vector<SharedBytes>& parts) {
  std::string bytes;
  for (const SharedBytes& part : parts) absl::StrAppend(&bytes, AsString(part.span()));
  return SharedBytes::Take(std::move(bytes));
}

void Check(std::span<const uint8_t> payload) {
  const auto parsed = ParseEncodedPayload(payload);
  if (!parsed.ok()) return;
  if (parsed->bodies.size() > parsed->header.segments.size()) std::abort();
  for (size_t i = 0; i < parsed->bodies.size(); ++i) {
    const SegmentInfo& s = parsed->header.segments[i];
    const auto& body = parsed->bodies[i];
    if (body.has_value() && (body->size() != s.bytes || Xxh3(body->span()) != s.digest))
      std::abort();
  }
  const SharedBytes again = Joined(EncodedPayload(parsed->header_bytes, parsed->bodies));
  const auto back = ParseEncodedPayload(again.span());
  if (!back.ok() || back->header != parsed->header) std::abort();
}

}  // namespace
}  // namespace kvstow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvstow;
  Check({data, size});
  ByteReader in({data, size});
  const std::string bytes = testing::GoldenHeader(in);
  auto header = ParsePageHeader(AsBytes(bytes));
  if (!header.ok()) return 0;
  std::span<const uint8_t> rest = in.GetBytes(in.remaining());
  std::vector<std::optional<SharedBytes>> bodies;
  for (SegmentInfo& s : header->segments) {
    const auto body = rest.first(std::min<size_t>(s.bytes, rest.size()));
    rest = rest.subspan(body.size());
    s.bytes = static_cast<uint32_t>(body.size());
    s.digest = Xxh3(body);
    bodies.emplace_back(SharedBytes::CopyOf(body));
  }
  const SharedBytes whole = SharedBytes::Take(SerializePageHeader(*header));
  Check(Joined(EncodedPayload(whole, bodies)).span());
  return 0;
}
