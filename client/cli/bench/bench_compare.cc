// kvstow bench compare: kvstow, Redis, memcached and a bare socket on this machine, in turns.
#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "client/cli/bench/child.h"
#include "client/cli/bench/load.h"
#include "client/cli/bench/peer.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"

namespace kvstow::cli {
namespace {

struct Flags {
  OutputFlags output;
  std::vector<uint32_t> clients = {1, 4};
  std::vector<std::string> peers = {"kvstow", "redis", "memcached", "loop"};
  std::string encoded = "int4";
  std::vector<std::string> shared = {"raw", "int8"};
  uint32_t values = 16, batch = 1, rounds = 5;
  bool local = false;
  KvSpec spec;
};

// The figures of one peer in one round, or in all rounds together.
struct Sample {
  double gbps = 0, cpu_s_per_gb = 0;
  std::vector<double> us;  // of each call
};

// Rows in the order of the table: operation, clients, peer.
struct RowKey {
  std::string operation;
  uint32_t clients;
  size_t peer;
  auto operator<=>(const RowKey&) const = default;
};
using Rows = std::map<RowKey, std::vector<Sample>>;

struct Load {
  uint32_t clients, values, batch;
  const std::vector<std::vector<uint8_t>>& pages;  // of each client
};

using Call = absl::Status (Session::*)(std::span<const Item>);

std::string KeyOf(uint32_t client, uint32_t value) { return absl::StrCat("c", client, "-", value); }

// Every client does `call` for each of its values.
absl::StatusOr<Sample> Measure(const Peer& peer, const Load& load,
                               std::vector<std::unique_ptr<Session>>& sessions, Call call) {
  std::vector<std::vector<double>> us(load.clients);
  std::vector<absl::Status> status(load.clients);
  const size_t page = load.pages[0].size();
  std::vector<std::span<uint8_t>> buffers;
  for (uint32_t c = 0; c < load.clients; ++c) {
    buffers.push_back(sessions[c]->Buffer(page * load.batch));
    for (uint32_t i = 0; i < load.batch; ++i) {
      std::ranges::copy(load.pages[c], buffers[c].begin() + i * page);
    }
  }
  const double cpu = peer.CpuSeconds() + OwnCpuSeconds();
  const double seconds = OnEveryClient(load.clients, [&](uint32_t c) {
    std::vector<Item> items;
    for (uint32_t v = 0; v < load.values && status[c].ok(); ++v) {
      items.push_back({KeyOf(c, v), buffers[c].subspan(items.size() * page, page)});
      if (items.size() < load.batch && v + 1 < load.values) continue;
      const Time start = Clock::Real().Now();
      status[c] = (*sessions[c].*call)(items);
      us[c].push_back(SecondsSince(start) * 1e6);
      items.clear();
    }
  });
  Sample sample;
  const uint64_t bytes = uint64_t{load.clients} * load.values * load.pages[0].size();
  sample.gbps = GigabytesPerSecond(bytes, seconds);
  sample.cpu_s_per_gb =
      (peer.CpuSeconds() + OwnCpuSeconds() - cpu) / (static_cast<double>(bytes) * 1e-9);
  for (uint32_t c = 0; c < load.clients; ++c) {
    if (!status[c].ok())
      return absl::Status(status[c].code(), absl::StrCat(peer.name(), ": ", status[c].message()));
    sample.us.insert(sample.us.end(), us[c].begin(), us[c].end());
  }
  return sample;
}

// Puts, gets and deletes with one peer.
absl::Status RunRound(Peer& peer, size_t index, const Load& load, Rows& rows) {
  std::vector<std::unique_ptr<Session>> sessions;
  for (uint32_t c = 0; c < load.clients; ++c) {
    KVSTOW_ASSIGN_OR_RETURN(sessions.emplace_back(), peer.Connect());
  }
  const std::pair<const char*, Call> operations[] = {{"put", &Session::Put},
                                                     {"get", &Session::Get}};
  for (const auto& [operation, call] : operations) {
    KVSTOW_ASSIGN_OR_RETURN(Sample sample, Measure(peer, load, sessions, call));
    rows[{operation, load.clients, index}].push_back(std::move(sample));
  }
  for (uint32_t c = 0; c < load.clients; ++c) {
    for (uint32_t v = 0; v < load.values; ++v)
      KVSTOW_RETURN_IF_ERROR(sessions[c]->Delete(KeyOf(c, v)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::unique_ptr<Peer>>> StartPeers(const Flags& flags,
                                                              const std::string& folder) {
  const uint64_t page = PageBytes(flags.spec, flags.spec.page_tokens);
  const uint32_t clients = *std::max_element(flags.clients.begin(), flags.clients.end());
  // Twice what is there at once: no store has to evict.
  PeerOptions options{.folder = folder,
                      .budget_bytes = 2 * page * clients * flags.values + (uint64_t{64} << 20)};
  std::vector<std::unique_ptr<Peer>> peers;
  const auto add = [&](absl::StatusOr<std::unique_ptr<Peer>> peer) {
    if (peer.ok()) peers.push_back(*std::move(peer));
    return peer.status();
  };
  for (const bool local : {false, true}) {
    if (local && !flags.local) break;
    options.local = local;
    for (const std::string& name : flags.peers) {
      if (name == "kvstow") {
        KVSTOW_RETURN_IF_ERROR(add(StartKvstow(options, {.recipe = "raw", .spec = flags.spec})));
        if (!flags.encoded.empty()) {
          KVSTOW_RETURN_IF_ERROR(add(StartKvstow(
              options, {.recipe = flags.encoded, .encoded = true, .spec = flags.spec})));
        }
        if (local) continue;
        KVSTOW_RETURN_IF_ERROR(
            add(StartKvstow(options, {.recipe = "raw", .streams = true, .spec = flags.spec})));
        for (const std::string& recipe : flags.shared) {
          if (recipe.empty()) continue;
          KVSTOW_RETURN_IF_ERROR(
              add(StartKvstow(options, {.recipe = recipe, .shared = true, .spec = flags.spec})));
        }
        if (!flags.shared.empty() && !flags.shared.back().empty()) {
          KVSTOW_RETURN_IF_ERROR(add(StartGrpcSlots(options)));
        }
      } else if (name == "redis") {
        KVSTOW_RETURN_IF_ERROR(add(StartRedis(options)));
      } else if (name == "memcached") {
        KVSTOW_RETURN_IF_ERROR(add(StartMemcached(options)));
      } else if (!local) {
        KVSTOW_RETURN_IF_ERROR(add(StartLoop()));
      }
    }
  }
  return peers;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return Percentile(values, 0.5);
}

// Medians over the rounds; latencies of all of them together.
Sample Summary(const std::vector<Sample>& samples) {
  Sample out;
  std::vector<double> gbps, cpu;
  for (const Sample& s : samples) {
    gbps.push_back(s.gbps);
    cpu.push_back(s.cpu_s_per_gb);
    out.us.insert(out.us.end(), s.us.begin(), s.us.end());
  }
  std::sort(out.us.begin(), out.us.end());
  out.gbps = Median(gbps);
  out.cpu_s_per_gb = Median(cpu);
  return out;
}

bool IsRival(const std::string& name) {
  return absl::StartsWith(name, "redis") || absl::StartsWith(name, "memcached");
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

absl::Status Compare(const Flags& flags) {
  KVSTOW_RETURN_IF_ERROR(Validate(flags.spec));
  KVSTOW_ASSIGN_OR_RETURN(const std::unique_ptr<Scratch> scratch, Scratch::Make());
  KVSTOW_ASSIGN_OR_RETURN(const auto peers, StartPeers(flags, scratch->path()));
  std::vector<std::vector<uint8_t>> pages;
  for (uint32_t c = 0; c < *std::max_element(flags.clients.begin(), flags.clients.end()); ++c)
    pages.push_back(MakePage(flags.spec, c));
  Rows rows, warm_up;
  const size_t runs = (flags.rounds + 1) * flags.clients.size() * peers.size();
  {
    Progress progress("comparing", runs, "runs");
    size_t done = 0;
    for (uint32_t round = 0; round <= flags.rounds; ++round) {
      for (const uint32_t clients : flags.clients) {
        for (size_t p = 0; p < peers.size(); ++p) {
          KVSTOW_RETURN_IF_ERROR(RunRound(*peers[p], p, {clients, flags.values, flags.batch, pages},
                                          round == 0 ? warm_up : rows));
          progress.Update(++done);
        }
      }
    }
  }
  std::vector<std::string> names;
  for (const auto& peer : peers) names.push_back(peer->name());
  Report(flags, names, rows);
  return absl::OkStatus();
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
  verb.Option("--clients", flags->clients, "clients at once; a list gives a table each")
      .SplitAt(',')
      .Within(1, 256)
      .ShowDefault();
  verb.Option("--peers", flags->peers, "kvstow, redis, memcached, loop (a bare socket)")
      .SplitAt(',')
      .OneOf({"kvstow", "redis", "memcached", "loop"})
      .ShowDefault();
  verb.Option("--encoded", flags->encoded,
              "recipe of the pages that travel encoded; \"\" for no such row")
      .ShowDefault();
  verb.Option("--shared", flags->shared,
              "recipes of kvstow through shared memory; \"\" for no such rows")
      .SplitAt(',')
      .ShowDefault();
  verb.Option("--values", flags->values, "values of each client in a round")
      .Within(1, 100000)
      .ShowDefault();
  verb.Option("--batch", flags->batch, "values in a call").Within(1, 1024).ShowDefault();
  verb.Option("--rounds", flags->rounds, "rounds; one more before them warms up")
      .Within(1, 1000)
      .ShowDefault();
  verb.Option("--page-tokens", flags->spec.page_tokens, "tokens of a page: 32 KiB each")
      .ShowDefault();
  verb.Switch("--local", flags->local, "over UNIX sockets too");
  verb.Footer(
      "Examples:\n  kvstow bench compare\n"
      "  kvstow bench compare --clients 1,2,4,8 --rounds 11 --local\n"
      "  kvstow bench compare --batch 4 --page-tokens 32 --shared int8,kvstow\n"
      "  kvstow bench compare --peers kvstow,loop --page-tokens 256 --format json");
  verb.Run([flags] {
    const absl::Status status = Compare(*flags);
    return status.ok() ? kDone : Fail(flags->output, status);
  });
}

}  // namespace kvstow::cli
