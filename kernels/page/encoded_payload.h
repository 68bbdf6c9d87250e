// An encoded page as it crosses a network (docs/FORMAT.md, "Encoded payload"): the page header and
// the bodies of all or some segments.
//
// Free functions; thread-safe.
#ifndef KVSTOW_KERNELS_PAGE_ENCODED_PAYLOAD_H_
#define KVSTOW_KERNELS_PAGE_ENCODED_PAYLOAD_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/shared_bytes.h"
#include "kernels/page/encoded_page.h"

namespace kvstow {

// The bytes by which the payload of a page may exceed its raw bytes: header and list of segments.
inline constexpr uint64_t kEncodedOverhead = kMaxPageHeaderBytes + (64 << 10);

// Returns the parts of the payload, in order. bodies[i] is the body of the header's segment i, or
// nothing when it does not travel. Copies neither header nor bodies.
std::vector<SharedBytes> EncodedPayload(const SharedBytes& header,
                                        std::span<const std::optional<SharedBytes>> bodies);

struct ParsedPayload {
  PageHeader header;
  SharedBytes header_bytes;
  std::vector<std::optional<SharedBytes>> bodies;  // up to the last body that came
};
// Trusts nothing of the payload: checks the header, and every body against its digest. Bodies are
// copies, each in a block of its own. Fails with DATA_LOSS, which says what is damaged, and with
// the errors of ParsePageHeader.
absl::StatusOr<ParsedPayload> ParseEncodedPayload(std::span<const uint8_t> payload);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_PAGE_ENCODED_PAYLOAD_H_
