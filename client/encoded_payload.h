// The payload of an encoded page, as docs/FORMAT.md ("Encoded payload") has it, into the raw bytes
// that were asked for.
//
// Nothing of it is trusted: the page must name the key that was asked for, and every segment must
// match its digest. Free functions; thread-safe.
#ifndef KVSTOW_CLIENT_ENCODED_PAYLOAD_H_
#define KVSTOW_CLIENT_ENCODED_PAYLOAD_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"

namespace kvstow {

struct DecodedPayload {
  size_t bytes = 0;  // at the front of PageGet::out
  uint32_t tokens = 0;
  std::vector<uint8_t> keep;  // as in GetResult
};

// Writes the layers and tokens of `page` to page.out. DATA_LOSS: damaged. NOT_FOUND: the
// calibration that the page names is not among `calibrations`. FAILED_PRECONDITION: a page that
// this build cannot decode, that has not these tokens, or whose bytes do not fit into page.out.
// `decoder`, if not null, is called in the place of DecodePage.
absl::StatusOr<DecodedPayload> DecodeEncodedPayload(std::span<const uint8_t> payload,
                                                    const PageGet& page,
                                                    const CalibrationStore& calibrations,
                                                    const PageDecoder& decoder = nullptr);

// What a page is whose payload did not decode.
PageOutcome OutcomeOfFailedDecode(const absl::Status& status);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_ENCODED_PAYLOAD_H_
