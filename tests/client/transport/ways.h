// The ways of pages between a client and its server, as tests of the whole client take each alone.
#ifndef KVSTOW_TESTS_CLIENT_TRANSPORT_WAYS_H_
#define KVSTOW_TESTS_CLIENT_TRANSPORT_WAYS_H_

#include <ostream>

#include "client/client_options.h"

namespace kvstow {

struct ClientWay {
  const char* name;
  ClientOptions options;  // leave this way alone
  bool shared = false;    // pages lie in memory that the server shares
  bool on_gpu = false;
};
inline void PrintTo(const ClientWay& way, std::ostream* out) { *out << way.name; }

inline const ClientWay kClientWays[] = {
    {"Streams", {.shared_bytes = 0, .direct_connections = 0}},
    {"Direct", {.shared_bytes = 0}},
    {"SharedMemory", {.direct_connections = 0}, /*shared=*/true},
    {"SameGpu", {.direct_connections = 0}, false, /*on_gpu=*/true},
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_CLIENT_TRANSPORT_WAYS_H_
