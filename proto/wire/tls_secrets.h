// The secrets of one TLS 1.3 connection that the keys of its application data are made of, as
// OpenSSL tells them during the handshake. They are logged nowhere, and cleared at the end.
#ifndef KVSTOW_PROTO_WIRE_TLS_SECRETS_H_
#define KVSTOW_PROTO_WIRE_TLS_SECRETS_H_

#include <openssl/ssl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvstow {

class TlsSecrets {
 public:
  TlsSecrets() = default;
  ~TlsSecrets() { Clear(); }
  TlsSecrets(const TlsSecrets&) = delete;
  TlsSecrets& operator=(const TlsSecrets&) = delete;

  // Lets connections of this context tell theirs.
  static void Allow(SSL_CTX* context);
  // Takes those of this connection, which must not outlive this object.
  void TakeFrom(SSL* connection);
  void Clear();

  // Of what the client sends, and of what the server sends. Empty until the handshake is over.
  std::span<const uint8_t> client() const { return client_.all(); }
  std::span<const uint8_t> server() const { return server_.all(); }

 private:
  struct Secret {
    std::span<const uint8_t> all() const { return std::span(bytes).first(size); }
    std::array<uint8_t, 48> bytes = {};  // as long as a digest of the suite's hash
    size_t size = 0;
  };
  static void Told(const SSL* connection, const char* line);

  Secret client_, server_;
};

}  // namespace kvstow

#endif  // KVSTOW_PROTO_WIRE_TLS_SECRETS_H_
