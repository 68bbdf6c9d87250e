#include "client/cli/plan/plan_fleet.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "client/cli/plan_flags.h"
#include "client/cli/text.h"

namespace kvstow::cli {
namespace {

using Json = nlohmann::ordered_json;
using planner::Fleet;
using planner::FleetOutcome;

constexpr double kGib = 1 << 30;

std::string Percent(double rate) { return FormatFixed(100 * rate, 1); }
// Bytes a second may be many or few.
std::string Gigabytes(double bytes) {
  return FormatFixed(bytes / 1e9, bytes < 1e8 ? 4 : bytes < 1e10 ? 2 : 1);
}
std::string Optional(const std::optional<double>& value, double scale, int digits) {
  return value.has_value() ? FormatFixed(*value * scale, digits) : "-";
}
Json OptionalJson(const std::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json();
}

Json OutcomeJson(const FleetOutcome& o) {
  return {{"origin", "modelled"},
          {"hit_rate",
           {{"local", o.local_rate},
            {"remote", o.remote_rate},
            {"missed", o.miss_rate},
            {"pooled", o.pooled_rate},
            {"local_by_affinity", o.affinity_rate},
            {"local_at_random", OptionalJson(o.random_rate)}}},
          {"busiest_node", o.busiest_node},
          {"remote_pages", o.remote_pages},
          {"remote_gib", o.remote_bytes / kGib},
          {"read_bytes_per_second", o.read_bytes_per_s},
          {"written_bytes_per_second", o.written_bytes_per_s},
          {"commands_per_second", o.commands_per_s},
          {"redis_nodes",
           {{"needed", o.redis_nodes()},
            {"for_memory", o.redis_for_memory},
            {"for_bytes", o.redis_for_bytes},
            {"for_commands", o.redis_for_commands},
            {"for_all_of_remote", o.redis_for_all}}},
          {"node_remote_bytes_per_second", o.node_remote_bytes_per_s},
          {"node_worker_bytes_per_second", o.node_worker_bytes_per_s},
          {"remote_overloaded", o.remote_overloaded},
          {"first_token_local_s", OptionalJson(o.local_s)},
          {"first_token_remote_s", OptionalJson(o.remote_s)},
          {"cost", OptionalJson(o.cost)},
          {"cost_per_hit_per_second", OptionalJson(o.cost_per_hit)}};
}

std::string RemoteName(const Fleet& fleet) {
  if (fleet.remote_bytes == 0) return "none";
  return fleet.remote_bytes == Fleet::kEndless ? "endless" : FormatSize(fleet.remote_bytes);
}

// Adds a row of the table, with one value for each recipe.
class Rows {
 public:
  explicit Rows(const std::vector<FleetOutcome>& outcomes) : outcomes_(outcomes) {}
  template <typename Value>
  void Add(const std::string& name, const Value& value) {
    rows_.push_back({name});
    for (const FleetOutcome& o : outcomes_) rows_.back().push_back(value(o));
  }
  const std::vector<std::vector<std::string>>& rows() const { return rows_; }

