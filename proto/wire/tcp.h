// Options of TCP sockets whose messages wait for each other.
#ifndef KVSTOW_PROTO_WIRE_TCP_H_
#define KVSTOW_PROTO_WIRE_TCP_H_

namespace kvstow {

// Small messages go at once, and peers that are gone without a word are found within some 35 s. All
// of it is advice to the system. Thread-safe.
void TuneTcp(int descriptor);

}  // namespace kvstow

#endif  // KVSTOW_PROTO_WIRE_TCP_H_
