// The HTTP side port: /metrics for Prometheus, /healthz and /readyz for probes, and a page for
// people with its files (page_files.h).
//
// Read-only. One thread serves all connections and never waits for one of them. Another
// makes the pages that may take time, /metrics and the page for people, so probes get answers
// meanwhile. A connection has one request: a GET or HEAD without a body, of at most 8 KiB. The
// server refuses anything else, and closes its connection, as soon as it knows that. There are at
// most 64 connections; the oldest gives way to the next. Each has 5 seconds to ask and 5 to take
// its answer. So a client that reaches the port can neither make it keep memory nor keep probes
// from it: at worst 64 connections at once push out a probe between its connection and its request,
// and it asks again (docs/decisions/0060-an-http-port-of-our-own.md).
//
// Serves from Start until it is destroyed.
#ifndef KVSTOW_SERVICE_OPS_HTTP_H_
#define KVSTOW_SERVICE_OPS_HTTP_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "service/ops/address.h"

namespace kvstow {

class TlsContext;

// The content of the pages. Called for each request, one call of all but `ready` and
// `handshake_failed` at a time.
struct HttpPages {
  std::function<std::string()> metrics;  // Prometheus text
  std::function<bool()> ready;           // /readyz: 200 or 503; must not wait
  std::function<std::string()> status;   // /: HTML
  std::function<std::string()> parts;    // /parts: the part of it that page.js refreshes
  // Told of a TLS handshake that failed, other than by hanging up; must not wait.
  std::function<void()> handshake_failed = [] {};
};

class HttpServer {
 public:
  virtual ~HttpServer() = default;
  // Returns the bound address; the chosen port replaces port 0.
  virtual std::string address() const = 0;

  // Fails with UNAVAILABLE when the address cannot be bound. `tls` null: plain HTTP.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const Address& address, HttpPages pages, std::shared_ptr<TlsContext> tls = nullptr);
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_HTTP_H_
