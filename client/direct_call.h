// A Get or a Put of a batch of pages, or a Lookup, over an idle direct connection. Pages that it
// leaves without an answer go over a stream.
#ifndef KVSTOW_CLIENT_DIRECT_CALL_H_
#define KVSTOW_CLIENT_DIRECT_CALL_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/client_core.h"
#include "client/get_call.h"
#include "kernels/codec/decode_page.h"
#include "kvstow/v1/kv_cache.pb.h"

namespace kvstow {

// Return true when the call has begun. It then ends as StartGet and StartPut say, but its callback
// may run on the connection's thread. Return false, and do nothing, when the call must go over a
// stream.
bool StartDirectGet(ClientCore& core, GetBatch& batch, Time deadline);
bool StartDirectPut(ClientCore& core, const std::string& space, std::vector<PagePut>& pages,
                    Client::PutDone& done, Time deadline, PageCoder coder = nullptr);

// Looks up on this thread. Returns nothing when the Lookup must go over gRPC. Fails with
// DEADLINE_EXCEEDED when no time is left for another attempt.
absl::StatusOr<std::optional<v1::LookupResponse>> LookupDirect(ClientCore& core,
                                                               const v1::LookupRequest& request);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_DIRECT_CALL_H_
