// kvstow evict and budget: make room in a tier, now or from now on.
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "client/cli/admin.h"
#include "client/cli/cli.h"
#include "client/cli/usage.h"
#include "kvstow/v1/admin.pb.h"

namespace kvstow::cli {
namespace {

struct Flags {
  OutputFlags output;
  ServerFlags server;
  std::string tier;
  std::string bytes = "0";
};

// Asks for the tier and the bytes, and shows what the tier holds afterwards.
template <typename Request, typename Response>
int Call(const Flags& flags, void (Request::*set_bytes)(uint64_t), const char* method) {
  const absl::StatusOr<uint64_t> bytes = ParseSize(flags.bytes);
  if (!bytes.ok()) {
    Fail(flags.output, bytes.status());
    return kWrongUse;
  }
  const auto client = Connect(flags.server);
  Request request;
  request.set_tier(flags.tier);
  (request.*set_bytes)(*bytes);
  const auto response = CallServer<Response>(*client, method, request);
  if (!response.ok()) return Fail(flags.output, response.status());
  google::protobuf::RepeatedPtrField<v1::TierUsage> tiers;
  *tiers.Add() = response->usage();
  Print(flags.output, TierJson(response->usage()), TiersTable(tiers));
  return kDone;
}

Verb AddVerb(const Verb& app, const char* name, const char* what, const char* tier, Flags& flags) {
  const Verb verb = app.Add(name, what);
  AddOneServerFlags(verb, flags.server, /*timeout_s=*/600);
  AddOutputFlags(verb, flags.output);
  verb.Option("--tier", flags.tier, tier).Required().OneOf({"gpu", "host", "disk"});
  return verb;
}

}  // namespace

void AddEvict(const Verb& app) {
  const auto flags = std::make_shared<Flags>();
  const Verb verb = AddVerb(app, "evict", "Move or drop what a tier holds until it fits a size",
                            "tier to make room in", *flags);
  verb.Option("--to", flags->bytes, "what it may hold afterwards, for example 64MiB; 0 empties it")
      .ShowDefault();
  verb.Footer(
      "Examples:\n  kvstow evict --tier host            # everything to the next tier\n"
      "  kvstow evict --tier disk --to 10GiB");
  verb.Run([flags] {
    return Call<v1::EvictRequest, v1::EvictResponse>(*flags, &v1::EvictRequest::set_to_bytes,
                                                     "/kvstow.v1.Admin/Evict");
  });
}

void AddBudget(const Verb& app) {
  const auto flags = std::make_shared<Flags>();
  const Verb verb =
      AddVerb(app, "budget", "Change what a tier may hold, until the server's next start",
              "tier to change", *flags);
  verb.Option("SIZE", flags->bytes, "its budget, for example 64GiB; 0 empties it").Required();
  verb.Footer(
      "Examples:\n  kvstow budget --tier host 96GiB\n"
      "  kvstow budget --tier disk 500GB      # what is over it goes at once");
  verb.Run([flags] {
    return Call<v1::SetBudgetRequest, v1::SetBudgetResponse>(
        *flags, &v1::SetBudgetRequest::set_bytes, "/kvstow.v1.Admin/SetBudget");
  });
}

}  // namespace kvstow::cli
