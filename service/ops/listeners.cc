#include "service/ops/listeners.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "service/ops/address.h"

namespace kvstow {
namespace {

// A listener that other machines may reach.
struct OpenListener {
  std::string where;  // setting and address
  const char* harm;   // that strangers may do
  bool can_have_tls;
  bool knows_callers;  // where `access` gives them identities
};

std::vector<OpenListener> OpenListeners(const Config& config) {
  const auto reached = [](const std::string& text) {
    const auto address = ParseAddress(text);  // not of `off`
    return address.ok() && !address->loopback();
  };
  const bool follows = config.direct_listen == "auto";
  const std::string& direct = follows ? config.listen : config.direct_listen;
  std::vector<OpenListener> out;
  const auto add = [&](absl::string_view name, absl::string_view address, const char* harm,
                       bool can_have_tls, bool knows_callers) {
    out.push_back({absl::StrCat(name, ": ", address), harm, can_have_tls, knows_callers});
  };
  const char* const pages = "read and write every space";
  if (reached(config.listen)) add("listen", config.listen, pages, true, true);
  if (reached(config.admin_listen)) {
    add("admin-listen", config.admin_listen, "change budgets, evict and read everything", true,
        true);
  }
  if (reached(direct)) {
    add("direct-listen", follows ? absl::StrCat("auto, a port on the host of ", direct) : direct,
        pages, true, true);
  }
  if (reached(config.http_listen)) {
    add("http-listen", config.http_listen, "read metrics and settings", true, false);
  }
  for (const auto& [name, address] :
       {std::pair("kv-events-listen", config.kv_events_listen),
        std::pair("kv-events-replay-listen", config.kv_events_replay_listen)}) {
    if (reached(address)) {
      add(name, address, "read keys of pages and names of models", false, false);
    }
  }
  return out;
}

}  // namespace

absl::Status CheckListeners(const Config& config) {
  if (config.insecure) return absl::OkStatus();
  std::vector<std::string> refused;
  bool all_can = true;
  for (const OpenListener& listener : OpenListeners(config)) {
    if (config.tls() && listener.can_have_tls) continue;
    refused.push_back(listener.where);
    all_can = all_can && listener.can_have_tls;
  }
  if (refused.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      absl::StrJoin(refused, "; "), ": others can reach this and it has no TLS: ",
      all_can ? "give --tls-cert and --tls-key, " : "KV events go by ZeroMQ, which has none: ",
      "listen on 127.0.0.1, or say --insecure on a trusted network"));
}

std::vector<std::string> WarningsOfListeners(const Config& config) {
  std::vector<std::string> out;
  for (const OpenListener& listener : OpenListeners(config)) {
    const bool tls = config.tls() && listener.can_have_tls;
    const bool knows = (tls && !config.tls_client_ca.empty()) ||
                       (!config.access.empty() && listener.knows_callers);
    if (tls && knows) continue;
    const std::string harm =
        !tls && knows
            ? ": whoever reads along has the tokens and pages of all tenants"
            : absl::StrCat(tls ? " asks" : " and asks",
                           " nobody who they are: whoever reaches it can ", listener.harm);
    out.push_back(absl::StrCat(listener.where, tls ? "" : " has no TLS", harm,
                               "; keep it on a trusted network"));
  }
  return out;
}

}  // namespace kvstow
