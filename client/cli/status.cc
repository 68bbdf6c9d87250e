// kvstow status: what the server is.
#include "absl/strings/str_cat.h"
#include "client/cli/admin.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"
#include "client/cli/usage.h"
#include "kvstow/v1/admin.pb.h"

namespace kvstow::cli {
namespace {

struct Flags {
  OutputFlags output;
  ServerFlags server;
};

using StringMap = google::protobuf::Map<std::string, std::string>;

// In the order of the names: a protobuf map has none.
std::map<std::string, std::string> Sorted(const StringMap& map) { return {map.begin(), map.end()}; }

std::string Text(const v1::StatusResponse& status) {
  std::string out = FormatFields(
      {{"version", status.version()},
       {"state", status.ready() ? "ready" : "not ready"},
       {"device", status.device()},
       {"uptime", FormatFixed(static_cast<double>(status.uptime_ms()) / 1e3, 1) + " s"},
       {"recovered",
        absl::StrCat(status.recovered_pages(), " pages, ready in ", status.ready_ms(), " ms")}});
  absl::StrAppend(&out, "\n", TiersTable(status.tiers()));
  for (const auto& [title, map] : {std::pair("configuration", Sorted(status.config())),
                                   std::pair("libraries", Sorted(status.libraries()))}) {
    if (map.empty()) continue;
    absl::StrAppend(&out, "\n", title, "\n");
    std::vector<std::pair<std::string, std::string>> fields;
    for (const auto& [name, value] : map) fields.emplace_back("  " + name, value);
    absl::StrAppend(&out, FormatFields(fields));
  }
  return out;
}

int Status(const Flags& flags) {
  const auto client = Connect(flags.server);
  const auto status =
      CallServer<v1::StatusResponse>(*client, "/kvstow.v1.Admin/Status", v1::StatusRequest());
  if (!status.ok()) return Fail(flags.output, status.status());
  Print(flags.output,
        {{"server", client->serving().address},
         {"version", status->version()},
         {"ready", status->ready()},
         {"device", status->device()},
         {"uptime_ms", status->uptime_ms()},
         {"recovered_pages", status->recovered_pages()},
         {"ready_ms", status->ready_ms()},
         {"tiers", TiersJson(status->tiers())},
         {"config", Sorted(status->config())},
         {"libraries", Sorted(status->libraries())}},
        Text(*status));
  return kDone;
}

}  // namespace

void AddStatus(const Verb& app) {
  const Verb verb = app.Add("status", "What the server is: version, device, tiers, configuration");
  const auto flags = std::make_shared<Flags>();
  AddServerFlags(verb, flags->server);
  AddOutputFlags(verb, flags->output);
  verb.Footer("Examples:\n  kvstow status\n  kvstow status --format json | jq .tiers");
  verb.Run([flags] { return Status(*flags); });
}

}  // namespace kvstow::cli
