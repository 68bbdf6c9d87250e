// kvstow bench: put and get load on a live server.
#include <algorithm>
#include <functional>
#include <future>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "client/cli/bench/load.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"
#include "kernels/page/page.h"

namespace kvstow::cli {
namespace {

struct Flags {
  OutputFlags output;
  ServerFlags server;
  std::string space = "kvstow-bench", recipe;
  uint32_t clients = 1, pages = 64, batch = 4, layers_per_run = 0;
  KvSpec spec;
};

// The work of one client, or why it stopped.
struct ClientRun {
  absl::Status status;
  std::vector<double> put_us, get_us;  // of each call
};

struct Phase {
  std::string operation;
  double seconds = 0;
  std::vector<double> us;  // sorted
};

// Medians over the batches of one client, fetched by runs of layers, and then whole.
struct LayerTimes {
  uint32_t layers_per_run = 0;
  double first_us = 0, all_us = 0, whole_us = 0;
};

struct Results {
  std::vector<Phase> phases;
  LayerTimes layers;
};

std::vector<std::string> MakeKeys(const Flags& flags, uint32_t client) {
  const auto run = std::chrono::system_clock::now().time_since_epoch().count();
  std::vector<std::string> keys;
  for (uint32_t p = 0; p < flags.pages; ++p) {
    keys.push_back(absl::StrCat("bench-", run, "-", client, "-", p));
  }
  return keys;
}

// Calls fn(first key, count) for each batch; the latencies. `what` is shown with how far it is.
absl::Status ForEachBatch(const Flags& flags, const char* what, std::vector<double>& us,
                          const std::function<absl::Status(uint32_t, uint32_t)>& fn) {
  const std::unique_ptr<Progress> progress =
      what == nullptr ? nullptr : std::make_unique<Progress>(what, flags.pages, "pages a client");
  for (uint32_t first = 0; first < flags.pages; first += flags.batch) {
    const Time start = Clock::Real().Now();
    KVSTOW_RETURN_IF_ERROR(fn(first, std::min(flags.batch, flags.pages - first)));
    us.push_back(SecondsSince(start) * 1e6);
    if (progress) progress->Update(first);
  }
  return absl::OkStatus();
}

absl::Status Expect(PageOutcome got, PageOutcome wanted, const std::string& message) {
  if (got == wanted) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("a page was ", OutcomeName(got), " (", message,
                                          "): is the budget of ",
                                          "the server large enough for what the clients put?"));
}

absl::Status PutAll(Client& client, const Flags& flags, const std::vector<std::string>& keys,
                    const std::vector<uint8_t>& page, const char* what, std::vector<double>& us) {
  return ForEachBatch(flags, what, us, [&](uint32_t first, uint32_t count) {
    std::vector<PagePut> puts;
    for (uint32_t p = first; p < first + count; ++p) {
      puts.push_back({.key = keys[p], .raw = page, .tokens = flags.spec.page_tokens});
    }
    for (const PutResult& r : client.Put(flags.space, std::move(puts)).get()) {
      KVSTOW_RETURN_IF_ERROR(Expect(r.outcome, PageOutcome::kStored, r.message));
    }
    return absl::OkStatus();
  });
}

using Buffers = std::vector<std::vector<uint8_t>>;

std::vector<PageGet> Gets(const std::vector<std::string>& keys, uint32_t first, uint32_t count,
                          Buffers& buffers) {
  std::vector<PageGet> gets;
  for (uint32_t i = 0; i < count; ++i) gets.push_back({.key = keys[first + i], .out = buffers[i]});
  return gets;
}

absl::Status ExpectHits(const std::vector<GetResult>& results) {
  for (const GetResult& r : results) {
    KVSTOW_RETURN_IF_ERROR(Expect(r.outcome, PageOutcome::kHit, r.message));
  }
  return absl::OkStatus();
}

absl::Status GetAll(Client& client, const Flags& flags, const std::vector<std::string>& keys,
                    size_t page_bytes, const char* what, std::vector<double>& us) {
  Buffers buffers(flags.batch, std::vector<uint8_t>(page_bytes));
  return ForEachBatch(flags, what, us, [&](uint32_t first, uint32_t count) {
    return ExpectHits(client.Get(flags.space, 0, Gets(keys, first, count, buffers)).get());
  });
}

// How soon a worker has the first layers of a batch, beside all of it.
absl::StatusOr<LayerTimes> TimeLayers(Client& client, const Flags& flags,
                                      const std::vector<std::string>& keys, size_t page_bytes) {
  KVSTOW_ASSIGN_OR_RETURN(const SpaceInfo space, client.FindSpace(flags.space));
  LayerTimes times{.layers_per_run =
                       flags.layers_per_run > 0 ? flags.layers_per_run : space.layers_per_run};
  Buffers buffers(flags.batch, std::vector<uint8_t>(page_bytes));
  std::vector<double> first_us, all_us, whole_us;
  KVSTOW_RETURN_IF_ERROR(ForEachBatch(flags, "layers", all_us, [&](uint32_t first, uint32_t count) {
    const Time start = Clock::Real().Now();
    std::promise<std::vector<GetResult>> done;
    client.GetLayersAsync(
        space, 0, Gets(keys, first, count, buffers), times.layers_per_run,
        [&](LayerRange layers, std::span<const GetResult>) {
          if (layers.first == 0) first_us.push_back(SecondsSince(start) * 1e6);
        },
        [&](std::vector<GetResult> results) { done.set_value(std::move(results)); });
    return ExpectHits(done.get_future().get());
  }));
  KVSTOW_RETURN_IF_ERROR(GetAll(client, flags, keys, page_bytes, nullptr, whole_us));
  const auto median = [](std::vector<double>& us) {
    std::sort(us.begin(), us.end());
    return Percentile(us, 0.5);
  };
  times.first_us = median(first_us);
  times.all_us = median(all_us);
  times.whole_us = median(whole_us);
  return times;
}

absl::StatusOr<Results> RunPhases(const Flags& flags) {
  const size_t page_bytes = PageBytes(flags.spec, flags.spec.page_tokens);
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::vector<std::string>> keys;
  std::vector<std::vector<uint8_t>> data;
  std::vector<ClientRun> runs(flags.clients);
  for (uint32_t c = 0; c < flags.clients; ++c) {
    clients.push_back(Connect(flags.server));
    keys.push_back(MakeKeys(flags, c));
    data.push_back(MakePage(flags.spec, c));
    KVSTOW_RETURN_IF_ERROR(
        clients[c]
            ->OpenSpace({.name = flags.space, .spec = flags.spec, .recipe = flags.recipe})
            .status());
  }
  // The first client shows how far all of them are: they do the same.
  const auto shown = [](const char* what, uint32_t c) { return c == 0 ? what : nullptr; };
  Results results{.phases = std::vector<Phase>(2), .layers = {}};
  std::vector<Phase>& phases = results.phases;
  phases[0].operation = "put";
  phases[0].seconds = OnEveryClient(flags.clients, [&](uint32_t c) {
    runs[c].status = PutAll(*clients[c], flags, keys[c], data[c], shown("put", c), runs[c].put_us);
  });
  phases[1].operation = "get";
  phases[1].seconds = OnEveryClient(flags.clients, [&](uint32_t c) {
    if (runs[c].status.ok()) {
      runs[c].status =
          GetAll(*clients[c], flags, keys[c], page_bytes, shown("get", c), runs[c].get_us);
    }
  });
  absl::StatusOr<LayerTimes> layers = TimeLayers(*clients[0], flags, keys[0], page_bytes);
  for (uint32_t c = 0; c < flags.clients; ++c) {
    const auto deleted = clients[c]->Delete(flags.space, keys[c], /*force=*/true);
    KVSTOW_RETURN_IF_ERROR(runs[c].status);
    KVSTOW_RETURN_IF_ERROR(deleted.status());
    phases[0].us.insert(phases[0].us.end(), runs[c].put_us.begin(), runs[c].put_us.end());
    phases[1].us.insert(phases[1].us.end(), runs[c].get_us.begin(), runs[c].get_us.end());
  }
  for (Phase& p : phases) std::sort(p.us.begin(), p.us.end());
  KVSTOW_ASSIGN_OR_RETURN(results.layers, std::move(layers));
  return results;
}

int Bench(const Flags& flags) {
  if (const absl::Status s = Validate(flags.spec); !s.ok()) {
    Fail(flags.output, s);
    return kWrongUse;
  }
  const absl::StatusOr<Results> results = RunPhases(flags);
  if (!results.ok()) return Fail(flags.output, results.status());
  const size_t page_bytes = PageBytes(flags.spec, flags.spec.page_tokens);
  const uint64_t bytes = uint64_t{flags.clients} * flags.pages * page_bytes;
  const double memcpy_gbps = MemcpyGbps(page_bytes);
  Json rows = Json::array();
  std::vector<std::vector<std::string>> table;
  for (const Phase& p : results->phases) {
    const double gbps = GigabytesPerSecond(bytes, p.seconds);
    const double p50 = Percentile(p.us, 0.5), p99 = Percentile(p.us, 0.99);
    rows.push_back({{"operation", p.operation},
                    {"clients", flags.clients},
                    {"bytes", bytes},
                    {"page_bytes", page_bytes},
                    {"batch", flags.batch},
                    {"gbps", gbps},
                    {"memcpy_gbps", memcpy_gbps},
                    {"p50_us", p50},
                    {"p99_us", p99}});
    table.push_back({p.operation, absl::StrCat(flags.clients), FormatSize(bytes),
                     FormatFixed(gbps, 2), FormatFixed(memcpy_gbps, 2),
                     FormatFixed(gbps / memcpy_gbps, 2), FormatFixed(p50 / 1e3, 2),
                     FormatFixed(p99 / 1e3, 2)});
  }
  const LayerTimes& layers = results->layers;
  const auto ms = [](double us) { return FormatFixed(us / 1e3, 2); };
  Print(flags.output,
        {{"recipe", flags.recipe},
         {"rows", rows},
         {"layers",
          {{"layers_per_run", layers.layers_per_run},
           {"first_us", layers.first_us},
           {"all_us", layers.all_us},
           {"whole_us", layers.whole_us}}}},
        absl::StrCat("pages of ", FormatSize(page_bytes), ", ", flags.batch, " in a call\n",
                     FormatTable({"OPERATION", "CLIENTS", "BYTES", "GB/s", "MEMCPY GB/s", "SHARE",
                                  "P50 ms", "P99 ms"},
                                 table),
                     "by runs of ", layers.layers_per_run, " layers: the first after ",
                     ms(layers.first_us), " ms, all after ", ms(layers.all_us),
                     " ms; whole pages after ", ms(layers.whole_us), " ms: the first after ",
                     FormatFixed(layers.first_us / layers.whole_us, 2), " of that\n"));
  return kDone;
}

}  // namespace

