#include "service/remote/remote_page.h"

#include <utility>

#include "base/status_macros.h"

namespace kvstow {

std::vector<SharedBytes> RecordValue(const RemotePlace& page, PageRecord record) {
  record.number = 1;  // every server gives its own
  record.name.space = 0;
  record.parent.reset();
  return FramedValue(page, RemoteKind::kRecord, 0,
                     Digested(SharedBytes::Take(SerializePageRecord(record))));
}

std::vector<SharedBytes> SegmentValue(const RemotePlace& page, size_t index,
                                      const SegmentFacts& facts, const SharedBytes& body,
                                      const AeadNonce& nonce) {
  return FramedValue(page, RemoteKind::kSegment, index, {.body = body, .digest = facts.digest},
                     nonce);
}

uint64_t StoredBytes(const PageRecord& record) {
  uint64_t bytes = record.header.size();
  for (const SegmentFacts& facts : record.facts) bytes += facts.bytes;
  return bytes;
}

absl::StatusOr<PageRecord> ParseRecordValue(const RemotePlace& page, absl::string_view key,
                                            const SharedBytes& value) {
  KVSTOW_ASSIGN_OR_RETURN(const FramedBody framed, OpenFramed(page, RemoteKind::kRecord, 0, value));
  KVSTOW_ASSIGN_OR_RETURN(PageRecord record, ParsePageRecord(framed.body.span()));
  if (record.name.key != key) return absl::DataLossError("a remote page has another key");
  if (record.facts.empty()) return absl::DataLossError("a remote page has no segments");
  if (record.number != 1 || record.name.space != 0 || record.parent.has_value()) {
    return absl::DataLossError("a remote page has a number, a space or a parent of one server");
  }
  return record;
}

absl::StatusOr<SharedBytes> ParseSegmentValue(const RemotePlace& page, size_t index,
                                              const SegmentFacts& facts, const SharedBytes& value) {
  KVSTOW_ASSIGN_OR_RETURN(FramedBody framed, OpenFramed(page, RemoteKind::kSegment, index, value));
  if (framed.digest != facts.digest || framed.body.size() != facts.bytes) {
    return absl::AbortedError("a remote segment is of another coding of its page");
  }
  if (page.key != nullptr) return std::move(framed.body);
  return SharedBytes::CopyOf(framed.body.span());  // the frame would stay with it
}

}  // namespace kvstow
