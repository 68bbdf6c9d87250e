#include "client/encoded_payload.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/shared_bytes.h"
#include "base/status_macros.h"
#include "kernels/codec.h"
#include "kernels/encoded_page.h"

namespace kvstow {
namespace {

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the encoded page is damaged: ", what));
}

struct Payload {
  PageHeader header;
  std::vector<std::optional<SharedBytes>> bodies;
};

absl::StatusOr<Payload> Parse(std::span<const uint8_t> bytes) {
  ByteReader in(bytes);
  const auto header_bytes = in.Get<uint32_t>(), count = in.Get<uint32_t>();
  if (!in.ok() || count > kMaxSegments) return Damaged("its list of segments");
  std::vector<uint16_t> indices;
  for (uint32_t i = 0; i < count; ++i) indices.push_back(in.Get<uint16_t>());
  const std::span<const uint8_t> header = in.GetBytes(header_bytes);
  if (!in.ok()) return Damaged("it is cut off");
  Payload out;
  KVSTOW_ASSIGN_OR_RETURN(out.header, ParsePageHeader(header));
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

}  // namespace

absl::StatusOr<DecodedPayload> DecodeEncodedPayload(std::span<const uint8_t> payload,
                                                    const PageGet& page,
                                                    const CalibrationStore& calibrations) {
  KVSTOW_ASSIGN_OR_RETURN(const Payload parsed, Parse(payload));
  const PageHeader& header = parsed.header;
  if (header.key != page.key) return Damaged("it belongs to another key");
  if (header.calibration != CalibrationId{} && calibrations.Find(header.calibration) == nullptr) {
    return absl::NotFoundError(absl::StrCat("the page needs calibration ",
                                            HexOf(header.calibration), ", which is not loaded"));
  }
  const auto count = [](uint32_t all, uint32_t first, uint32_t asked) {
    if (first >= all || asked > all - first) return 0u;  // it has not so many
    return asked > 0 ? asked : all - first;
  };
  const PageRange wanted{
      {page.first_layer, count(header.layers, page.first_layer, page.layer_count)},
      {page.first_token, count(header.tokens, page.first_token, page.token_count)}};
  const size_t bytes = wanted.layers.count * LayerBytes(header.Geometry(), wanted.tokens.count);
  if (bytes == 0 || bytes > page.out.size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the page has ", header.layers, " layers and ", header.tokens,
        " tokens; what was asked of "
        "them has ",
        bytes, " bytes, the buffer ", page.out.size(), ": does the worker use the space's spec?"));
  }
  KVSTOW_RETURN_IF_ERROR(
      DecodePage(header, parsed.bodies, wanted, page.out.first(bytes), calibrations));
  DecodedPayload out{.bytes = bytes, .tokens = wanted.tokens.count, .keep = {}};
  KVSTOW_ASSIGN_OR_RETURN(auto kept, KeptTokens(header, parsed.bodies, wanted));
  if (kept.has_value()) out.keep = std::move(kept->keep);
  return out;
}

PageOutcome OutcomeOfFailedDecode(const absl::Status& status) {
  if (absl::IsNotFound(status)) return PageOutcome::kMiss;
  return absl::IsDataLoss(status) ? PageOutcome::kCorrupt : PageOutcome::kNotCompatible;
}

}  // namespace kvstow
