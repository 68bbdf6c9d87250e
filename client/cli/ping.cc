// kvstow ping: is the server there?
#include "absl/strings/str_cat.h"
#include "client/cli/admin.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"
#include "kvstow/v1/admin.pb.h"

namespace kvstow::cli {
namespace {

struct Flags {
  OutputFlags output;
  ServerFlags server;
};

int Ping(const Flags& flags) {
  const auto client = Connect(flags.server);
  const Time start = Clock::Real().Now();
  // A HealthCheckRequest and a HealthCheckResponse: everybody may ask, without an identity.
  const auto health =
      client->Call("/grpc.health.v1.Health/Check", std::string("\x0a\x11") + "kvstow.v1.KvCache");
  if (!health.ok()) return Fail(flags.output, health.status());
  const double ms = SecondsSince(start) * 1e3;
  const bool ready = *health == "\x08\x01";
  // Not everybody may ask for the version.
  const auto status =
      CallServer<v1::StatusResponse>(*client, "/kvstow.v1.Admin/Status", v1::StatusRequest());
  const std::string version = status.ok() ? status->version() : "";
  const std::string server = client->serving().address;
  Print(flags.output,
        {{"server", server}, {"version", version}, {"ready", ready}, {"milliseconds", ms}},
        absl::StrCat(server, " runs kvstowd", version.empty() ? "" : " ", version,
                     ready ? ", ready (" : ", not ready yet (", FormatFixed(ms, 1), " ms)\n"));
  return ready ? kDone : kFailed;
}

}  // namespace

void AddPing(const Verb& app) {
  const Verb verb = app.Add("ping", "Is the server there?");
  const auto flags = std::make_shared<Flags>();
  AddServerFlags(verb, flags->server, /*timeout_s=*/5);
  AddOutputFlags(verb, flags->output);
  verb.Footer(
      "Examples:\n  kvstow ping\n  kvstow ping --server unix:/run/kvstow.sock\n"
      "  kvstow ping --server unix:/run/kvstow.sock,10.0.0.1:7380   # which one serves?");
  verb.Run([flags] { return Ping(*flags); });
}

}  // namespace kvstow::cli
