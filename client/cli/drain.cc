// kvstow drain: a server takes no more work, and finishes what it has.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/cli/admin.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"
#include "kvstow/v1/admin.pb.h"

namespace kvstow::cli {
namespace {

constexpr double kFlushSeconds = 60;  // that --timeout leaves after the grace, at least

struct Flags {
  OutputFlags output;
  ServerFlags server;
  double grace_s = 10;
  bool resume = false;
};

// What a flush has done, which is nothing on a server without a disk tier.
std::string FlushedText(Client& client) {
  const auto status =
      CallServer<v1::StatusResponse>(client, "/kvstow.v1.Admin/Status", v1::StatusRequest());
  if (!status.ok()) return "flushed\n";
  const bool disk = std::ranges::any_of(status->tiers(), [](const v1::TierUsage& tier) {
    return tier.tier() == "disk" && tier.budget_bytes() > 0;
  });
  return disk ? "everything is on disk\n"
              : "there is no disk: what is in memory goes with the server\n";
}

std::string TextOf(const v1::DrainResponse& left, Client& client) {
  if (!left.draining()) return "the server takes streams and puts again\n";
  std::string text =
      absl::StrCat("drained: ", left.ended_streams(), " streams were ended after the grace\n");
  absl::StrAppend(&text, left.flushed()
                             ? FlushedText(client)
                             : absl::StrCat("not all is on disk: ", left.flush_error(), "\n"));
  absl::StrAppend(&text, "left: ", left.put_streams() + left.get_streams(), " streams, ",
                  left.direct_connections(), " direct connections and ", left.local_sessions(),
                  " local sessions, which may still get pages\n",
                  "stop it with SIGTERM, or take it back with `kvstow drain --resume`\n");
  return text;
}

// The call lasts as long as the grace, and a flush follows.
int Run(Flags flags) {
  flags.server.timeout_s = std::max(flags.server.timeout_s, flags.grace_s + kFlushSeconds);
  const auto client = Connect(flags.server);
  v1::DrainRequest request;
  request.set_grace_ms(static_cast<uint64_t>(flags.grace_s * 1e3));
  request.set_resume(flags.resume);
  const auto left = CallServer<v1::DrainResponse>(*client, "/kvstow.v1.Admin/Drain", request);
  if (!left.ok()) return Fail(flags.output, left.status());
  Json json = {{"draining", left->draining()},
               {"ended_streams", left->ended_streams()},
               {"put_streams", left->put_streams()},
               {"get_streams", left->get_streams()},
               {"direct_connections", left->direct_connections()},
               {"local_sessions", left->local_sessions()},
               {"flushed", left->flushed()},
               {"flush_error", left->flush_error()}};
  Print(flags.output, json, TextOf(*left, *client));
  return left->draining() && !left->flushed() ? kFailed : kDone;
}

}  // namespace

void AddDrain(const Verb& app) {
  const Verb verb = app.Add("drain", "Stop taking streams and puts, finish and flush; or resume");
  const auto flags = std::make_shared<Flags>();
  AddOneServerFlags(verb, flags->server, /*timeout_s=*/600);
  AddOutputFlags(verb, flags->output);
  verb.Option("--grace", flags->grace_s,
              "seconds that streams have to finish; --timeout is a minute more, at least")
      .Within(0.0, 3600.0)
      .ShowDefault();
  verb.Switch("--resume", flags->resume, "take streams and puts again");
  verb.Footer(
      "Lookups, gets beside streams and the operator's calls are answered all the same.\n"
      "Examples:\n  kvstow drain --grace 30     # before maintenance; SIGTERM may follow\n"
      "  kvstow drain --resume");
  verb.Run([flags] { return Run(*flags); });
}

}  // namespace kvstow::cli
