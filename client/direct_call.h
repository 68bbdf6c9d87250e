// A Get or a Put of a batch of pages, or a Lookup, over a direct connection, where one is idle;
// what it leaves without an answer goes over a stream.
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

// True when the call has begun, and ends as StartGet and StartPut say, but for the thread of its
// callback: it may be the connection's. False when it must go over a stream; nothing was done then.
bool StartDirectGet(ClientCore& core, GetBatch& batch, Time deadline);
bool StartDirectPut(ClientCore& core, const std::string& space, std::vector<PagePut>& pages,
                    Client::PutDone& done, Time deadline, PageCoder coder = nullptr);

// A Lookup, on this thread; nothing when it must go over gRPC. DEADLINE_EXCEEDED when that came
// first: there is no time for another attempt.
absl::StatusOr<std::optional<v1::LookupResponse>> LookupDirect(ClientCore& core,
                                                               const v1::LookupRequest& request);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_DIRECT_CALL_H_
