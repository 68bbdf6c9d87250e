#include "service/ops/listeners.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "service/ops/address.h"

namespace kvstow {

std::vector<std::string> WarningsOfListeners(const Config& config) {
  const auto reached = [](const std::string& text) {
    const auto address = ParseAddress(text);  // not of `off`
    return address.ok() && !address->loopback();
  };
  const bool follows = config.direct_listen == "auto";
  const std::string& direct = follows ? config.listen : config.direct_listen;
  std::vector<std::string> out;
  // Where callers have identities, these two serve those alone; what they say can be read still.
  const auto warn_pages = [&](absl::string_view name, absl::string_view address) {
    out.push_back(absl::StrCat(
        name, ": ", address, " has no TLS",
        config.access.empty() ? " and asks nobody who they are: whoever reaches it can read and "
                                "write every space; keep it on a trusted network"
                              : ": whoever reads along has the tokens and pages of all tenants; "
                                "keep it on a trusted network"));
  };
  const auto warn = [&](absl::string_view name, absl::string_view address, absl::string_view what) {
    out.push_back(absl::StrCat(name, ": ", address,
                               " has no TLS and asks nobody who they are: whoever reaches it can ",
                               what, "; keep it on a trusted network"));
  };
  if (reached(config.listen)) warn_pages("listen", config.listen);
  if (reached(direct)) {
    warn_pages("direct-listen",
               follows ? absl::StrCat("auto, a port on the host of ", direct) : direct);
  }
  if (reached(config.http_listen)) {
    warn("http-listen", config.http_listen, "read metrics and settings");
  }
  for (const auto& [name, address] :
       {std::pair("kv-events-listen", config.kv_events_listen),
        std::pair("kv-events-replay-listen", config.kv_events_replay_listen)}) {
    if (reached(address)) warn(name, address, "read keys of pages and names of models");
  }
  return out;
}

}  // namespace kvstow