void AddBench(const Verb& app) {
  const Verb verb = app.Add("bench", "Put and get load on a live server; what it put is deleted");
  const auto flags = std::make_shared<Flags>();
  flags->spec = {
      .model = "bench", .revision = kUnversioned, .layers = 30, .kv_heads = 3, .page_tokens = 256};
  flags->spec.head_dim_k = flags->spec.head_dim_v = 64;
  AddServerFlags(verb, flags->server);
  AddOutputFlags(verb, flags->output);
  verb.Option("--clients", flags->clients, "clients at once, each with its connections")
      .Within(1, 256)
      .ShowDefault();
  verb.Option("--pages", flags->pages, "pages of each client").Within(1, 1000000).ShowDefault();
  verb.Option("--batch", flags->batch, "pages in one call").Within(1, 65536).ShowDefault();
  verb.Option("--layers-per-run", flags->layers_per_run,
              "of the pages that are fetched layer by layer; 0 = as the space says")
      .Within(0, 1024)
      .ShowDefault();
  verb.Option("--recipe", flags->recipe, "codec; the server's default if left out");
  verb.Option("--space", flags->space, "space to use").ShowDefault();
  verb.Option("--layers", flags->spec.layers, "of the synthetic model").ShowDefault();
  verb.Option("--kv-heads", flags->spec.kv_heads, "of the synthetic model").ShowDefault();
  verb.Option("--head-dim", flags->spec.head_dim_k, "of the synthetic model").ShowDefault();
  verb.Option("--page-tokens", flags->spec.page_tokens, "tokens of a page").ShowDefault();
  verb.Footer(
      "Examples:\n  kvstow bench --recipe raw --clients 4\n"
      "  kvstow bench compare            # kvstow, Redis and memcached, started here\n"
      "  kvstow bench overload           # more than a server can take\n"
      "  kvstow bench --layers 80 --kv-heads 8 --head-dim 128 --pages 16 --space big");
  AddBenchCompare(verb);
  AddBenchOverload(verb);
  verb.Run([flags] {
    flags->spec.head_dim_v = flags->spec.head_dim_k;
    return Bench(*flags);
  });
}

}  // namespace kvstow::cli
