// The HTTP side port: /metrics for Prometheus, /healthz and /readyz for probes, and a page for
// people.
//
// Read-only; no TLS. One thread serves all connections and never waits for one of them; another
// makes the pages that may take time, /metrics and the page for people, so that probes are answered
// meanwhile. A connection has one request: a GET without a body, of at most 8 KiB; anything else is
// refused, and its connection closed, as soon as that is known. There are at most 64 connections,
// of which the oldest gives way to the next, and each has 5 seconds to ask and 5 to take its
// answer. So whoever reaches the port can neither make it keep memory nor keep probes from it
// (docs/decisions/0060-an-http-port-of-our-own.md).
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

// What the pages show; called for each request, one call of `metrics` or `status` at a time.
struct HttpPages {
  std::function<std::string()> metrics;  // Prometheus text
  std::function<bool()> ready;           // /readyz: 200 or 503; must not wait
  std::function<std::string()> status;   // HTML
};

class HttpServer {
 public:
  virtual ~HttpServer() = default;
  // As it is bound: port 0 was replaced by the one that was picked.
  virtual std::string address() const = 0;

  // UNAVAILABLE when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Address& address, HttpPages pages);
};

// `text` with &, <, > and quotes written out.
std::string EscapeHtml(absl::string_view text);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_HTTP_H_
