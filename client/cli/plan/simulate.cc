// kvstow simulate: a trace against every eviction policy, or against several nodes.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "client/cli/cli.h"
#include "client/cli/plan/simulate_nodes.h"
#include "client/cli/text.h"
#include "storage/trace/simulator.h"

namespace kvstow::cli {
namespace {

constexpr uint64_t kCurve[] = {1'000, 3'000, 10'000, 30'000, 100'000};
// Bytes of a block, for policies: levels share them by their bits.
constexpr uint64_t kBlockBytes = kSimulatedBlockBytes;

struct Flags {
  OutputFlags output;
  std::string trace, capacity, levels;
  uint64_t capacity_blocks = 0;
  double bytes_per_token = 0, raw_bytes_per_token = 131'072, capacity_bits = 0;
  NodesFlags nodes;
};

// The results of pages that lose level after level, beside pages that go whole.
struct Segments {
  double hit_rate = 0, bits = 0, error = 0;
};

struct Point {
  uint64_t blocks = 0;
  std::vector<std::pair<std::string, double>> policies;
  std::optional<Segments> segments;
};

struct Levels {
  std::vector<SimulatedLevel> list;
  double capacity_bits = 0;  // of a value of the pages that capacities are told in
};

// "2:0.88,2:0.11,4:0.01": bits and gain of each level, base first.
absl::StatusOr<Levels> ParseLevels(const std::string& text, double capacity_bits) {
  Levels levels;
  std::vector<std::pair<double, double>> parts;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> pair = absl::StrSplit(part, ':');
    double bits = 0, gain = 0;
    if (pair.size() != 2 || !absl::SimpleAtod(pair[0], &bits) ||
        !absl::SimpleAtod(pair[1], &gain) || !(bits > 0 && bits <= 64 && gain > 0 && gain <= 1)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--levels: '", part, "' is not BITS:GAIN with 0 < BITS <= 64 and 0 < GAIN <= 1"));
    }
    parts.emplace_back(bits, gain);
    levels.capacity_bits += bits;
  }
  if (capacity_bits > 0) levels.capacity_bits = capacity_bits;
  for (const auto& [bits, gain] : parts) {
    const double bytes = bits / levels.capacity_bits * static_cast<double>(kBlockBytes);
    levels.list.push_back(
        {.bytes = std::max<uint64_t>(1, static_cast<uint64_t>(bytes)), .gain = gain});
  }
  return levels;
}

absl::StatusOr<std::vector<uint64_t>> Capacities(const Flags& flags, const Trace& trace) {
  if (flags.capacity_blocks > 0) return std::vector<uint64_t>{flags.capacity_blocks};
  if (flags.capacity.empty()) {
    std::vector<uint64_t> out;
    for (const uint64_t blocks : kCurve) {
      out.push_back(std::min<uint64_t>(blocks, std::max<size_t>(1, trace.parents.size())));
      if (out.back() < blocks) break;
    }
    return out;
  }
  KVSTOW_ASSIGN_OR_RETURN(const uint64_t bytes, ParseSize(flags.capacity));
  const double per_token =
      flags.bytes_per_token > 0 ? flags.bytes_per_token : flags.raw_bytes_per_token;
  const double blocks = static_cast<double>(bytes) / (per_token * trace.block_tokens);
  if (blocks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--capacity ", flags.capacity,
                                                   " does not hold one block of ",
                                                   trace.block_tokens, " tokens"));
  }
  return std::vector<uint64_t>{static_cast<uint64_t>(blocks)};
}

