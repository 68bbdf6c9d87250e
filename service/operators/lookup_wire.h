// Lookup on the wire: reads v1.LookupRequest in place, writes v1.LookupResponse by hand.
//
// A call has hundreds of keys and takes some tens of nanoseconds for each, so there is no protobuf
// object a key. Keys are views of the message that came. The answer is written from the store's
// result. The wire format is plain protobuf; unknown fields are skipped.
//
// Free functions; thread-safe.
#ifndef KVSTOW_SERVICE_OPERATORS_LOOKUP_WIRE_H_
#define KVSTOW_SERVICE_OPERATORS_LOOKUP_WIRE_H_

#include <grpcpp/support/slice.h>

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

inline constexpr int kMaxKeysPerCall = 65536;

// Views of the message.
struct LookupQuery {
  absl::string_view space, fingerprint;
  std::vector<absl::string_view> keys;
  bool lease = false;
};

// `message` must outlive the query, and must not move. Fails with INVALID_ARGUMENT for a message
// that is malformed or has more than kMaxKeysPerCall keys.
absl::StatusOr<LookupQuery> ReadLookupRequest(const grpc::Slice& message);

grpc::Slice WriteLookupResponse(const PrefixMatch& match);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPERATORS_LOOKUP_WIRE_H_
