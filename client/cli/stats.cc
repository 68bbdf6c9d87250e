// kvstow stats: what the server holds, how finely, and what it has done.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "client/cli/admin.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"
#include "client/cli/usage.h"
#include "client/cli/watch.h"
#include "kvstow/v1/admin.pb.h"
#include "kvstow/v1/kv_cache.pb.h"

namespace kvstow::cli {
namespace {

struct Flags {
  OutputFlags output;
  ServerFlags server;
  std::string space, tenant;
  bool watch = false;
  double interval_s = 2;
};

using Counters = std::map<std::string, uint64_t>;

struct Held {
  v1::UsageResponse usage;
  v1::AgesResponse ages;
};

absl::StatusOr<Held> Ask(Client& client, const std::string& space, const std::string& tenant) {
  Held held;
  v1::UsageRequest usage;
  usage.set_space(space);
  usage.set_tenant(tenant);
  KVSTOW_ASSIGN_OR_RETURN(held.usage,
                          CallServer<v1::UsageResponse>(client, "/kvstow.v1.KvCache/Usage", usage));
  v1::AgesRequest ages;
  ages.set_space(space);
  ages.set_tenant(tenant);
  auto told = CallServer<v1::AgesResponse>(client, "/kvstow.v1.Admin/Ages", ages);
  if (told.ok()) {
    held.ages = *std::move(told);
  } else if (!absl::IsPermissionDenied(told.status()) && !absl::IsUnimplemented(told.status())) {
    return told.status();  // but only an operator may ask for ages, where operators' calls are on
  }
  return held;
}

// What was fitted to the spaces of recipe `auto`, by their names.
std::map<std::string, v1::FittedForm> FittedOf(const v1::UsageResponse& usage,
                                               const std::string& space) {
  std::map<std::string, v1::FittedForm> out;
  if (usage.has_fitted()) out[space] = usage.fitted();
  for (const v1::SpaceUsage& row : usage.spaces()) {
    if (row.has_fitted()) out[SpaceLabel(row)] = row.fitted();
  }
  return out;
}

// The answer for one space, or for a tenant, tells no budgets: those are the server's.
bool HasBudgets(const v1::UsageResponse& usage) {
  return std::ranges::any_of(usage.tiers(),
                             [](const v1::TierUsage& tier) { return tier.budget_bytes() > 0; });
}

Json ToJson(const v1::UsageResponse& usage, const Counters& counters) {
  return {{"pages", usage.pages()},
          {"raw_bytes", usage.raw_bytes()},
          {"encoded_bytes", usage.encoded_bytes()},
          {"leases", usage.leases()},
          {"pinned_pages", usage.pinned_pages()},
          {"tiers", TiersJson(usage.tiers(), HasBudgets(usage))},
          {"reuse",
           {{"references", usage.reuse().references()},
            {"distinct_pages", usage.reuse().distinct_pages()},
            {"infinite_hit_rate", usage.reuse().infinite_hit_rate()}}},
          {"counters", counters}};
}

std::string Text(const Held& held, const std::string& space, const Counters& counters) {
  const v1::UsageResponse& usage = held.usage;
  std::string out = FormatFields(
      {{"pages", absl::StrCat(usage.pages(), ", ", usage.pinned_pages(), " of them pinned")},
       {"raw", FormatSize(usage.raw_bytes())},
       {"encoded", absl::StrCat(FormatSize(usage.encoded_bytes()), ", ",
                                FormatRatio(usage.raw_bytes(), usage.encoded_bytes()))},
       {"leases", absl::StrCat(usage.leases())}});
  absl::StrAppend(&out, "\n", TiersTable(usage.tiers(), HasBudgets(usage)));
  if (!held.ages.rows().empty()) absl::StrAppend(&out, "\n", AgesTable(held.ages));
  for (const auto& [name, form] : FittedOf(usage, space)) {
    absl::StrAppend(&out, "\nauto space ", name, "\n", FittedText(form));
  }
  if (const v1::Reuse& reuse = usage.reuse(); reuse.references() > 0) {
    absl::StrAppend(&out, "\nin the last hours ", reuse.references(), " pages were asked for, ",
                    FormatFixed(100 * reuse.infinite_hit_rate(), 1),
                    " % of them not for the first time (`kvstow plan --server`)\n");
  }
  if (counters.empty()) return out;
  absl::StrAppend(&out, "\nthe whole server since its start\n");
  std::vector<std::pair<std::string, std::string>> fields;
  for (const auto& [name, value] : counters) fields.emplace_back("  " + name, absl::StrCat(value));
  return out + FormatFields(fields);
}

int Stats(const Flags& flags) {
  const auto client = Connect(flags.server);
  return Watch(flags.output, flags.watch, flags.interval_s, [&]() -> absl::StatusOr<Look> {
    KVSTOW_ASSIGN_OR_RETURN(const Held held, Ask(*client, flags.space, flags.tenant));
    const Counters counters(held.usage.counters().begin(), held.usage.counters().end());
    Json json = ToJson(held.usage, counters);
    json["ages"] = AgesJson(held.ages);
    json["fitted"] = Json::object();
    for (const auto& [name, form] : FittedOf(held.usage, flags.space)) {
      json["fitted"][name] = FittedJson(form);
    }
    return Look{std::move(json), Text(held, flags.space, counters)};
  });
}

}  // namespace

void AddStats(const Verb& app) {
  const Verb verb = app.Add("stats",
                            "What the server holds: by tier, in pages, encoded and "
                            "raw bytes; and the bits of its tokens, "
                            "by tier and by how long nobody has used them");
  const auto flags = std::make_shared<Flags>();
  AddServerFlags(verb, flags->server);
  AddOutputFlags(verb, flags->output);
  const Flag space = verb.Option("--space", flags->space,
                                 "what this space holds; counters are the whole server's all the "
                                 "same. All spaces when left out");
  verb.Option("--tenant", flags->tenant, "whose space it is; no tenant's when left out")
      .Needs(space);
  verb.Switch("--watch", flags->watch, "again and again, until interrupted");
  AddIntervalFlag(verb, flags->interval_s, "seconds between two looks with --watch");
  verb.Footer(
      "Examples:\n  kvstow stats\n  kvstow stats --watch --interval 1\n"
      "  kvstow stats --space smollm2 --format json");
  verb.Run([flags] { return Stats(*flags); });
}

}  // namespace kvstow::cli
