#include "kernels/page/encoded_payload.h"

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the encoded page is damaged: ", what));
}

}  // namespace

std::vector<SharedBytes> EncodedPayload(const SharedBytes& header,
                                        std::span<const std::optional<SharedBytes>> bodies) {
  ByteWriter front, indices;
  uint32_t count = 0;
  for (size_t i = 0; i < bodies.size(); ++i) {
    if (!bodies[i].has_value()) continue;
    indices.Put(static_cast<uint16_t>(i));
    ++count;
  }
  front.Put(static_cast<uint32_t>(header.size()));
  front.Put(count);
  front.PutBytes(AsBytes(indices.bytes()));
  std::vector<SharedBytes> out = {SharedBytes::Take(std::move(front).Take()), header};
  for (const auto& body : bodies) {
    if (body.has_value()) out.push_back(*body);
  }
  return out;
}

absl::StatusOr<ParsedPayload> ParseEncodedPayload(std::span<const uint8_t> payload) {
  ByteReader in(payload);
  const auto header_bytes = in.Get<uint32_t>(), count = in.Get<uint32_t>();
  if (!in.ok() || count > kMaxSegments) return Damaged("its list of segments");
  std::vector<uint16_t> indices;
  for (uint32_t i = 0; i < count; ++i) indices.push_back(in.Get<uint16_t>());
  const std::span<const uint8_t> header = in.GetBytes(header_bytes);
  if (!in.ok()) return Damaged("it is cut off");
  ParsedPayload out;
  KVSTOW_ASSIGN_OR_RETURN(out.header, ParsePageHeader(header));
  out.header_bytes = SharedBytes::CopyOf(header);
  for (const uint16_t index : indices) {
    if (index < out.bodies.size() || index >= out.header.segments.size()) {
      return Damaged("its list of segments");
    }
    const SegmentInfo& segment = out.header.segments[index];
    const std::span<const uint8_t> body = in.GetBytes(segment.bytes);
    if (!in.ok() || Xxh3(body) != segment.digest) {
      return Damaged(absl::StrCat("segment ", index, " fails its digest"));
    }
    out.bodies.resize(index + size_t{1});
    out.bodies.back() = SharedBytes::CopyOf(body);
  }
  if (in.remaining() != 0) return Damaged("bytes follow its last segment");
  return out;
}

}  // namespace kvstow
