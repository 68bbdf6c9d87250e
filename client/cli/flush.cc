// kvstow flush: what is only in memory goes to disk.
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

int Flush(const Flags& flags) {
  const auto client = Connect(flags.server);
  const Time start = Clock::Real().Now();
  const auto response =
      CallServer<v1::FlushResponse>(*client, "/kvstow.v1.Admin/Flush", v1::FlushRequest());
  if (!response.ok()) return Fail(flags.output, response.status());
  const double seconds = SecondsSince(start);
  Print(flags.output, {{"flushed", true}, {"seconds", seconds}},
        "flushed in " + FormatFixed(seconds, 2) + " s\n");
  return kDone;
}

}  // namespace

void AddFlush(const Verb& app) {
  const Verb verb = app.Add("flush", "Write what is only in memory to disk");
  const auto flags = std::make_shared<Flags>();
  AddOneServerFlags(verb, flags->server, /*timeout_s=*/600);
  AddOutputFlags(verb, flags->output);
  verb.Footer("Examples:\n  kvstow flush");
  verb.Run([flags] { return Flush(*flags); });
}

}  // namespace kvstow::cli
