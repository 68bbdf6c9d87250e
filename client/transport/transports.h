// The transports of a client (transport.h). `core` outlives each of them.
#ifndef KVSTOW_CLIENT_TRANSPORT_TRANSPORTS_H_
#define KVSTOW_CLIENT_TRANSPORT_TRANSPORTS_H_

#include <memory>

#include "client/transport/transport.h"

namespace kvstow {

// Returns those below as one, in their order.
std::unique_ptr<Transport> MakeTransports(ClientCore& core);

// Pages on the client's GPU (ClientOptions::gpu, which must be set). A batch with such a page is
// this transport's, whole. It hands any other batch, and one of summaries or of pages that are
// still being filled, to `host`.
//
// Where the server is on the same GPU and has given its session memory there, a page goes through a
// range of that memory: the transport copies it within the GPU, before the request or after its
// answer. Other pages, and those that the session leaves without a good answer, go through host
// memory, some MiB at a time, over `host`. A page waits for its event, but no longer than the
// deadline.
std::unique_ptr<Transport> MakeGpuTransport(ClientCore& core, std::unique_ptr<Transport> host);

// Pages in memory that the server on this host shares: they do not travel
// (proto/kvstow/v1/local.proto). Takes a page when its buffer alone can be taken out of the sharing
// (LocalSession::RangeOf) and it has no columns.
std::unique_ptr<Transport> MakeLocalTransport(ClientCore& core);

// Pages over an idle direct connection, all of them in one conversation. Takes none when no
// connection is idle. Leaves those that the server refuses, that came damaged, or that a broken
// connection cut off.
std::unique_ptr<Transport> MakeDirectTransport(ClientCore& core);

// Pages over gRPC streams, as many as it takes: answers every page. Opens the space where the
// client or the server does not know it, and tries again as client.h says; another stream then
// moves the pages that have no result yet. Refuses pages on a GPU.
//
// At most options.get_window_bytes of a Get are under way. A Put references payload and does not
// copy it, and ends when gRPC has let go of every byte.
std::unique_ptr<Transport> MakeStreamTransport(ClientCore& core);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_TRANSPORT_TRANSPORTS_H_
