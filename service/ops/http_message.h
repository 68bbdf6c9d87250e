// HTTP/1.x as the side port speaks it: the head of a GET in, an answer out.
//
// Pure functions; thread-safe. What comes is hostile: nothing is believed of it, and what is not a
// plain GET or HEAD without a body is refused.
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

// What `bytes`, the beginning of a connection, ask for. None while the head is not whole and may
// become so. 400 for what is no HTTP/1.x, 405 for other methods, 413 for a request that announces a
// body of any length, 431 for a head above kMaxHttpHeadBytes.
std::optional<HttpRequest> ReadHttpRequest(absl::string_view bytes);

// A whole answer, after which the connection is closed.
std::string WriteHttpAnswer(int status, absl::string_view content_type, absl::string_view body,
                            bool head_only);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_OPS_HTTP_MESSAGE_H_
