// kvstow replay: a trace against a live server, with real pages.
#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/case/case_file.h"
#include "client/cli/bench/load.h"
#include "client/cli/case_pages.h"
#include "client/cli/cli.h"
#include "client/cli/payload_flags.h"
#include "client/cli/text.h"
#include "client/key_chain.h"
#include "storage/trace/routing.h"
#include "storage/trace/trace_reader.h"

namespace kvstow::cli {
namespace {

constexpr uint64_t kBatchBytes = 16 << 20;  // of pages in one call
constexpr uint32_t kRandomPages = 16;       // of different content; keys are many more

struct Flags {
  OutputFlags output;
  ServerFlags server;
  PayloadFlags payload;
  std::string trace, content, space = "kvstow-replay", recipe;
  std::vector<std::string> nodes;  // in place of server.address
  std::string routing = "random";
  double rate = 0;
  uint64_t requests = 0;
  uint32_t clients = 1;
  KvSpec spec;
};

// The content of pages: any of these stands for any block.
struct Content {
  KvSpec spec;
  std::vector<std::vector<uint8_t>> pages;  // full ones
};

absl::StatusOr<Content> RandomContent(const Flags& flags) {
  KVSTOW_RETURN_IF_ERROR(Validate(flags.spec));
  Content content{.spec = flags.spec, .pages = {}};
  for (uint32_t i = 0; i < kRandomPages; ++i) content.pages.push_back(MakePage(flags.spec, i));
  return content;
}

absl::StatusOr<Content> CaseContent(const Flags& flags) {
  KVSTOW_ASSIGN_OR_RETURN(CaseFile file, CaseFile::Open(flags.content));
  const CasePages pages = CutCase(std::move(file), flags.spec.page_tokens);
  Content content{.spec = pages.spec, .pages = {}};
  for (size_t i = 0; i < pages.keys.size() && pages.Count(i) == pages.spec.page_tokens; ++i) {
    content.pages.emplace_back(pages.Bytes(i));
    pages.file.ReadPage(pages.First(i), pages.Count(i), content.pages.back());
  }
  if (!content.pages.empty()) return content;
  return absl::InvalidArgumentError(absl::StrCat(
      flags.content, " has ", pages.tokens(), " tokens, less than one page of ",
      pages.spec.page_tokens, ": give a smaller --page-tokens, which then stands for a block"));
}

// Keys of a trace's blocks: the same block behind the same prefix has the same key.
std::vector<std::string> KeysOf(const TraceRequest& request) {
  std::vector<std::string> keys;
  for (const uint64_t block : request.blocks) {
    const int32_t id[] = {static_cast<int32_t>(block), static_cast<int32_t>(block >> 32)};
    keys.push_back(PageKey(keys.empty() ? "" : keys.back(), id));
  }
  return keys;
}

struct Totals {
  uint64_t requests = 0, late = 0, blocks = 0, hits = 0, lost = 0;
  uint64_t stored = 0, refused = 0;
  uint64_t get_bytes = 0, put_bytes = 0, stored_bytes = 0;
  double get_s = 0, put_s = 0;
  std::map<std::string, uint64_t> tiers;
  std::vector<double> lookup_us, get_us, put_us;  // of each request that did so
  std::string failure;                            // the first
};

void Add(Totals& sum, Totals one) {
  for (uint64_t Totals::*const field :
       {&Totals::requests, &Totals::late, &Totals::blocks, &Totals::hits, &Totals::lost,
        &Totals::stored, &Totals::refused, &Totals::get_bytes, &Totals::put_bytes,
        &Totals::stored_bytes}) {
    sum.*field += one.*field;
  }
  sum.get_s += one.get_s;
  sum.put_s += one.put_s;
  for (const auto& [tier, pages] : one.tiers) sum.tiers[tier] += pages;
  for (std::vector<double> Totals::*const list :
       {&Totals::lookup_us, &Totals::get_us, &Totals::put_us}) {
    (sum.*list).insert((sum.*list).end(), (one.*list).begin(), (one.*list).end());
  }
  if (sum.failure.empty()) sum.failure = std::move(one.failure);
}

// One worker: looks each prompt up, fetches what is there and stores the rest. It has a client of
// each node.
class Worker {
 public:
  Worker(std::vector<std::unique_ptr<Client>> clients, const std::string& space,
         const Content& content)
      : clients_(std::move(clients)), space_(space), content_(content) {
    const size_t page = content.pages[0].size();
    buffers_.assign(std::max<size_t>(1, kBatchBytes / page), std::vector<uint8_t>(page));
  }

