// Decodes the payload of an encoded page (docs/FORMAT.md, "Encoded payload") into the requested raw
// bytes.
//
// The payload is not trusted: the page must name the requested key, and every segment must match
// its digest. Free functions; thread-safe.
#ifndef KVSTOW_CLIENT_PAYLOAD_DECODE_PAYLOAD_H_
#define KVSTOW_CLIENT_PAYLOAD_DECODE_PAYLOAD_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/pages.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"

namespace kvstow {

struct DecodedPayload {
  size_t bytes = 0;  // at the front of PageGet::out
  uint32_t tokens = 0;
  double kept_share = 1;  // these two are as in GetResult
  std::vector<uint8_t> keep;
};

// Writes the layers and tokens that `page` asks for to page.out. Fails with DATA_LOSS when the page
// is damaged, with NOT_FOUND when `calibrations` lacks the calibration that the page names, and
// with FAILED_PRECONDITION when this build cannot decode the page, the page lacks these tokens, or
// its bytes do not fit into page.out. Calls `decoder`, if not null, in place of DecodePage.
absl::StatusOr<DecodedPayload> DecodeEncodedPayload(std::span<const uint8_t> payload,
                                                    const PageGet& page,
                                                    const CalibrationStore& calibrations,
                                                    const PageDecoder& decoder = nullptr);

// Returns the outcome of a page whose payload did not decode.
PageOutcome OutcomeOfFailedDecode(const absl::Status& status);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_PAYLOAD_DECODE_PAYLOAD_H_
