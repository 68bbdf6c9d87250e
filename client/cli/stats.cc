// kvstow stats: what the server holds and has done.
#include <iostream>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "client/cli/admin.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"
#include "client/cli/usage.h"
#include "kvstow/v1/kv_cache.pb.h"

namespace kvstow::cli {
namespace {

struct Flags {
  OutputFlags output;
  ServerFlags server;
  std::string space;
  bool watch = false;
  double interval_s = 2;
};

Json ToJson(const v1::UsageResponse& usage, const std::map<std::string, uint64_t>& counters) {
  return {{"pages", usage.pages()},
          {"raw_bytes", usage.raw_bytes()},
          {"encoded_bytes", usage.encoded_bytes()},
          {"leases", usage.leases()},
          {"pinned_pages", usage.pinned_pages()},
          {"tiers", TiersJson(usage.tiers())},
          {"reuse",
           {{"references", usage.reuse().references()},
            {"distinct_pages", usage.reuse().distinct_pages()},
            {"infinite_hit_rate", usage.reuse().infinite_hit_rate()}}},
          {"counters", counters}};
}

std::string Text(const v1::UsageResponse& usage, const std::map<std::string, uint64_t>& counters) {
  std::string out = FormatFields(
      {{"pages", absl::StrCat(usage.pages(), ", ", usage.pinned_pages(), " of them pinned")},
       {"raw", FormatSize(usage.raw_bytes())},
       {"encoded", absl::StrCat(FormatSize(usage.encoded_bytes()), ", ",
                                FormatRatio(usage.raw_bytes(), usage.encoded_bytes()))},
       {"leases", absl::StrCat(usage.leases())}});
  absl::StrAppend(&out, "\n", TiersTable(usage.tiers()));
  if (const v1::Reuse& reuse = usage.reuse(); reuse.references() > 0) {
    absl::StrAppend(&out, "\nin the last hours ", reuse.references(), " pages were asked for, ",
                    FormatFixed(100 * reuse.infinite_hit_rate(), 1),
                    " % of them not for the first time (`kvstow plan --server`)\n");
  }
  if (counters.empty()) return out;
  absl::StrAppend(&out, "\nsince start\n");
  std::vector<std::pair<std::string, std::string>> fields;
  for (const auto& [name, value] : counters) fields.emplace_back("  " + name, absl::StrCat(value));
  return out + FormatFields(fields);
}

int Stats(const Flags& flags) {
  const auto client = Connect(flags.server);
  v1::UsageRequest request;
  request.set_space(flags.space);
  for (;;) {
    const auto usage = CallServer<v1::UsageResponse>(*client, "/kvstow.v1.KvCache/Usage", request);
    if (!usage.ok()) return Fail(flags.output, usage.status());
    const std::map<std::string, uint64_t> counters(usage->counters().begin(),
                                                   usage->counters().end());
    const bool clear = flags.watch && !flags.output.json();
    Print(flags.output, ToJson(*usage, counters),
          absl::StrCat(clear ? "\033[H\033[2J" : "", Text(*usage, counters)));
    if (!flags.watch) return kDone;
    std::this_thread::sleep_for(std::chrono::duration<double>(flags.interval_s));
  }
}

}  // namespace

void AddStats(CLI::App& app, int& exit_code) {
  CLI::App* const verb = app.add_subcommand(
      "stats", "What the server holds: by tier, in pages, encoded and raw bytes");
  const auto flags = std::make_shared<Flags>();
  AddServerFlags(*verb, flags->server);
  AddOutputFlags(*verb, flags->output);
  verb->add_option("--space", flags->space, "only this space; all when left out");
  verb->add_flag("--watch", flags->watch, "again and again, until interrupted");
  verb->add_option("--interval", flags->interval_s, "seconds between two looks with --watch")
      ->check(CLI::Range(0.05, 3600.0))
      ->capture_default_str();
  verb->footer(
      "Examples:\n  kvstow stats\n  kvstow stats --watch --interval 1\n"
      "  kvstow stats --space smollm2 --format json");
  verb->callback([flags, &exit_code] { exit_code = Stats(*flags); });
}

}  // namespace kvstow::cli
