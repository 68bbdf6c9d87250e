// The names in the certificate of a gRPC call's peer, as PeerFacts has them (service/access).
//
// A free function; thread-safe.
#ifndef KVSTOW_SERVICE_API_PEER_NAMES_H_
#define KVSTOW_SERVICE_API_PEER_NAMES_H_

#include <grpcpp/server_context.h>

#include <string>
#include <vector>

namespace kvstow {

// Returns "spiffe://...", "uri:...", "dns:NAME" and "cn:NAME"; nothing when the peer has shown no
// certificate that was verified.
std::vector<std::string> CertificateNames(const grpc::ServerContextBase& context);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_PEER_NAMES_H_
