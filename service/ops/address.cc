#include "service/ops/address.h"

#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kvstow {
namespace {

absl::Status Refuse(absl::string_view value, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("'", value, "' is not ", expected));
}

}  // namespace

bool Address::loopback() const {
  return !path.empty() || host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  Address address;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    address.path = std::string(rest);
    if (rest.empty() || rest.size() > 100) return Refuse(text, "unix:PATH with 1 to 100 bytes");
    return address;
  }
  const size_t colon = rest.rfind(':');
  uint32_t port = 0;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(rest.substr(colon + 1), &port) || port > 65535) {
    return Refuse(text, "an address: write HOST:PORT or unix:PATH, as 127.0.0.1:7380");
  }
  absl::string_view host = rest.substr(0, colon);
  const bool brackets = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  if (!brackets && absl::StrContains(host, ':')) {
    return Refuse(text, "an address: put an IPv6 host in brackets, as [::1]:7380");
  }
  address.host = std::string(host);
  address.port = static_cast<int>(port);
  return address;
}

}  // namespace kvstow
