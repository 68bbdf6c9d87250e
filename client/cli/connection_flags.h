// The flags of a connection to kvstowd, beside its address: --tls-ca and its like, --token-file and
// --timeout. AddServerFlags and AddOneServerFlags (cli.h) add them with --server; a verb whose
// --server means something else adds them itself.
#ifndef KVSTOW_CLIENT_CLI_CONNECTION_FLAGS_H_
#define KVSTOW_CLIENT_CLI_CONNECTION_FLAGS_H_

#include <string>

#include "client/cli/verb.h"
#include "client/client_options.h"

namespace kvstow::cli {

void AddConnectionFlags(const Verb& verb, TlsOptions& tls, std::string& token_file,
                        double& timeout_s);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_CONNECTION_FLAGS_H_
