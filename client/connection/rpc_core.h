// The parts that every gRPC call of a client needs: options, nodes, the thread of callbacks, and
// the list of open calls.
//
// Thread-safe. ClientCore makes the nodes.
#ifndef KVSTOW_CLIENT_CONNECTION_RPC_CORE_H_
#define KVSTOW_CLIENT_CONNECTION_RPC_CORE_H_

#include <utility>

#include "absl/status/status.h"
#include "base/clock.h"
#include "client/client_options.h"
#include "client/connection/bearer_token.h"
#include "client/connection/channel.h"
#include "client/connection/executor.h"
#include "client/connection/nodes.h"
#include "client/connection/open_calls.h"

namespace kvstow {

struct RpcCore {
  RpcCore(ClientOptions o, Nodes::Parts parts)
      : options(std::move(o)),
        options_status(Validate(options)),
        nodes(ListedIn(options.address), std::move(parts)) {
    if (options_status.ok()) options_status = nodes.status();
    if (options_status.ok()) options_status = CheckToken(options);
    if (options_status.ok()) options_status = executor.status();
  }

  // Returns the deadline of a call that begins now.
  Time Deadline() const { return Clock::Real().Now() + options.timeout; }

  const ClientOptions options;
  absl::Status options_status;  // unless OK, every call fails with it; const after construction
  BearerToken token{options};
  Nodes nodes;
  OpenCalls calls;
  Executor executor;  // joins before the members above go
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_RPC_CORE_H_
