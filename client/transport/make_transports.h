// The transports of a client, in their order.
#ifndef KVSTOW_CLIENT_TRANSPORT_MAKE_TRANSPORTS_H_
#define KVSTOW_CLIENT_TRANSPORT_MAKE_TRANSPORTS_H_

#include <memory>

#include "client/transport/transport.h"

namespace kvstow {

// `core` outlives the result.
std::unique_ptr<Transport> MakeTransports(ClientCore& core);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_TRANSPORT_MAKE_TRANSPORTS_H_
