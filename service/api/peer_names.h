// The names in the certificate of a gRPC call's peer, as PeerFacts has them (service/access).
//
// A free function; thread-safe.
#ifndef KVSTOW_SERVICE_API_PEER_NAMES_H_
#define KVSTOW_SERVICE_API_PEER_NAMES_H_

#include <grpcpp/server_context.h>

#include <string>
#include <vector>

namespace kvstow {

// Returns the names in the caller's certificate: "spiffe://...", "uri:...", "dns:NAME" and
// "cn:NAME", in this order. Empty for a caller without a certificate that the server has verified.
// A SPIFFE id counts only when it is the certificate's one URI, as SPIFFE asks.
std::vector<std::string> CertificateNames(const grpc::ServerContextBase& context);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_PEER_NAMES_H_
