#include "client/payload/decode_payload.h"

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "kernels/codec/codec.h"
#include "kernels/page/encoded_payload.h"

namespace kvstow {

absl::StatusOr<DecodedPayload> DecodeEncodedPayload(std::span<const uint8_t> payload,
                                                    const PageGet& page,
                                                    const CalibrationStore& calibrations,
                                                    const PageDecoder& decoder) {
  KVSTOW_ASSIGN_OR_RETURN(const ParsedPayload parsed, ParseEncodedPayload(payload));
  const PageHeader& header = parsed.header;
  if (header.key != page.key) {
    return absl::DataLossError("the encoded page is damaged: it belongs to another key");
  }
  if (header.calibration != CalibrationId{} && calibrations.Find(header.calibration) == nullptr) {
    return absl::NotFoundError(absl::StrCat("the page needs calibration ",
                                            HexOf(header.calibration), ", which is not loaded"));
  }
  const auto count = [](uint32_t all, uint32_t first, uint32_t asked) {
    if (first >= all || asked > all - first) return 0u;  // the page has fewer
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
  const std::span<uint8_t> out_bytes = page.out.first(bytes);
  KVSTOW_RETURN_IF_ERROR(decoder
                             ? decoder(header, parsed.bodies, wanted, out_bytes)
                             : DecodePage(header, parsed.bodies, wanted, out_bytes, calibrations));
  DecodedPayload out{.bytes = bytes, .tokens = wanted.tokens.count, .kept_share = 1, .keep = {}};
  KVSTOW_ASSIGN_OR_RETURN(auto kept, KeptTokens(header, parsed.bodies, wanted));
  if (kept.has_value()) {
    out.kept_share = kept->Share();
    out.keep = std::move(kept->keep);
  }
  return out;
}

PageOutcome OutcomeOfFailedDecode(const absl::Status& status) {
  if (absl::IsNotFound(status)) return PageOutcome::kMiss;
  return absl::IsDataLoss(status) ? PageOutcome::kCorrupt : PageOutcome::kNotCompatible;
}

}  // namespace kvstow
