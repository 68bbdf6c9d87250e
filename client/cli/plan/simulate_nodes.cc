#include "client/cli/plan/simulate_nodes.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "client/cli/plan_flags.h"
#include "client/cli/text.h"
#include "storage/trace/simulator.h"

namespace kvstow::cli {
namespace {

constexpr double kGib = 1 << 30;

// What all rows share.
struct Setting {
  const NodesFlags& flags;
  const Trace& trace;
  const PolicyInfo& policy;
  double block_bytes = 0;
  uint64_t remote_blocks = 0;
  double span_s = 0;  // first to last arrival
};

struct Row {
  uint32_t nodes = 0;
  uint64_t capacity = 0;            // of a node, in blocks
  FleetResult result;               // by the routing that was asked for
  double affinity = 0, random = 0;  // local hit rates
  double pooled = 0;
};

Row RunOne(const Setting& s, uint32_t nodes, uint64_t capacity, absl::FunctionRef<void()> step) {
  FleetOptions options{.nodes = nodes,
                       .seed = s.flags.seed,
                       .node_blocks = capacity,
                       .remote_blocks = s.remote_blocks,
                       .sent_per_second = s.flags.send_bytes_per_s / s.block_bytes};
  const FleetResult affinity = SimulateFleet(s.trace, s.policy, options, step);
  options.routing = Routing::kRandom;
  const FleetResult random = SimulateFleet(s.trace, s.policy, options, step);
  return {.nodes = nodes,
          .capacity = capacity,
          .result = s.flags.routing == RoutingName(Routing::kRandom) ? random : affinity,
          .affinity = affinity.local_rate(),
          .random = random.local_rate(),
          .pooled = PooledHitRate(s.trace, s.policy, nodes, capacity, step)};
}

// A count for each request, and for each second of the trace.
double PerRequest(const Row& row, double count) {
  return row.result.requests == 0 ? 0 : count / static_cast<double>(row.result.requests);
}
std::optional<double> PerSecond(const Setting& s, double count) {
  if (s.span_s <= 0) return std::nullopt;
  return count / s.span_s;
}
std::string Text(const std::optional<double>& value, double scale, int digits) {
  return value.has_value() ? FormatFixed(*value * scale, digits) : "-";
}

struct Traffic {
  double from_bytes = 0, to_bytes = 0, commands = 0;  // of the remote store, in all
};
Traffic TrafficOf(const Setting& s, const Row& row) {
  return {.from_bytes = static_cast<double>(row.result.remote_hits) * s.block_bytes,
          .to_bytes = static_cast<double>(row.result.sent) * s.block_bytes,
          .commands = static_cast<double>(row.result.Commands(s.flags.values))};
}
// The share of the busiest node, where 1 is the mean.
double Busiest(const Row& row) {
  return row.nodes * row.result.Share(row.result.busiest_references);
}

Json RateJson(const Setting& s, const Row& row, double count) {
  const auto second = PerSecond(s, count);
  return {{"all", count},
          {"per_request", PerRequest(row, count)},
          {"per_second", second.has_value() ? Json(*second) : Json()}};
}

Json RowJson(const Setting& s, const Row& row) {
  const FleetResult& r = row.result;
  const Traffic traffic = TrafficOf(s, row);
  return {{"nodes", row.nodes},
          {"capacity_blocks", row.capacity},
          {"capacity_gib", static_cast<double>(row.capacity) * s.block_bytes / kGib},
          {"blocks", r.references},
          {"local_hits", r.local_hits},
          {"remote_hits", r.remote_hits},
          {"misses", r.misses},
          {"hit_rate",
           {{"local", r.local_rate()},
            {"remote", r.remote_rate()},
            {"missed", r.miss_rate()},
            {"pooled", row.pooled}}},
          {"local_by_routing",
           {{"affinity", row.affinity},
            {"random", row.random},
            {"affinity_gains", row.affinity - row.random}}},
          {"busiest_node", Busiest(row)},
          {"remote",
           {{"bytes_from", RateJson(s, row, traffic.from_bytes)},
            {"bytes_to", RateJson(s, row, traffic.to_bytes)},
            {"commands", RateJson(s, row, traffic.commands)},
            {"blocks_asked", r.asked},
            {"blocks_offered", r.offered},
            {"blocks_sent", r.sent},
            {"blocks_unsent", r.unsent},
            {"evictions", r.remote_evictions},
            {"most_blocks", r.most_remote_blocks},
            {"most_gib", static_cast<double>(r.most_remote_blocks) * s.block_bytes / kGib},
            {"hottest_fetches", r.hottest_fetches}}}};
}

std::string HitsTable(const Setting& s, const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> out;
  for (const Row& row : rows) {
    const FleetResult& r = row.result;
    out.push_back({absl::StrCat(row.nodes), absl::StrCat(row.capacity),
                   FormatFixed(static_cast<double>(row.capacity) * s.block_bytes / kGib, 1),
                   FormatFixed(r.local_rate(), 4), FormatFixed(r.remote_rate(), 4),
                   FormatFixed(r.miss_rate(), 4), FormatFixed(row.pooled, 4),
                   FormatFixed(row.affinity, 4), FormatFixed(row.random, 4),
                   FormatFixed(row.affinity - row.random, 4), FormatFixed(Busiest(row), 2)});
  }
  return FormatTable({"NODES", "BLOCKS A NODE", "GIB", "local", "remote", "missed", "one of all",
                      "local, affinity", "random", "affinity gains", "busiest node"},
                     out);
}

std::string TrafficTable(const Setting& s, const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> out;
  for (const Row& row : rows) {
    const Traffic t = TrafficOf(s, row);
    out.push_back(
        {absl::StrCat(row.nodes), absl::StrCat(row.capacity),
         FormatFixed(PerRequest(row, t.from_bytes) / 1e6, 1),
         FormatFixed(PerRequest(row, t.to_bytes) / 1e6, 1),
         FormatFixed(PerRequest(row, t.commands), 1), Text(PerSecond(s, t.from_bytes), 1e-6, 1),
         Text(PerSecond(s, t.to_bytes), 1e-6, 1), Text(PerSecond(s, t.commands), 1, 1),
         FormatFixed(static_cast<double>(row.result.most_remote_blocks) * s.block_bytes / kGib, 1),
         absl::StrCat(row.result.hottest_fetches)});
  }
  return FormatTable({"NODES", "BLOCKS A NODE", "MB from/request", "MB to", "commands", "MB from/s",
                      "MB to/s", "commands/s", "GIB THERE", "hottest page"},
                     out);
}

std::string Heading(const Setting& s, const std::string& name) {
  const std::string remote =
      s.remote_blocks == 0 ? std::string("none")
      : s.flags.remote_bytes == UINT64_MAX
          ? std::string("endless")
          : absl::StrCat(FormatSize(s.flags.remote_bytes), ", ", s.remote_blocks, " blocks");
  return absl::StrCat(
      name, " (", TraceSchemaName(s.trace.schema), "): ", s.trace.requests.size(), " requests in ",
      FormatFixed(s.span_s, 0), " s, ", s.trace.references, " blocks of ", s.trace.block_tokens,
      " tokens, ", FormatFixed(s.block_bytes / 1e6, 2), " MB each\nroutes: ", s.flags.routing,
      "; policy of a node: ", s.policy.name, "; remote store: ", remote,
      "; a cache of all blocks hits ", FormatFixed(InfiniteHitRate(s.trace), 4), "\n");
}

constexpr char kLegend[] =
    "hit rate = leading blocks present at arrival / all blocks; local: on the node, remote: "
    "fetched\n"
    "one of all: one node with the memory of all; busiest node: its blocks, where 1 is the mean\n";
constexpr char kTrafficLegend[] =
    "from and to the remote store, records of pages left out; commands: records read, values "
    "read,\n"
    "questions before a page is sent, values and record written; hottest page: how often fetched\n";

Json ReportJson(const Setting& s, const std::string& name, const std::vector<Row>& rows) {
  Json out = {
      {"trace", name},
      {"schema", TraceSchemaName(s.trace.schema)},
      {"requests", s.trace.requests.size()},
      {"seconds", s.span_s},
      {"blocks", s.trace.references},
      {"distinct_blocks", s.trace.parents.size()},
      {"block_tokens", s.trace.block_tokens},
      {"block_bytes", s.block_bytes},
      {"infinite", InfiniteHitRate(s.trace)},
      {"routing", s.flags.routing},
      {"policy", s.policy.name},
      {"seed", s.flags.seed},
      {"values_per_page", s.flags.values},
      {"sent_bytes_per_second", s.flags.send_bytes_per_s},
      {"remote_blocks", s.flags.remote_bytes == UINT64_MAX ? Json() : Json(s.remote_blocks)},
      {"by_nodes", Json::array()}};
  for (const Row& row : rows) out["by_nodes"].push_back(RowJson(s, row));
  return out;
}

absl::StatusOr<uint64_t> RemoteBlocks(uint64_t bytes, double block_bytes) {
  if (bytes == 0 || bytes == UINT64_MAX) return bytes;
  const double blocks = static_cast<double>(bytes) / block_bytes;
  if (blocks >= 1) return static_cast<uint64_t>(blocks);
  return absl::InvalidArgumentError(absl::StrCat("--remote ", FormatSize(bytes),
                                                 " does not hold one block of ",
                                                 FormatFixed(block_bytes, 0), " bytes: give more"));
}

}  // namespace

void AddNodesFlags(const Verb& verb, NodesFlags& flags, const Flag& levels) {
  const Flag nodes = verb.Option("--nodes", flags.counts,
                                 "nodes that share the requests, such as 8, or 1,4,16 for several "
                                 "rows: each has the capacity, and policies are not compared");
  nodes.OneValueEach().SplitAt(',').Within(1u, 1024u).Excludes(levels);
  verb.Option("--routing", flags.routing,
              "affinity: a session, or prompts that begin alike, go to one node; random: any node")
      .OneOf({RoutingName(Routing::kAffinity), RoutingName(Routing::kRandom)})
      .ShowDefault()
      .Needs(nodes);
  AddRemoteSize(verb, flags.remote_bytes,
                "encoded bytes of the remote store that the nodes share, such as 2TiB, or "
                "endless; none if left out")
      .Needs(nodes);
  AddBandwidth(verb, "--send-bandwidth", flags.send_bytes_per_s,
               "what each node may send to the remote store, as 200MB/s; as it comes if left out")
      .Needs(nodes);
  std::vector<std::string> names;
  for (const PolicyInfo& policy : EvictionPolicies()) names.emplace_back(policy.name);
  verb.Option("--policy", flags.policy, "eviction policy of a node")
      .OneOf(names)
      .ShowDefault()
      .Needs(nodes);
  verb.Option("--values", flags.values,
              "values of a page in the remote store, beside its record: one for each level")
      .Within(1u, 64u)
      .ShowDefault()
      .Needs(nodes);
  verb.Option("--seed", flags.seed, "of random routing").ShowDefault().Needs(nodes);
}

int SimulateNodes(const OutputFlags& output, const NodesFlags& flags, const std::string& name,
                  const Trace& trace, std::span<const uint64_t> capacities,
                  double bytes_per_token) {
  Setting s{.flags = flags, .trace = trace, .policy = **FindEvictionPolicy(flags.policy)};
  s.block_bytes = bytes_per_token * trace.block_tokens;
  s.span_s = trace.requests.back().time_s - trace.requests.front().time_s;
  const auto remote = RemoteBlocks(flags.remote_bytes, s.block_bytes);
  if (!remote.ok()) return Fail(output, remote.status());
  s.remote_blocks = *remote;
  std::vector<Row> rows;
  {
    constexpr size_t kRuns = 3;
    Progress progress("simulating",
                      capacities.size() * flags.counts.size() * kRuns * trace.requests.size(),
                      "requests");
    uint64_t done = 0;
    for (const uint32_t nodes : flags.counts) {
      for (const uint64_t blocks : capacities) {
        rows.push_back(RunOne(s, nodes, blocks, [&] { progress.Update(++done); }));
      }
    }
  }
  std::string text = absl::StrCat(Heading(s, name), "\n", HitsTable(s, rows), kLegend);
  if (s.remote_blocks > 0) absl::StrAppend(&text, "\n", TrafficTable(s, rows), kTrafficLegend);
  Print(output, ReportJson(s, name, rows), text);
  return kDone;
}

}  // namespace kvstow::cli
