// TLS on one connected TCP socket that does not block.
//
// No call waits: each goes as far as it can and says what it would wait for. OpenSSL makes the
// handshake. With AES-GCM the records behind it are this side's own (tls_records.h): what is
// written is coded from where it lies into records of 16 KiB, which gather until the buffer is full
// or Flush is called; what is read is decoded from what the kernel gave into the caller's buffer.
// So the kernel is called once for several records, and nothing else copies. With another suite
// OpenSSL does that too, with its copies. One thread at a time uses a session. It does not own the
// socket.
//
// Errors: UNAUTHENTICATED when the handshake fails, and says which side did not like what;
// UNAVAILABLE when the peer is gone; INVALID_ARGUMENT when what came is no TLS or was changed on
// its way. After an error the session is good for nothing. What lies in a buffer for Read behind
// the bytes of its Step means nothing.
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
#include "proto/wire/tls_records.h"

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
  absl::StatusOr<Step> Blocked(int16_t wait_for) const;
  void TakeOver();
  absl::StatusOr<Step> ReadRecords(std::span<uint8_t> bytes);
  absl::StatusOr<Step> NextBytes(std::span<uint8_t> bytes);

  const std::shared_ptr<const TlsContext::Loaded> loaded_;
  const std::unique_ptr<Wire> wire_;
  const std::unique_ptr<SSL, void (*)(SSL*)> ssl_;
  std::unique_ptr<TlsRecords> records_;  // null: OpenSSL goes on after the handshake
  std::span<const uint8_t> opened_;      // of the record that was opened last, for Read
  absl::Status failed_;                  // what the next Read says
  bool shaken_ = false;
};

}  // namespace kvstow

#endif  // KVSTOW_PROTO_WIRE_TLS_SESSION_H_
