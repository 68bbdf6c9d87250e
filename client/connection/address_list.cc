#include "client/connection/address_list.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/digest.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

constexpr absl::string_view kByName = "dns:///";

bool IsUnix(absl::string_view address) { return absl::StartsWith(address, "unix:"); }

absl::StatusOr<ListedAddress> ParseOne(absl::string_view part, absl::string_view list) {
  if (part.empty() && !absl::StrContains(list, ',')) {
    return absl::InvalidArgumentError(
        "address: it is empty: write HOST:PORT, unix:PATH or dns:///NAME:PORT");
  }
  if (part.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "address: '", list, "' has an empty part: put one comma between two addresses"));
  }
  ListedAddress out{.address = std::string(part)};
  out.by_name = absl::ConsumePrefix(&part, kByName);
  if (out.by_name) out.address = std::string(part);
  const bool host_port = absl::StrContains(part, ":") && !absl::StrContains(part, "://");
  if ((out.by_name && (IsUnix(part) || HostOf(part).empty())) || (!IsUnix(part) && !host_port)) {
    return absl::InvalidArgumentError(
        absl::StrCat("address: '", out.by_name ? kByName : "", part,
                     "' is not HOST:PORT, unix:PATH or dns:///NAME:PORT"));
  }
  return out;
}

// Returns the text of an interface's address, or "".
std::string TextOf(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address != nullptr && address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
              sizeof(text));
  } else if (address != nullptr && address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
              sizeof(text));
  }
  return text;
}

bool IsNumber(absl::string_view host) {
  return std::ranges::all_of(
      host, [](char c) { return c == '.' || absl::ascii_isdigit(static_cast<unsigned char>(c)); });
}

bool IsLoopback(absl::string_view host) {
  return (absl::StartsWith(host, "127.") && IsNumber(host)) || host == "localhost" || host == "::1";
}

}  // namespace

absl::StatusOr<std::vector<ListedAddress>> ParseAddresses(absl::string_view list) {
  std::vector<ListedAddress> out;
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    KVSTOW_ASSIGN_OR_RETURN(ListedAddress one, ParseOne(absl::StripAsciiWhitespace(part), list));
    if (std::ranges::find(out, one) == out.end()) out.push_back(std::move(one));
  }
  return out;
}

std::vector<ListedAddress> ListedIn(const std::string& list) {
  auto listed = ParseAddresses(list);
  if (listed.ok()) return *std::move(listed);
  return {{.address = list}};
}

OwnHost OwnHost::Read() {
  OwnHost own;
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) == 0) own.name = name;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return own;
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (std::string text = TextOf(at->ifa_addr); !text.empty()) {
      own.addresses.push_back(std::move(text));
    }
  }
  freeifaddrs(all);
  return own;
}

bool OwnHost::Has(absl::string_view address) const {
  if (IsUnix(address)) return true;
  const std::string host = HostOf(address);
  return IsLoopback(host) || (!name.empty() && host == name) ||
         std::ranges::find(addresses, host) != addresses.end();
}

std::vector<std::string> ByPreference(std::vector<std::string> addresses, const OwnHost& own) {
  std::ranges::stable_sort(addresses, {}, [&](const std::string& address) {
    if (IsUnix(address)) return 0;
    return own.Has(address) ? 1 : 2;
  });
  return addresses;
}

std::vector<std::string> SpreadBy(absl::string_view host, std::vector<std::string> addresses) {
  std::ranges::sort(addresses, {}, [&](const std::string& address) {
    const std::string text = absl::StrCat(host, "\n", address);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(text.data());
    return Xxh3_128(std::span(bytes, text.size())).bytes;
  });
  return addresses;
}

absl::StatusOr<std::vector<std::string>> Resolve(absl::string_view host_port) {
  const std::string host = HostOf(host_port);
  const absl::string_view port = host_port.substr(host_port.rfind(':') + 1);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (failed != 0) {
    return absl::UnavailableError(
        absl::StrCat("the name ", host, " has no address: ", gai_strerror(failed)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, freeaddrinfo);
  std::vector<std::string> out;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const std::string text = TextOf(at->ai_addr);
    if (text.empty()) continue;
    out.push_back(at->ai_family == AF_INET6 ? absl::StrCat("[", text, "]:", port)
                                            : absl::StrCat(text, ":", port));
  }
  std::ranges::sort(out);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::string HostOf(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (IsUnix(address) || colon == absl::string_view::npos) return "";
  absl::string_view host = address.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return std::string(host);
}

bool StaysHere(absl::string_view address) { return IsUnix(address) || IsLoopback(HostOf(address)); }

}  // namespace kvstow