  // A call that fails as a whole ends the replay.
  absl::Status Serve(const TraceRequest& request, uint32_t node) {
    Client& client = *clients_[node];
    const std::vector<std::string> keys = KeysOf(request);
    const Time start = Clock::Real().Now();
    const PrefixHit hit = client.Lookup(space_, keys);
    KVSTOW_RETURN_IF_ERROR(hit.status);
    totals_.lookup_us.push_back(SecondsSince(start) * 1e6);
    ++totals_.requests;
    totals_.blocks += keys.size();
    size_t have = 0;
    if (hit.pages > 0) {
      have = Get(client, std::span(keys).first(hit.pages), hit.lease);
      KVSTOW_RETURN_IF_ERROR(client.Release(hit.lease));
    }
    totals_.hits += have;
    totals_.lost += hit.pages - have;
    if (have < keys.size()) Put(client, request, keys, have);
    return absl::OkStatus();
  }

  Totals totals() && { return std::move(totals_); }

 private:
  // How many leading pages came.
  size_t Get(Client& client, std::span<const std::string> keys, uint64_t lease) {
    const Time start = Clock::Real().Now();
    size_t have = 0;
    for (size_t first = 0; first == have && first < keys.size(); first += buffers_.size()) {
      std::vector<PageGet> gets;
      for (size_t i = 0; i < std::min(buffers_.size(), keys.size() - first); ++i) {
        gets.push_back({.key = keys[first + i], .out = buffers_[i]});
      }
      for (const GetResult& r : client.Get(space_, lease, std::move(gets)).get()) {
        if (r.outcome != PageOutcome::kHit) break;  // what is behind it is worth nothing
        ++have;
        ++totals_.tiers[r.tier];
        totals_.get_bytes += r.bytes;
      }
    }
    const double seconds = SecondsSince(start);
    totals_.get_s += seconds;
    totals_.get_us.push_back(seconds * 1e6);
    return have;
  }

  void Put(Client& client, const TraceRequest& request, const std::vector<std::string>& keys,
           size_t first) {
    const Time start = Clock::Real().Now();
    const uint32_t tokens = content_.spec.page_tokens;
    while (first < keys.size()) {
      std::vector<PagePut> puts;
      for (; first < keys.size() && puts.size() < buffers_.size(); ++first) {
        puts.push_back({.key = keys[first],
                        .raw = content_.pages[request.blocks[first] % content_.pages.size()],
                        .tokens = tokens,
                        .first_position = first * tokens});
      }
      for (const PutResult& r : client.Put(space_, std::move(puts)).get()) Count(r);
    }
    const double seconds = SecondsSince(start);
    totals_.put_s += seconds;
    totals_.put_us.push_back(seconds * 1e6);
  }

  void Count(const PutResult& r) {
    if (r.outcome == PageOutcome::kStored) {
      ++totals_.stored;
      totals_.put_bytes += content_.pages[0].size();
      totals_.stored_bytes += r.stored_bytes;
    } else if (r.outcome != PageOutcome::kAlreadyThere) {
      ++totals_.refused;
      if (totals_.failure.empty()) {
        totals_.failure = absl::StrCat(OutcomeName(r.outcome), ": ", r.message);
      }
    }
  }

