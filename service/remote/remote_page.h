// A page as it lies in a remote store: a record, and a value for each of its segments
// (docs/FORMAT.md, "Remote values").
//
// Each value has a frame (remote_frame.h) that binds it to its place: tenant, name, fingerprint and
// generation of the space, key of the page, and number of the segment. The record names the digest
// of each segment: a segment of another coding of the page fails with ABORTED. Other errors are
// OpenFramed's.
//
// Values, and free functions over them; thread-safe.
#ifndef KVSTOW_SERVICE_REMOTE_REMOTE_PAGE_H_
#define KVSTOW_SERVICE_REMOTE_REMOTE_PAGE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/shared_bytes.h"
#include "service/remote/remote_frame.h"
#include "storage/record.h"
#include "storage/segment.h"

namespace kvstow {

// Number and space of the record do not travel.
std::vector<SharedBytes> RecordValue(const RemotePlace& page, PageRecord record);
std::vector<SharedBytes> SegmentValue(const RemotePlace& page, size_t index,
                                      const SegmentFacts& facts, const SharedBytes& body,
                                      const AeadNonce& nonce = RandomNonce());

// Returns the encoded bytes of the page: header and segments.
uint64_t StoredBytes(const PageRecord& record);

absl::StatusOr<PageRecord> ParseRecordValue(const RemotePlace& page, absl::string_view key,
                                            const SharedBytes& value);
// Returns the body in memory of its own, without the frame.
absl::StatusOr<SharedBytes> ParseSegmentValue(const RemotePlace& page, size_t index,
                                              const SegmentFacts& facts, const SharedBytes& value);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REMOTE_PAGE_H_
