// An encoded page as it crosses a network (docs/FORMAT.md, "Encoded payload"): page header and
// bodies of segments, all of them or some.
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

// By how much the payload of a page may exceed its raw bytes: header and list of segments.
inline constexpr uint64_t kEncodedOverhead = kMaxPageHeaderBytes + (64 << 10);

// The parts of the payload, in order. bodies[i] is that of the header's segment i, or nothing when
// it does not travel; nothing is copied.
std::vector<SharedBytes> EncodedPayload(const SharedBytes& header,
                                        std::span<const std::optional<SharedBytes>> bodies);

struct ParsedPayload {
  PageHeader header;
  SharedBytes header_bytes;
  std::vector<std::optional<SharedBytes>> bodies;  // up to the last that came
};
// Nothing of the payload is trusted: the header is valid, and every body matches its digest. Bodies
// are copies, a block each. DATA_LOSS says what is damaged; the header's errors are
// ParsePageHeader's.
absl::StatusOr<ParsedPayload> ParseEncodedPayload(std::span<const uint8_t> payload);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_PAGE_ENCODED_PAYLOAD_H_