  const std::vector<std::unique_ptr<Client>> clients_;
  const std::string& space_;
  const Content& content_;
  std::vector<std::vector<uint8_t>> buffers_;
  Totals totals_;
};

struct Replay {
  Totals totals;
  double seconds = 0;
};

// A worker that is connected to each node, where the space is open.
absl::StatusOr<std::unique_ptr<Worker>> Connected(const Flags& flags, const Content& content) {
  std::vector<std::unique_ptr<Client>> clients;
  for (const std::string& node : flags.nodes) {
    ServerFlags server = flags.server;
    if (!node.empty()) server.server = node;
    KVSTOW_ASSIGN_OR_RETURN(auto client, ConnectWith(server, flags.payload));
    KVSTOW_RETURN_IF_ERROR(
        client->OpenSpace({.name = flags.space, .spec = content.spec, .recipe = flags.recipe})
            .status());
    clients.push_back(std::move(client));
  }
  return std::make_unique<Worker>(std::move(clients), flags.space, content);
}

// Requests go out in their order, at their time over `rate` or as soon as a worker is free.
absl::StatusOr<Replay> RunReplay(const Flags& flags, const Trace& trace, const Content& content) {
  const uint64_t end =
      std::min<uint64_t>(flags.requests > 0 ? flags.requests : UINT64_MAX, trace.requests.size());
  std::vector<std::unique_ptr<Worker>> workers;
  for (uint32_t c = 0; c < flags.clients; ++c) {
    KVSTOW_ASSIGN_OR_RETURN(auto worker, Connected(flags, content));
    workers.push_back(std::move(worker));
  }
  const Routing routing =
      flags.routing == RoutingName(Routing::kRandom) ? Routing::kRandom : Routing::kAffinity;
  const std::vector<uint32_t> nodes =
      NodesOf(trace, routing, static_cast<uint32_t>(flags.nodes.size()), /*seed=*/1);
  Progress progress("replaying", end, "requests");
  std::atomic<uint64_t> next = 0, late = 0;
  Mutex mu;
  absl::Status failed;
  const Time start = Clock::Real().Now();
  Replay replay;
  replay.seconds = OnEveryClient(flags.clients, [&](uint32_t c) {
    for (uint64_t i = next++; i < end; i = next++) {
      if (flags.rate > 0) {
        const auto due = std::chrono::duration<double>(trace.requests[i].time_s / flags.rate);
        const double wait = due.count() - SecondsSince(start);
        late += wait < -0.001 ? 1 : 0;
        if (wait > 0) std::this_thread::sleep_for(std::chrono::duration<double>(wait));
      }
      const absl::Status status = workers[c]->Serve(trace.requests[i], nodes[i]);
      MutexLock lock(mu);
      failed.Update(status);
      if (!failed.ok()) return;
      progress.Update(i + 1);
    }
  });
  KVSTOW_RETURN_IF_ERROR(failed);
  for (const auto& worker : workers) Add(replay.totals, std::move(*worker).totals());
  replay.totals.late = late;
  return replay;
}

Json LatencyJson(std::vector<double> us) {
  if (us.empty()) return Json();
  std::sort(us.begin(), us.end());
  return {{"calls", us.size()}, {"p50_us", Percentile(us, 0.5)}, {"p99_us", Percentile(us, 0.99)}};
}

std::vector<std::string> LatencyRow(const char* name, std::vector<double> us,
                                    const std::string& gbps) {
  if (us.empty()) return {name, "0", "-", "-", "-"};
  std::sort(us.begin(), us.end());
  return {name, absl::StrCat(us.size()), gbps, FormatFixed(Percentile(us, 0.5) / 1e3, 2),
          FormatFixed(Percentile(us, 0.99) / 1e3, 2)};
}

void Report(const Flags& flags, const Replay& replay) {
  const Totals& t = replay.totals;
  const auto share = [&](uint64_t n) {
    return t.blocks > 0 ? static_cast<double>(n) / static_cast<double>(t.blocks) : 0;
  };
  Json tiers = Json::object();
  std::string text;
  for (const auto& [tier, pages] : t.tiers) {
    tiers[tier] = share(pages);
    absl::StrAppend(&text, text.empty() ? "" : ", ", tier, " ", FormatFixed(share(pages), 4));
  }
  const double get = GigabytesPerSecond(t.get_bytes, t.get_s);
  const double put = GigabytesPerSecond(t.put_bytes, t.put_s);
  Print(flags.output,
        {{"trace", flags.trace},
         {"requests", t.requests},
         {"late", t.late},
         {"seconds", replay.seconds},
         {"blocks", t.blocks},
         {"hit_rate", share(t.hits)},
         {"hit_rate_by_tier", tiers},
         {"lost", t.lost},
         {"stored", t.stored},
         {"refused", t.refused},
         {"failure", t.failure},
         {"raw_bytes", t.put_bytes},
         {"stored_bytes", t.stored_bytes},
         {"get_gbps", get},
         {"put_gbps", put},
         {"lookup", LatencyJson(t.lookup_us)},
         {"get", LatencyJson(t.get_us)},
         {"put", LatencyJson(t.put_us)}},
        absl::StrCat(
            FormatFields(
                {{"requests", absl::StrCat(t.requests, " in ", FormatFixed(replay.seconds, 1),
                                           " s, ", t.late, " of them late")},
                 {"hit rate", absl::StrCat(FormatFixed(share(t.hits), 4), " of ", t.blocks,
                                           " blocks", text.empty() ? "" : ": ", text)},
                 {"lost", absl::StrCat(t.lost, " blocks that were found did not come")},
                 {"stored",
                  absl::StrCat(t.stored, " pages, ", FormatRatio(t.put_bytes, t.stored_bytes), "; ",
                               t.refused, " refused", t.failure.empty() ? "" : ": ", t.failure)}}),
            "\n",
            FormatTable({"OF A REQUEST", "CALLS", "GB/s", "P50 ms", "P99 ms"},
                        {LatencyRow("lookup", t.lookup_us, "-"),
                         LatencyRow("get", t.get_us, FormatFixed(get, 2)),
                         LatencyRow("put", t.put_us, FormatFixed(put, 2))})));
}

int ReplayVerb(Flags flags, bool page_tokens_given) {
  const absl::StatusOr<Trace> trace = LoadTrace(flags.trace);
  if (!trace.ok()) return Fail(flags.output, trace.status());
  if (!page_tokens_given) flags.spec.page_tokens = trace->block_tokens;
  const absl::StatusOr<Content> content =
      flags.content.empty() ? RandomContent(flags) : CaseContent(flags);
  if (!content.ok()) {
    Fail(flags.output, content.status());
    return kWrongUse;
  }
  const absl::StatusOr<Replay> replay = RunReplay(flags, *trace, *content);
  if (!replay.ok()) return Fail(flags.output, replay.status());
  Report(flags, *replay);
  return kDone;
}

}  // namespace

void AddReplay(const Verb& app) {
  const Verb verb = app.Add(
      "replay", "A trace against a live server: every prompt is looked up, fetched and stored");
  const auto flags = std::make_shared<Flags>();
  flags->spec = {.model = "replay", .revision = kUnversioned, .layers = 2, .kv_heads = 1};
  flags->spec.head_dim_k = flags->spec.head_dim_v = 64;
  AddServerFlags(verb, flags->server);
  AddOutputFlags(verb, flags->output);
  AddPayloadFlags(verb, flags->payload);
  verb.Option("trace", flags->trace,
              "a trace of the Mooncake or Bailian schema (JSON lines; .gz too)")
      .Required();
  const Flag nodes =
      verb.Option("--nodes", flags->nodes,
                  "servers that share the requests, in place of --server, with commas");
  nodes.OneValueEach().SplitAt(',');
  verb.Option("--routing", flags->routing,
              "random: a request goes to any node; affinity: a session, or prompts that begin "
              "alike, go to one")
      .OneOf({RoutingName(Routing::kRandom), RoutingName(Routing::kAffinity)})
      .ShowDefault()
      .Needs(nodes);
  verb.Option("--rate", flags->rate,
              "how much faster than the trace; 0: as fast as it goes, one after the other")
      .Within(0.0, 1e9)
      .ShowDefault();
  verb.Option("--requests", flags->requests, "only the first so many; 0: all").ShowDefault();
  verb.Option("--clients", flags->clients, "requests at once, each with its connections")
      .Within(1, 256)
      .ShowDefault();
  verb.Option("--content", flags->content,
              "a case whose pages are stored, over and over; random values if left out");
  verb.Option("--recipe", flags->recipe, "codec; the server's default if left out");
  verb.Option("--space", flags->space, "space to use; what is stored stays there").ShowDefault();
  verb.Option("--layers", flags->spec.layers, "of random values").ShowDefault();
  verb.Option("--kv-heads", flags->spec.kv_heads, "of random values").ShowDefault();
  verb.Option("--head-dim", flags->spec.head_dim_k, "of random values").ShowDefault();
  const Flag page_tokens = verb.Option(
      "--page-tokens", flags->spec.page_tokens,
      "tokens of a page, which stands for a block; those of the trace's blocks if left out");
  page_tokens.Within(1u, kMaxPageTokens);
  verb.Footer(
      "Examples:\n  kvstow replay conversation_trace.jsonl\n"
      "  kvstow replay --rate 10 --clients 8 --recipe kvstow conversation_trace.jsonl.gz\n"
      "  kvstow replay --nodes 10.0.0.1:7380,10.0.0.2:7380 conversation_trace.jsonl\n"
      "  kvstow replay --content prompt.safetensors --page-tokens 64 --requests 1000 trace.jsonl\n"
      "The hit rate is that of `kvstow simulate`: leading blocks that came, of all blocks.");
  verb.Run([flags, page_tokens] {
    flags->spec.head_dim_v = flags->spec.head_dim_k;
    if (flags->nodes.empty()) flags->nodes = {""};  // that of --server
    return ReplayVerb(*flags, page_tokens.given());
  });
}

}  // namespace kvstow::cli
