// kvstow ping: is the server there?
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/cli/admin.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"
#include "kvstow/v1/admin.pb.h"

namespace kvstow::cli {
namespace {

constexpr absl::string_view kReady = "\x08\x01";
constexpr Duration kAskAgain = std::chrono::milliseconds(100);

struct Flags {
  OutputFlags output;
  ServerFlags server;
  double wait_s = 0;
};

// A HealthCheckRequest and a HealthCheckResponse: everybody may ask, without an identity.
absl::StatusOr<std::string> AskHealth(Client& client) {
  return client.Call("/grpc.health.v1.Health/Check", std::string("\x0a\x11") + "kvstow.v1.KvCache");
}

// Returns a client of a server that is ready, or, after `wait_s` seconds, of the one that there is.
std::unique_ptr<Client> WaitFor(const ServerFlags& flags, double wait_s) {
  const Time start = Clock::Real().Now();
  for (;;) {
    std::unique_ptr<Client> client = Connect(flags);
    if (SecondsSince(start) >= wait_s) return client;
    const auto health = AskHealth(*client);
    if (health.ok() && *health == kReady) return client;
    std::this_thread::sleep_for(kAskAgain);
  }
}

int Ping(const Flags& flags) {
  const auto client = WaitFor(flags.server, flags.wait_s);
  const Time start = Clock::Real().Now();
  const auto health = AskHealth(*client);
  if (!health.ok()) return Fail(flags.output, health.status());
  const double ms = SecondsSince(start) * 1e3;
  const bool ready = *health == kReady;
  // Not everybody may ask for the version.
  const auto status =
      CallServer<v1::StatusResponse>(*client, "/kvstow.v1.Admin/Status", v1::StatusRequest());
  const std::string version = status.ok() ? status->version() : "";
  const std::string server = client->serving().address;
  Print(flags.output,
        {{"server", server}, {"version", version}, {"ready", ready}, {"milliseconds", ms}},
        absl::StrCat(
            server, " runs kvstowd", version.empty() ? "" : " ", version,
            ready ? ", ready (" : ", not ready (", FormatFixed(ms, 1), " ms)\n",
            ready ? "" : "it drains or stops: `kvstow drain --resume` takes a drain back\n"));
  return ready ? kDone : kFailed;
}

}  // namespace

void AddPing(const Verb& app) {
  const Verb verb = app.Add("ping", "Is the server there?");
  const auto flags = std::make_shared<Flags>();
  AddServerFlags(verb, flags->server, /*timeout_s=*/5);
  verb.Option("--wait", flags->wait_s, "seconds to wait for a server that starts")
      .Within(0.0, 86400.0)
      .ShowDefault();
  AddOutputFlags(verb, flags->output);
  verb.Footer(
      "Examples:\n  kvstow ping\n  kvstow ping --wait 30   # in a script that has just started "
      "kvstowd\n"
      "  kvstow ping --server unix:/run/kvstow/kvstow.sock\n"
      "  kvstow ping --server unix:/run/kvstow/kvstow.sock,10.0.0.1:7380   # which one serves?");
  verb.Run([flags] { return Ping(*flags); });
}

}  // namespace kvstow::cli
