// kvstow evict: make room in a tier.
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
  std::string to = "0";
};

int Evict(const Flags& flags) {
  const absl::StatusOr<uint64_t> to = ParseSize(flags.to);
  if (!to.ok()) {
    Fail(flags.output, to.status());
    return kWrongUse;
  }
  const auto client = Connect(flags.server);
  v1::EvictRequest request;
  request.set_tier(flags.tier);
  request.set_to_bytes(*to);
  const auto response = CallServer<v1::EvictResponse>(*client, "/kvstow.v1.Admin/Evict", request);
  if (!response.ok()) return Fail(flags.output, response.status());
  google::protobuf::RepeatedPtrField<v1::TierUsage> tiers;
  *tiers.Add() = response->usage();
  Print(flags.output, TierJson(response->usage()), TiersTable(tiers));
  return kDone;
}

}  // namespace

void AddEvict(CLI::App& app, int& exit_code) {
  CLI::App* const verb =
      app.add_subcommand("evict", "Move or drop what a tier holds until it fits a size");
  const auto flags = std::make_shared<Flags>();
  AddServerFlags(*verb, flags->server, /*timeout_s=*/600);
  AddOutputFlags(*verb, flags->output);
  verb->add_option("--tier", flags->tier, "tier to make room in")
      ->required()
      ->check(CLI::IsMember({"gpu", "host", "disk"}));
  verb->add_option("--to", flags->to,
                   "what it may hold afterwards, for example 64MiB; 0 empties it")
      ->capture_default_str();
  verb->footer(
      "Examples:\n  kvstow evict --tier host            # everything to the next tier\n"
      "  kvstow evict --tier disk --to 10GiB");
  verb->callback([flags, &exit_code] { exit_code = Evict(*flags); });
}

}  // namespace kvstow::cli