 private:
  const std::vector<FleetOutcome>& outcomes_;
  std::vector<std::vector<std::string>> rows_;
};

void AddHitRows(Rows& rows) {
  rows.Add("hits of the own node, %", [](const auto& o) { return Percent(o.local_rate); });
  rows.Add("hits of the remote store, %", [](const auto& o) { return Percent(o.remote_rate); });
  rows.Add("missed, %", [](const auto& o) { return Percent(o.miss_rate); });
  rows.Add("one node with the memory of all, %",
           [](const auto& o) { return Percent(o.pooled_rate); });
  rows.Add("own node, by affinity, %", [](const auto& o) { return Percent(o.affinity_rate); });
  rows.Add("own node, at random, %", [](const auto& o) { return Optional(o.random_rate, 100, 1); });
  rows.Add("busiest node, x mean", [](const auto& o) { return FormatFixed(o.busiest_node, 2); });
}

void AddRemoteRows(const Fleet& fleet, Rows& rows) {
  rows.Add("pages there", [](const auto& o) { return absl::StrCat(o.remote_pages); });
  rows.Add("pages there, GiB", [](const auto& o) { return FormatFixed(o.remote_bytes / kGib, 1); });
  rows.Add("read, GB/s", [](const auto& o) { return Gigabytes(o.read_bytes_per_s); });
  rows.Add("written, GB/s", [](const auto& o) { return Gigabytes(o.written_bytes_per_s); });
  rows.Add("commands/s", [](const auto& o) { return FormatFixed(o.commands_per_s, 0); });
  rows.Add("Redis nodes for these pages",
           [](const auto& o) { return absl::StrCat(o.redis_for_memory); });
  rows.Add("Redis nodes for these bytes/s",
           [](const auto& o) { return absl::StrCat(o.redis_for_bytes); });
  rows.Add("Redis nodes for these commands/s",
           [](const auto& o) { return absl::StrCat(o.redis_for_commands); });
  rows.Add("Redis nodes needed", [](const auto& o) { return absl::StrCat(o.redis_nodes()); });
  if (fleet.remote_bytes == Fleet::kEndless) return;
  rows.Add(absl::StrCat("Redis nodes that hold ", FormatSize(fleet.remote_bytes)),
           [](const auto& o) { return absl::StrCat(o.redis_for_all); });
}

void AddNodeRows(const PlanReport& report, Rows& rows) {
  rows.Add("a node with the remote store, GB/s", [](const auto& o) {
    return Gigabytes(o.node_remote_bytes_per_s) + (o.remote_overloaded ? " (too much)" : "");
  });
  rows.Add("a node to workers, GB/s",
           [](const auto& o) { return Gigabytes(o.node_worker_bytes_per_s); });
  std::optional<double> cold;
  if (report.hardware.prefill_tokens_per_s > 0) {
    cold = report.load->prompt_tokens / report.hardware.prefill_tokens_per_s;
  }
  rows.Add("first token, no cache, ms", [&](const auto&) { return Optional(cold, 1e3, 1); });
  rows.Add("first token, all on the node, ms",
           [](const auto& o) { return Optional(o.local_s, 1e3, 1); });
  rows.Add("first token, only remote, ms",
           [](const auto& o) { return Optional(o.remote_s, 1e3, 1); });
  rows.Add("cost of all nodes", [](const auto& o) { return Optional(o.cost, 1, 0); });
  rows.Add("cost for a hit a second", [](const auto& o) { return Optional(o.cost_per_hit, 1, 2); });
}

}  // namespace

absl::Status AddFleet(const Trace* trace, PlanReport& report) {
  if (report.fleet.nodes == 0) return absl::OkStatus();
  if (trace == nullptr) {
    return absl::InvalidArgumentError("--nodes needs a load: give --trace or --profile");
  }
  for (const planner::RecipeSize& recipe : report.recipes) {
    KVSTOW_ASSIGN_OR_RETURN(
        FleetOutcome outcome,
        planner::PredictFleet(*trace, *report.load, report.rank.all_bytes_per_token, recipe,
                              report.hardware, report.fleet));
    report.fleet_outcomes.push_back(outcome);
  }
  return absl::OkStatus();
}

void AddFleetJson(const PlanReport& report, Json& out) {
  if (report.fleet_outcomes.empty()) return;
  const Fleet& fleet = report.fleet;
  const bool endless = fleet.remote_bytes == Fleet::kEndless;
  out["fleet"] = {
      {"origin", "given"},
      {"nodes", fleet.nodes},
      {"loads", fleet.loads},
      {"remote_gib", endless ? Json() : Json(static_cast<double>(fleet.remote_bytes) / kGib)},
      {"remote_bytes_per_second", fleet.remote_bytes_per_s},
      {"remote_price_per_gib", fleet.remote_price_per_gib},
      {"values_per_page", fleet.values},
      {"redis",
       {{"gib", static_cast<double>(fleet.redis.memory_bytes) / kGib},
        {"fill", fleet.redis.fill},
        {"bytes_per_second", fleet.redis.bytes_per_s},
        {"commands_per_second", fleet.redis.commands_per_s}}}};
  for (size_t r = 0; r < report.recipes.size(); ++r) {
    out["recipes"][r]["fleet"] = OutcomeJson(report.fleet_outcomes[r]);
  }
}

std::string FleetText(const PlanReport& report) {
  if (report.fleet_outcomes.empty()) return "";
  const Fleet& fleet = report.fleet;
  std::vector<std::string> heading = {absl::StrCat(
      fleet.nodes, fleet.nodes == 1 ? " NODE OF THIS HARDWARE" : " NODES OF THIS HARDWARE")};
  for (const planner::RecipeSize& r : report.recipes) heading.push_back(r.recipe);
  Rows rows(report.fleet_outcomes);
  AddHitRows(rows);
  if (fleet.remote_bytes > 0) AddRemoteRows(fleet, rows);
  AddNodeRows(report, rows);
  const planner::RedisNode& redis = fleet.redis;
  return absl::StrCat(
      FormatTable(heading, rows.rows()), "modelled: ", fleet.loads,
      fleet.loads == 1 ? " such load" : " such loads", "; routing: ", RoutingName(fleet.routing),
      "; remote store: ", RemoteName(fleet),
      "; means, without peaks\na Redis node (given): ", FormatSize(redis.memory_bytes),
      " filled to ", FormatFixed(100 * redis.fill, 0), " %, ", Gigabytes(redis.bytes_per_s),
      " GB/s, ", FormatFixed(redis.commands_per_s, 0),
      " commands/s; a master: replicas come on top\n");
}

void AddFleetFlags(const Verb& verb, Fleet& fleet, const Flag& server) {
  const Flag nodes = verb.Option(
      "--nodes", fleet.nodes,
      "also plans so many nodes, each with the tiers that are given, that share the load");
  nodes.Within(1u, 1u << 20).Excludes(server);
  verb.Parse(
          "--routing",
          [&fleet](const std::string& text) {
            for (const Routing routing : {Routing::kAffinity, Routing::kRandom}) {
              if (text != RoutingName(routing)) continue;
              fleet.routing = routing;
              return;
            }
            Refuse(absl::StrCat("--routing: '", text, "' is neither affinity nor random"));
          },
          "affinity: a session, or prompts that begin alike, go to one node; random: any node "
          "[affinity]")
      .TypeName("WORD")
      .Needs(nodes);
  verb.Option("--loads", fleet.loads,
              "such loads at once, with prompts of their own; divides --nodes")
      .Within(1u, 1u << 20)
      .ShowDefault()
      .Needs(nodes);
  AddRemoteSize(verb, fleet.remote_bytes,
                "encoded bytes of the remote store that the nodes share, as 2TiB, or endless")
      .Needs(nodes);
  AddBandwidth(verb, "--remote-bandwidth", fleet.remote_bytes_per_s,
               "of a node with the remote store, as 10Gbit/s; --link if left out")
      .Needs(nodes);
  AddNumber(verb, "--remote-price", fleet.remote_price_per_gib, 1e-9, 1e9,
            "of a GiB of a Redis node, in the currency of the other prices")
      .Needs(nodes);
  verb.Option("--values", fleet.values,
              "values of a page in the remote store, beside its record: one for each level")
      .Within(1u, 64u)
      .ShowDefault()
      .Needs(nodes);
  planner::RedisNode& redis = fleet.redis;
  AddSize(verb, "--redis-memory", redis.memory_bytes, "of a Redis node [16GiB]").Needs(nodes);
  verb.Parse(
          "--redis-fill",
          [&redis](const std::string& text) {
            double percent = 0;
            if (!absl::SimpleAtod(text, &percent) || !(percent >= 1 && percent <= 100)) {
              Refuse(absl::StrCat("--redis-fill: '", text, "' is not a number from 1 to 100"));
            }
            redis.fill = percent / 100;
          },
          "% of that memory that pages may take [75]")
      .TypeName("NUMBER")
      .Needs(nodes);
  AddBandwidth(verb, "--redis-bandwidth", redis.bytes_per_s,
               "that a Redis process reads and writes [1.5GB/s]")
      .Needs(nodes);
  AddNumber(verb, "--redis-commands", redis.commands_per_s, 1, 1e9,
            "commands that a Redis process executes in a second")
      .ShowDefault()
      .Needs(nodes);
}

}  // namespace kvstow::cli
