// A Get or a Put of a batch with pages on the client's GPU.
//
// Where the server is on the same GPU and has given its session memory there, a page goes through a
// range of that memory: the call copies it within the GPU, before the request or after its answer.
// Other pages, and those that the session leaves without a good answer, go through host memory,
// some MiB at a time, and over a direct connection or a stream. A page waits for its event, but no
// longer than the deadline.
#ifndef KVSTOW_CLIENT_GPU_CALL_H_
#define KVSTOW_CLIENT_GPU_CALL_H_

#include <string>
#include <vector>

#include "client/client.h"
#include "client/client_core.h"
#include "client/get_call.h"

namespace kvstow {

// Work like StartGet and StartPut, but `done` runs on core.gpu_thread, which must exist. `batch` is
// not of summaries and has no `each`.
void StartGpuGet(ClientCore& core, GetBatch batch, Time deadline);
void StartGpuPut(ClientCore& core, std::string space, std::vector<PagePut> pages, Time deadline,
                 Client::PutDone done);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_GPU_CALL_H_