Point Run(const Trace& trace, uint64_t blocks, const Levels& levels,
          absl::FunctionRef<void()> step) {
  Point point{.blocks = blocks};
  const SimulatedLevel whole{.bytes = kBlockBytes};
  for (const PolicyInfo& policy : EvictionPolicies()) {
    const auto result = Simulate(trace, policy, blocks * kBlockBytes, {&whole, 1}, step);
    point.policies.emplace_back(policy.name, result.hit_rate());
  }
  point.policies.emplace_back("belady", SimulateBelady(trace, blocks, step).hit_rate());
  if (levels.list.empty()) return point;
  const auto result =
      Simulate(trace, EvictionPolicies()[0], blocks * kBlockBytes, levels.list, step);
  const double hits = std::max<double>(1, static_cast<double>(result.hits));
  point.segments = {.hit_rate = result.hit_rate(),
                    .bits = result.hit_bytes / hits / kBlockBytes * levels.capacity_bits,
                    .error = result.hit_error / hits};
  return point;
}

double Gib(const Trace& trace, uint64_t blocks, double bytes_per_token) {
  return static_cast<double>(blocks) * trace.block_tokens * bytes_per_token / (1 << 30);
}

Json JsonOf(const Flags& flags, const Trace& trace, const Point& point) {
  Json object = {{"capacity_blocks", point.blocks},
                 {"raw_gib", Gib(trace, point.blocks, flags.raw_bytes_per_token)}};
  if (flags.bytes_per_token > 0) object["gib"] = Gib(trace, point.blocks, flags.bytes_per_token);
  for (const auto& [name, rate] : point.policies) object["policies"][name] = rate;
  if (point.segments.has_value()) {
    object["segments"] = {{"hit_rate", point.segments->hit_rate},
                          {"mean_bits", point.segments->bits},
                          {"mean_error", point.segments->error}};
  }
  return object;
}

std::string Table(const Flags& flags, const Trace& trace, const std::vector<Point>& points) {
  std::vector<std::string> heading = {"BLOCKS", "RAW GIB"};
  if (flags.bytes_per_token > 0) heading.push_back("GIB");
  for (const auto& [name, rate] : points[0].policies) heading.push_back(name);
  if (points[0].segments.has_value()) {
    heading.insert(heading.end(), {"kvstow, levels", "bits", "error"});
  }
  std::vector<std::vector<std::string>> rows;
  for (const Point& point : points) {
    std::vector<std::string>& row = rows.emplace_back();
    row = {absl::StrCat(point.blocks),
           FormatFixed(Gib(trace, point.blocks, flags.raw_bytes_per_token), 1)};
    if (flags.bytes_per_token > 0) {
      row.push_back(FormatFixed(Gib(trace, point.blocks, flags.bytes_per_token), 1));
    }
    for (const auto& [name, rate] : point.policies) row.push_back(FormatFixed(rate, 4));
    if (!point.segments.has_value()) continue;
    row.insert(row.end(),
               {FormatFixed(point.segments->hit_rate, 4), FormatFixed(point.segments->bits, 2),
                FormatFixed(point.segments->error, 4)});
  }
  return FormatTable(heading, rows);
}

