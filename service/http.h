// The HTTP side port: /metrics for Prometheus, /healthz and /readyz for probes, and a page for
// people.
//
// Serves on threads of its own from Start until it is destroyed. Read-only; no TLS.
#ifndef KVSTOW_SERVICE_HTTP_H_
#define KVSTOW_SERVICE_HTTP_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "service/config.h"

namespace kvstow {

// What the pages show; called for each request, on the HTTP threads.
struct HttpPages {
  std::function<std::string()> metrics;  // Prometheus text
  std::function<bool()> ready;           // /readyz: 200 or 503
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

#endif  // KVSTOW_SERVICE_HTTP_H_
