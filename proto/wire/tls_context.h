// TLS of one side, server or client: its certificate, its key and whom it trusts, from files in
// PEM.
//
// TLS 1.3 only. The files are looked at again as new connections come, at most once a second: new
// ones count from the next connection on, without a restart. Files that are broken, or that do not
// fit each other yet, change nothing: the old ones stay in use, and the log says so once for each
// change. Connections that stand keep what they began with.
//
// Errors are INVALID_ARGUMENT and name the file: it cannot be read, holds no certificate or no key,
// is expired, or its key does not fit. Thread-safe.
#ifndef KVSTOW_PROTO_WIRE_TLS_CONTEXT_H_
#define KVSTOW_PROTO_WIRE_TLS_CONTEXT_H_

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace kvstow {

struct TlsFiles {
  std::string certificate = {};  // a chain, the own certificate first; "" = none (clients only)
  std::string key = {};          // of that certificate, without a passphrase
  std::string ca = {};           // whom it trusts. "" = a server that asks nobody for a certificate
};

class TlsContext {
 public:
  // What the files held when they were last found good.
  struct Loaded {
    std::shared_ptr<SSL_CTX> context;
    std::string certificate, key, ca;  // PEM
  };

  // With `files.ca` a server takes only clients whose certificate that CA has signed.
  static absl::StatusOr<std::shared_ptr<TlsContext>> ForServer(TlsFiles files,
                                                               const Clock& clock = Clock::Real());
  // `peer_name` is the DNS name or the IP address that a server's certificate must name.
  static absl::StatusOr<std::shared_ptr<TlsContext>> ForClient(TlsFiles files,
                                                               std::string peer_name,
                                                               const Clock& clock = Clock::Real());

  // Looks at the files, unless somebody did within the last second.
  std::shared_ptr<const Loaded> Current();

  bool asks_for_certificates() const { return !server_ || !files_.ca.empty(); }
  bool server() const { return server_; }
  const std::string& peer_name() const { return peer_name_; }
  // Counts the changes of the files that were not taken.
  uint64_t broken_reloads() const;

 private:
  TlsContext(bool server, TlsFiles files, std::string peer_name, const Clock& clock);
  static absl::StatusOr<std::shared_ptr<TlsContext>> Opened(std::shared_ptr<TlsContext> context);
  absl::StatusOr<std::shared_ptr<Loaded>> Load() const;
  std::string StampNow() const;

  const bool server_;
  const TlsFiles files_;
  const std::string peer_name_;
  const Clock& clock_;
  mutable Mutex mu_;
  std::shared_ptr<const Loaded> loaded_ KVSTOW_GUARDED_BY(mu_);
  std::string stamp_ KVSTOW_GUARDED_BY(mu_);  // of the files that were tried last
  Time look_after_ KVSTOW_GUARDED_BY(mu_);
  uint64_t broken_reloads_ KVSTOW_GUARDED_BY(mu_) = 0;
};

// Returns what OpenSSL's error queue of this thread says, and empties it. "" = nothing.
std::string TlsError();

}  // namespace kvstow

#endif  // KVSTOW_PROTO_WIRE_TLS_CONTEXT_H_
