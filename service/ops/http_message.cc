#include "service/ops/http_message.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace kvstow {
namespace {

constexpr absl::string_view kEnd = "\r\n\r\n";

// A browser runs, shows and asks nothing but what came from this port as a file of its own, lets no
// other page frame this one, and keeps nothing.
constexpr char kSafety[] =
    "\r\nContent-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
    "\r\nX-Content-Type-Options: nosniff"
    "\r\nReferrer-Policy: no-referrer"
    "\r\nCache-Control: no-store";

const char* ReasonOf(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Content Too Large";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Bad Request";
  }
}

// Returns whether a header line announces a body: one with a length other than 0, or one that ends
// with the connection.
bool AnnouncesBody(absl::string_view line) {
  const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
  if (parts.size() < 2) return false;
  const absl::string_view name = absl::StripAsciiWhitespace(parts[0]);
  if (absl::EqualsIgnoreCase(name, "transfer-encoding")) return true;
  return absl::EqualsIgnoreCase(name, "content-length") &&
         absl::StripAsciiWhitespace(parts[1]) != "0";
}

}  // namespace

std::optional<HttpRequest> ReadHttpRequest(absl::string_view bytes) {
  HttpRequest request;
  const size_t end = bytes.find(kEnd);
  if (end == absl::string_view::npos || end + kEnd.size() > kMaxHttpHeadBytes) {
    if (bytes.size() < kMaxHttpHeadBytes) return std::nullopt;
    request.refused = 431;
    return request;
  }
  const std::vector<absl::string_view> lines = absl::StrSplit(bytes.substr(0, end), "\r\n");
  const std::vector<absl::string_view> words = absl::StrSplit(lines[0], ' ');
  if (words.size() != 3 || !absl::StartsWith(words[1], "/") ||
      (words[2] != "HTTP/1.1" && words[2] != "HTTP/1.0")) {
    request.refused = 400;
    return request;
  }
  for (const absl::string_view line : lines) {
    if (AnnouncesBody(line)) request.refused = 413;
  }
  if (words[0] != "GET" && words[0] != "HEAD" && request.refused == 0) request.refused = 405;
  request.head_only = words[0] == "HEAD";
  request.path = std::string(words[1].substr(0, words[1].find('?')));
  return request;
}

std::string WriteHttpAnswer(int status, absl::string_view content_type, absl::string_view body,
                            bool head_only) {
  return absl::StrCat("HTTP/1.1 ", status, " ", ReasonOf(status),
                      "\r\nContent-Type: ", content_type, "\r\nContent-Length: ", body.size(),
                      kSafety, "\r\nConnection: close\r\n\r\n", head_only ? "" : body);
}

}  // namespace kvstow
