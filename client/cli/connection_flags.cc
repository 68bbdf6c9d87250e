#include "client/cli/connection_flags.h"

namespace kvstow::cli {

void AddConnectionFlags(const Verb& verb, TlsOptions& tls, std::string& token_file,
                        double& timeout_s) {
  verb.Option("--tls-ca", tls.ca, "talk TLS, to a server whose certificate this CA signed")
      .TypeName("FILE")
      .FromEnvironment("KVSTOW_TLS_CA");
  verb.Option("--tls-cert", tls.certificate, "certificate to show to a server that asks")
      .TypeName("FILE")
      .FromEnvironment("KVSTOW_TLS_CERT");
  verb.Option("--tls-key", tls.key, "its key, without a passphrase")
      .TypeName("FILE")
      .FromEnvironment("KVSTOW_TLS_KEY");
  verb.Option("--tls-name", tls.server_name,
              "name that the server's certificate must have [the host of --server]")
      .TypeName("NAME")
      .FromEnvironment("KVSTOW_TLS_NAME");
  verb.Option("--token-file", token_file,
              "file with the bearer token that says who you are, where the server asks")
      .FromEnvironment("KVSTOW_TOKEN_FILE");
  verb.Option("--timeout", timeout_s, "seconds that a call may take")
      .Within(0.001, 86400.0)
      .ShowDefault();
}

}  // namespace kvstow::cli
