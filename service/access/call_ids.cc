#include "service/access/call_ids.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace kvstow {
namespace {

constexpr size_t kMostRequestId = 64;
// VERSION-TRACE-SPAN-FLAGS
constexpr size_t kTraceAt = 3, kTraceDigits = 32, kSpanAt = 36, kSpanDigits = 16, kFlagsAt = 53,
                 kTraceparentBytes = 55;

bool IsRequestId(absl::string_view text) {
  return !text.empty() && text.size() <= kMostRequestId && std::ranges::all_of(text, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
}

bool IsHex(absl::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsId(absl::string_view text) {
  return IsHex(text) && std::ranges::any_of(text, [](char c) { return c != '0'; });
}

bool IsTraceparent(absl::string_view text) {
  if (text.size() < kTraceparentBytes) return false;
  const absl::string_view version = text.substr(0, 2);
  // A later version may have more behind the flags.
  const bool ends =
      text.size() == kTraceparentBytes || (version != "00" && text[kTraceparentBytes] == '-');
  return ends && IsHex(version) && version != "ff" && text[2] == '-' &&
         IsId(text.substr(kTraceAt, kTraceDigits)) && text[kSpanAt - 1] == '-' &&
         IsId(text.substr(kSpanAt, kSpanDigits)) && text[kFlagsAt - 1] == '-' &&
         IsHex(text.substr(kFlagsAt, 2));
}

}  // namespace

CallIds ReadCallIds(absl::string_view request_id, absl::string_view traceparent) {
  CallIds ids;
  if (IsRequestId(request_id)) ids.request = std::string(request_id);
  if (IsTraceparent(traceparent)) {
    ids.trace = std::string(traceparent.substr(kTraceAt, kTraceDigits));
    ids.span = std::string(traceparent.substr(kSpanAt, kSpanDigits));
  }
  return ids;
}

}  // namespace kvstow
