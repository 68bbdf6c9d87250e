// HTTP/1.x as the side port speaks it: the head of a GET in, an answer out.
//
// Pure functions; thread-safe. The input is hostile and not trusted: the reader refuses everything
// that is not a plain GET or HEAD without a body.
#ifndef KVSTOW_SERVICE_OPS_HTTP_MESSAGE_H_
#define KVSTOW_SERVICE_OPS_HTTP_MESSAGE_H_

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace kvstow {

inline constexpr size_t kMaxHttpHeadBytes = 8 << 10;

struct HttpRequest {
  int refused = 0;         // the status to refuse it with; 0 = it may be answered
  bool head_only = false;  // HEAD: the answer goes without its body
  std::string path;        // without the query
};

// Reads the request in `bytes`, the beginning of a connection. Returns none while the head is
// incomplete and may become complete. Refuses with 400 what is no HTTP/1.x, with 405 other methods,
// with 413 a request that announces a body (of any length but 0), with 431 a head above
// kMaxHttpHeadBytes.
std::optional<HttpRequest> ReadHttpRequest(absl::string_view bytes);

// Returns a whole answer, after which the connection closes. Its headers tell browsers to trust
// nothing in it beyond the files of this port.
std::string WriteHttpAnswer(int status, absl::string_view content_type, absl::string_view body,
                            bool head_only);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_HTTP_MESSAGE_H_
