#include "service/api/grpc_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace kvstow {
namespace {

// gRPC's C++ interface reloads files by itself, and takes a pair that does not fit for a good one.
// Its C interface asks at each connection instead, so TlsContext alone decides what is good. Each
// port has an object of its own: gRPC keeps what it was given by port.
class PortCredentials {
 public:
  explicit PortCredentials(TlsContext& tls) : tls_(tls) {
    const auto request = tls.asks_for_certificates()
                             ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                             : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    credentials_ = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(request, Fetch, this));
  }
  PortCredentials(const PortCredentials&) = delete;
  PortCredentials& operator=(const PortCredentials&) = delete;
  ~PortCredentials() { grpc_server_credentials_release(credentials_); }

  grpc_server_credentials* get() const { return credentials_; }

 private:
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<PortCredentials*>(self)->Fetch(config);
  }
  grpc_ssl_certificate_config_reload_status Fetch(grpc_ssl_server_certificate_config** config) {
    const std::shared_ptr<const TlsContext::Loaded> now = tls_.Current();
    MutexLock lock(mu_);
    if (given_ == now) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {now->key.c_str(), now->certificate.c_str()};
    // gRPC insists on an authority, also where it asks no client for a certificate.
    const std::string& authority = now->ca.empty() ? now->certificate : now->ca;
    *config = grpc_ssl_server_certificate_config_create(authority.c_str(), &pair, 1);
    given_ = now;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  TlsContext& tls_;
  grpc_server_credentials* credentials_ = nullptr;
  Mutex mu_;
  std::shared_ptr<const TlsContext::Loaded> given_ KVSTOW_GUARDED_BY(mu_);
};

class ReloadingCredentials final : public grpc::ServerCredentials {
 public:
  explicit ReloadingCredentials(TlsContext& tls) : tls_(tls) {}

  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    ports_.push_back(std::make_unique<PortCredentials>(tls_));
    return grpc_server_add_http2_port(server, address.c_str(), ports_.back()->get());
  }

  TlsContext& tls_;
  std::vector<std::unique_ptr<PortCredentials>> ports_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(TlsContext& tls) {
  return std::make_shared<ReloadingCredentials>(tls);
}

void AllowOnlyTls13() {
  // The ciphers of TLS 1.3 have a list of their own, which this leaves alone. Of the older versions
  // it leaves one that needs a shared secret, which this server has with nobody.
  static const bool once = setenv("GRPC_SSL_CIPHER_SUITES", "PSK-AES256-GCM-SHA384", 1) == 0;
  static_cast<void>(once);
}

}  // namespace kvstow
