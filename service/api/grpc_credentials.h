// Credentials of the gRPC port: TLS with the same certificates as every other listener.
//
// Free functions. The context and the credentials outlive the server.
#ifndef KVSTOW_SERVICE_API_GRPC_CREDENTIALS_H_
#define KVSTOW_SERVICE_API_GRPC_CREDENTIALS_H_

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "proto/wire/tls_context.h"

namespace kvstow {

// Returns credentials that ask `tls` for its certificates at each new connection. A client must
// have a certificate where `tls` says so.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(TlsContext& tls);

// Leaves gRPC nothing but TLS 1.3: gRPC 1.51 has no option for that. Sets an environment variable,
// which gRPC reads at its first use of TLS. Call it before there are other threads.
void AllowOnlyTls13();

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_API_GRPC_CREDENTIALS_H_