int SimulateVerb(const Flags& flags) {
  const auto levels = ParseLevels(flags.levels, flags.capacity_bits);
  if (!levels.ok()) {
    Fail(flags.output, levels.status());
    return kWrongUse;
  }
  absl::StatusOr<Trace> trace = absl::UnknownError("");
  {
    std::optional<Progress> progress;
    trace = LoadTrace(flags.trace, [&](uint64_t read, uint64_t total) {
      if (!progress.has_value()) progress.emplace("reading", total);
      progress->Update(read);
    });
  }
  if (!trace.ok()) return Fail(flags.output, trace.status());
  const auto capacities = Capacities(flags, *trace);
  if (!capacities.ok()) return Fail(flags.output, capacities.status());
  if (flags.nodes.on()) {
    const double bytes =
        flags.bytes_per_token > 0 ? flags.bytes_per_token : flags.raw_bytes_per_token;
    return SimulateNodes(flags.output, flags.nodes, flags.trace, *trace, *capacities, bytes);
  }

  std::vector<Point> points;
  {
    const size_t runs = EvictionPolicies().size() + 1 + (levels->list.empty() ? 0 : 1);
    Progress progress("simulating", capacities->size() * runs * trace->requests.size(), "requests");
    uint64_t done = 0;
    for (const uint64_t blocks : *capacities) {
      points.push_back(Run(*trace, blocks, *levels, [&] { progress.Update(++done); }));
    }
  }
  const double infinite = InfiniteHitRate(*trace);
  Json object = {{"trace", flags.trace},
                 {"schema", TraceSchemaName(trace->schema)},
                 {"requests", trace->requests.size()},
                 {"blocks", trace->references},
                 {"distinct_blocks", trace->parents.size()},
                 {"block_tokens", trace->block_tokens},
                 {"infinite", infinite}};
  if (points.size() == 1) object.update(JsonOf(flags, *trace, points[0]));
  object["curve"] = Json::array();
  for (const Point& point : points) object["curve"].push_back(JsonOf(flags, *trace, point));
  Print(flags.output, object,
        absl::StrCat(flags.trace, " (", TraceSchemaName(trace->schema),
                     "): ", trace->requests.size(), " requests, ", trace->references, " blocks of ",
                     trace->block_tokens, " tokens, ", trace->parents.size(),
                     " distinct; a cache of all of them hits ", FormatFixed(infinite, 4),
                     "\nhit rate = leading blocks present at arrival / all blocks\n\n",
                     Table(flags, *trace, points)));
  return kDone;
}

}  // namespace

void AddSimulate(const Verb& app) {
  const Verb verb =
      app.Add("simulate", "Prefix hit rate of every eviction policy on a trace, against capacity");
  const auto flags = std::make_shared<Flags>();
  AddOutputFlags(verb, flags->output);
  verb.Option("trace", flags->trace,
              "a trace of the Mooncake or Bailian schema (JSON lines; .gz too)")
      .Required();
  const Flag blocks =
      verb.Option("--capacity-blocks", flags->capacity_blocks,
                  "blocks that the cache holds; without it, a curve of 1,000 to 100,000")
          .Within(uint64_t{1}, uint64_t{1} << 40);
  verb.Option("--capacity", flags->capacity, "the same as a size, such as 64GiB").Excludes(blocks);
  verb.Option("--bytes-per-token", flags->bytes_per_token,
              "stored bytes of a token, for GiB and --capacity")
      .Within(1e-3, 1e9);
  verb.Option("--raw-bytes-per-token", flags->raw_bytes_per_token,
              "raw bytes of a token (default: 32 layers, 8 heads of 128, 16 bits)")
      .Within(1e-3, 1e9)
      .ShowDefault();
  const Flag levels =
      verb.Option("--levels", flags->levels,
                  "BITS:GAIN of each level of a page, base first, as `kvstow codec roundtrip` "
                  "prints them: also simulates pages that lose levels; then capacities are in "
                  "whole pages, and errors in sums of lost gains");
  verb.Option("--capacity-bits", flags->capacity_bits,
              "bits of a value of the pages that capacities are in, such as 8; without it "
              "those of all levels")
      .Within(1e-3, 64.0)
      .Needs(levels);
  AddNodesFlags(verb, flags->nodes, levels);
  verb.Footer(
      "Examples:\n  kvstow simulate conversation_trace.jsonl\n"
      "  kvstow simulate --capacity 64GiB --bytes-per-token 20000 --format json trace.jsonl.gz\n"
      "  kvstow simulate --levels 2:0.88,2:0.115,4:0.005 trace.jsonl\n"
      "  kvstow simulate --levels 0.4:0.95,0.3:0.03 --capacity-bits 8 trace.jsonl\n"
      "  kvstow simulate --nodes 1,4,16 --capacity 64GiB --remote 2TiB trace.jsonl\n"
      "  kvstow simulate --nodes 8 --routing random --remote endless trace.jsonl");
  verb.Run([flags] { return SimulateVerb(*flags); });
}

}  // namespace kvstow::cli
