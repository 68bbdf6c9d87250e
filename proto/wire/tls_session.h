// TLS on one connected TCP socket that does not block.
//
// No call waits: each goes as far as it can and says what it would wait for. What is written goes
// from where it lies into records of 16 KiB, which gather until the buffer is full or Flush is
// called: so the kernel is called once for several records. What is read goes out of its record
// into the caller's buffer. One thread at a time uses a session. It does not own the socket.
//
// Errors: UNAUTHENTICATED when the handshake fails, and says which side did not like what;
// UNAVAILABLE when the peer is gone; INVALID_ARGUMENT when what came is no TLS. After an error the
// session is good for nothing.
#ifndef KVSTOW_PROTO_WIRE_TLS_SESSION_H_
#define KVSTOW_PROTO_WIRE_TLS_SESSION_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/tls_context.h"

namespace kvstow {

class TlsSession {
 public:
  // The side that the context is for. With `may_be_anonymous` a server takes a client without a
  // certificate too, and peer_names() is empty then.
  TlsSession(TlsContext& context, int descriptor, bool may_be_anonymous = false);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Before the handshake of a client: asks for a protocol (ALPN), as "h2".
  void Offer(absl::string_view protocol);

  struct Step {
    size_t bytes = 0;      // that went
    int16_t wait_for = 0;  // POLLIN or POLLOUT, before the next call can do more; 0 = done
  };
  absl::StatusOr<Step> Handshake();
  // Takes some of `bytes`. What it took may stay in the buffer until Flush is done.
  absl::StatusOr<Step> Write(std::span<const uint8_t> bytes);
  absl::StatusOr<Step> Flush();
  absl::StatusOr<Step> Read(std::span<uint8_t> bytes);
  // Tells the peer that nothing follows. Flush sends it.
  void Finish();

  // Returns whether something came that is not read yet and that poll() does not know of.
  bool pending() const;
  // Returns the names in the peer's verified certificate, as service/access/caller.h writes them.
  std::vector<std::string> peer_names() const;
  bool has_peer_certificate() const;

 private:
  struct Wire;  // between the session and the socket
  static const BIO_METHOD* Method();
  absl::Status Failed(int result);
  absl::StatusOr<Step> StepOf(int result);

  const std::shared_ptr<const TlsContext::Loaded> loaded_;
  const std::unique_ptr<Wire> wire_;
  const std::unique_ptr<SSL, void (*)(SSL*)> ssl_;
  bool shaken_ = false;
};

}  // namespace kvstow

#endif  // KVSTOW_PROTO_WIRE_TLS_SESSION_H_
