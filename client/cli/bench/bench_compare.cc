// kvstow bench compare: kvstow, Redis, memcached and a bare socket on this machine, in turns.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "client/cli/bench/child.h"
#include "client/cli/bench/compare_link.h"
#include "client/cli/bench/link.h"
#include "client/cli/bench/load.h"
#include "client/cli/bench/peer.h"
#include "client/cli/bench/rounds.h"
#include "client/cli/cli.h"
#include "client/cli/plan_flags.h"
#include "client/cli/text.h"

namespace kvstow::cli {
namespace {

struct Flags {
  OutputFlags output;
  std::vector<uint32_t> clients = {1, 4};
  std::vector<std::string> peers = {"kvstow", "redis", "memcached", "loop"};
  std::vector<std::string> encoded = {"int4"};
  std::vector<std::string> shared = {"raw", "int8"};
  uint32_t values = 16, batch = 1, rounds = 5;
  bool local = false;
  KvSpec spec;
  double link_bytes_per_s = 0;  // 0 = none
  uint32_t prefix_tokens = 32000;
};

std::vector<Contender> KvstowsOf(const Flags& flags, const PeerOptions& options) {
  std::vector<KvstowOptions> all = {{.recipe = "raw", .spec = flags.spec}};
  for (const std::string& recipe : flags.encoded) {
    if (!recipe.empty()) all.push_back({.recipe = recipe, .encoded = true, .spec = flags.spec});
  }
  const bool here = options.host == kLoopback && !options.local;
  if (here) all.push_back({.recipe = "raw", .streams = true, .spec = flags.spec});
  for (const std::string& recipe : flags.shared) {
    if (!here || recipe.empty()) continue;
    all.push_back({.recipe = recipe, .shared = true, .spec = flags.spec});
  }
  std::vector<Contender> out;
  for (const KvstowOptions& kvstow : all)
    out.push_back({kvstow.recipe, [=] { return StartKvstow(options, kvstow); }});
  if (all.back().shared) out.push_back({"raw", [=] { return StartGrpcSlots(options); }});
  return out;
}

std::vector<Contender> ContendersOf(const Flags& flags, PeerOptions options) {
  std::vector<Contender> out;
  const auto add = [&](auto start) {
    out.push_back({"raw", [=, options = options] { return start(options); }});
  };
  for (const bool local : {false, true}) {
    if (local && !flags.local) break;
    options.local = local;
    for (const std::string& name : flags.peers) {
      if (name == "kvstow") std::ranges::move(KvstowsOf(flags, options), std::back_inserter(out));
      if (name == "redis") add(StartRedis);
      if (name == "memcached") add(StartMemcached);
      if (name == "loop" && !local) add(StartLoop);
    }
  }
  return out;
}

// A row for each peer, in groups of an operation and a number of clients.
void Report(const Flags& flags, const std::vector<std::string>& names, const Rows& rows) {
  // The rates of rivals, and of slots by gRPC calls, in GB/s.
  std::map<std::pair<std::string, uint32_t>, double> best, slots;
  std::map<RowKey, Sample> summaries;
  for (const auto& [key, samples] : rows) {
    const Sample& row = summaries[key] = Summary(samples);
    double& most = best[{key.operation, key.clients}];
    if (IsRival(names[key.peer])) most = std::max(most, row.gbps);
    if (names[key.peer] == kGrpcSlots) slots[{key.operation, key.clients}] = row.gbps;
  }
  const size_t page = PageBytes(flags.spec, flags.spec.page_tokens);
  const double memcpy_gbps = MemcpyGbps(page);
  Json list = Json::array();
  std::vector<std::vector<std::string>> table;
  for (const auto& [key, row] : summaries) {
    const double rival = best[{key.operation, key.clients}];
    const double by_grpc = slots[{key.operation, key.clients}];
    const auto of = [&row = row](double other) {
      return other > 0 ? FormatFixed(row.gbps / other, 2) : std::string("-");
    };
    const double p50 = Percentile(row.us, 0.5), p99 = Percentile(row.us, 0.99);
    list.push_back({{"operation", key.operation},
                    {"clients", key.clients},
                    {"peer", names[key.peer]},
                    {"gbps", row.gbps},
                    {"of_best_rival", rival > 0 ? Json(row.gbps / rival) : Json()},
                    {"of_grpc_slots", by_grpc > 0 ? Json(row.gbps / by_grpc) : Json()},
                    {"of_memcpy", row.gbps / memcpy_gbps},
                    {"cpu_s_per_gb", row.cpu_s_per_gb},
                    {"p50_us", p50},
                    {"p99_us", p99}});
    table.push_back({key.operation, absl::StrCat(key.clients), names[key.peer],
                     FormatFixed(row.gbps, 2), of(rival), of(by_grpc), of(memcpy_gbps),
                     FormatFixed(row.cpu_s_per_gb, 2), FormatFixed(p50 / 1e3, 2),
                     FormatFixed(p99 / 1e3, 2)});
  }
  Print(
      flags.output,
      {{"value_bytes", page},
       {"batch", flags.batch},
       {"rounds", flags.rounds},
       {"memcpy_gbps", memcpy_gbps},
       {"rows", list}},
      absl::StrCat("values of ", FormatSize(page), ", ", flags.batch, " in a call; medians of ",
                   flags.rounds, " rounds in turns; memcpy ", FormatFixed(memcpy_gbps, 2),
                   " GB/s\nxRIVAL: of the best of Redis and memcached; xSLOTS: of shared memory by "
                   "gRPC calls; CPU: both ends, seconds a "
                   "GB; GB/s are of fp16 values, also of encoded pages\n",
                   FormatTable({"OPERATION", "CLIENTS", "STORE", "GB/s", "xRIVAL", "xSLOTS",
                                "xMEMCPY", "CPU s/GB", "P50 ms", "P99 ms"},
                               table)));
}

// Twice what is there at once: no store has to evict.
uint64_t BudgetOf(const Flags& flags) {
  const uint64_t clients = *std::ranges::max_element(flags.clients);
  uint64_t pages = clients * flags.values;
  if (flags.link_bytes_per_s > 0)
    pages = std::max<uint64_t>(pages, flags.prefix_tokens / flags.spec.page_tokens + 1);
  return 2 * PageBytes(flags.spec, flags.spec.page_tokens) * pages + (uint64_t{64} << 20);
}

absl::Status Compare(Flags flags) {
  if (flags.link_bytes_per_s > 0) {
    KVSTOW_ASSIGN_OR_RETURN(flags.spec, SpecOverLink(flags.spec.page_tokens));
  }
  KVSTOW_RETURN_IF_ERROR(Validate(flags.spec));
  KVSTOW_ASSIGN_OR_RETURN(const std::unique_ptr<Scratch> scratch, Scratch::Make());
  PeerOptions options{.folder = scratch->path(), .budget_bytes = BudgetOf(flags)};
  const RoundsPlan plan{.clients = flags.clients,
                        .values = flags.values,
                        .batch = flags.batch,
                        .rounds = flags.rounds,
                        .spec = flags.spec};
  if (flags.link_bytes_per_s > 0) {
    KVSTOW_ASSIGN_OR_RETURN(const auto link, Link::Make(flags.link_bytes_per_s, options.folder));
    options.host = Link::kServerHost;
    return CompareOverLink(flags.output, *link,
                           {.rounds = plan,
                            .contenders = ContendersOf(flags, options),
                            .bytes_per_s = flags.link_bytes_per_s,
                            .prefix_tokens = flags.prefix_tokens});
  }
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Peer>> peers;
  for (const Contender& contender : ContendersOf(flags, options)) {
    KVSTOW_ASSIGN_OR_RETURN(peers.emplace_back(), contender.start());
    names.push_back(peers.back()->name());
  }
  KVSTOW_ASSIGN_OR_RETURN(const Rows rows, RunRounds(plan, peers));
  Report(flags, names, rows);
  return absl::OkStatus();
}

Flag AddLinkFlags(const Verb& verb, Flags& flags) {
  const Flag link = AddBandwidth(
      verb, "--link", flags.link_bytes_per_s,
      "as 10Gbit: servers and clients in networks of their own, with a link of this speed between "
      "them. The values are KV of an 8B model, 64 of a client in one call, with 1 and 2 clients; "
      "pages travel as int8, int4, kivi4 and turboquant4. Needs root and iproute2");
  verb.Option("--prefix-tokens", flags.prefix_tokens,
              "over a link: tokens of the prompt whose time to first token is measured; 0 for none")
      .Within(0u, 1u << 20)
      .ShowDefault();
  return link;
}

}  // namespace

void AddBenchCompare(const Verb& bench) {
  const Verb verb = bench.Add(
      "compare",
      "Starts kvstowd, Redis and memcached on this machine and measures them in turns, with "
      "clients that land values in their own buffers; scripts/setup --peers installs the others");
  const auto flags = std::make_shared<Flags>();
  flags->spec = {
      .model = "compare", .revision = kUnversioned, .layers = 16, .kv_heads = 8, .page_tokens = 64};
  flags->spec.head_dim_k = flags->spec.head_dim_v = 64;
  AddOutputFlags(verb, flags->output);
  const Flag clients =
      verb.Option("--clients", flags->clients, "clients at once; a list gives a table each");
  clients.SplitAt(',').Within(1, 256).ShowDefault();
  verb.Option("--peers", flags->peers, "kvstow, redis, memcached, loop (a bare socket)")
      .SplitAt(',')
      .OneOf({"kvstow", "redis", "memcached", "loop"})
      .ShowDefault();
  const Flag encoded =
      verb.Option("--encoded", flags->encoded,
                  "recipes of the pages that travel encoded; \"\" for no such rows")
          .SplitAt(',')
          .ShowDefault();
  verb.Option("--shared", flags->shared,
              "recipes of kvstow through shared memory; \"\" for no such rows")
      .SplitAt(',')
      .ShowDefault();
  const Flag values = verb.Option("--values", flags->values, "values of each client in a round")
                          .Within(1, 100000)
                          .ShowDefault();
  const Flag batch =
      verb.Option("--batch", flags->batch, "values in a call").Within(1, 1024).ShowDefault();
  verb.Option("--rounds", flags->rounds, "rounds; one more before them warms up")
      .Within(1, 1000)
      .ShowDefault();
  verb.Option("--page-tokens", flags->spec.page_tokens,
              "tokens of a page: 32 KiB each, over a link 128 KiB")
      .Within(1u, kMaxPageTokens)
      .ShowDefault();
  const Flag local = verb.Switch("--local", flags->local, "over UNIX sockets too");
  AddLinkFlags(verb, *flags).Excludes(local);
  verb.Footer(
      "Examples:\n  kvstow bench compare\n"
      "  kvstow bench compare --clients 1,2,4,8 --rounds 11 --local\n"
      "  kvstow bench compare --batch 4 --page-tokens 32 --shared int8,kvstow\n"
      "  kvstow bench compare --peers kvstow,loop --page-tokens 256 --format json\n"
      "  kvstow bench compare --link 10Gbit                        # as root; needs 12 GB of "
      "memory\n"
      "  kvstow bench compare --link 25Gbit --prefix-tokens 4000 --encoded int8,kivi4 --clients 4");
  verb.Run([flags, clients, encoded, values, batch] {
    const bool link = flags->link_bytes_per_s > 0;
    if (link && !clients.given()) flags->clients = {1, 2};
    if (link && !encoded.given()) flags->encoded = {"int8", "int4", "kivi4", "turboquant4"};
    if (link && !values.given()) flags->values = 64;
    if (link && !batch.given()) flags->batch = 64;
    const absl::Status status = Compare(*flags);
    return status.ok() ? kDone : Fail(flags->output, status);
  });
}

}  // namespace kvstow::cli
