#include "client/cli/bench/compare_link.h"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "client/cli/bench/load.h"
#include "client/cli/text.h"
#include "client/planner/outcome.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"

namespace kvstow::cli {
namespace {

// A row is limited by the link from this share of its speed on, and by the cores where they work
// this share of the time.
constexpr double kLinkIsFull = 0.9, kCoresAreFull = 0.85;

// Facts of a recipe that are known before its pages travel.
struct Coding {
  planner::RecipeSize size;  // with the speed of as many decoders as work at once
  double one_decoder_gbps = 0;
};
using Codings = std::map<std::string, Coding>;

// The prefix with one contender.
struct PrefixRow {
  std::string name, recipe;
  double put_s = 0, get_s = 0;  // of the whole prefix
  double cpu_s = 0;             // of both ends, during a get
};

// Starts a contender on the servers' side. Leaves this thread on the clients' side.
absl::StatusOr<std::unique_ptr<Peer>> Start(const Link& link, const Contender& contender) {
  KVSTOW_RETURN_IF_ERROR(link.Enter(Link::kServers));
  auto peer = contender.start();
  KVSTOW_RETURN_IF_ERROR(link.Enter(Link::kClients));
  return peer;
}

// Returns the GB/s of raw values that `threads` decoders give together, each from its own bytes
// and into memory that is in no cache.
absl::StatusOr<double> DecodeGbps(const EncodedPage& page, size_t raw_bytes, uint32_t threads) {
  constexpr size_t kColdBytes = size_t{64} << 20;
  std::vector<std::vector<uint8_t>> out(threads);
  for (auto& bytes : out) bytes.assign(std::max(kColdBytes, raw_bytes), 1);
  std::vector<absl::Status> status(threads);
  std::vector<uint64_t> decoded(threads);
  const Time start = Clock::Real().Now();
  const double seconds = OnEveryClient(threads, [&](uint32_t t) {
    while (SecondsSince(start) < 0.5 && status[t].ok()) {
      for (size_t at = 0; at + raw_bytes <= out[t].size() && status[t].ok(); at += raw_bytes) {
        status[t] =
            DecodePage(page.header, page.segments, std::span(out[t]).subspan(at, raw_bytes));
        decoded[t] += raw_bytes;
      }
    }
  });
  uint64_t bytes = 0;
  for (uint32_t t = 0; t < threads; ++t) {
    KVSTOW_RETURN_IF_ERROR(status[t]);
    bytes += decoded[t];
  }
  return GigabytesPerSecond(bytes, seconds);
}

uint32_t MostClients(const LinkComparison& compared) {
  return *std::ranges::max_element(compared.rounds.clients);
}

// The number of decoders that work at once in the prefix.
uint32_t Decoders(const LinkComparison& compared) {
  return std::min(MostClients(compared), std::max(1u, std::thread::hardware_concurrency()));
}

absl::StatusOr<Codings> CodingsOf(const LinkComparison& compared) {
  const KvSpec& spec = compared.rounds.spec;
  Codings out;
  for (const Contender& contender : compared.contenders) {
    if (out.contains(contender.recipe)) continue;
    Coding& coding = out[contender.recipe];
    KVSTOW_ASSIGN_OR_RETURN(coding.size, planner::SizeOfRecipe(contender.recipe, spec));
    if (contender.recipe == "raw") continue;  // nothing to decode
    KVSTOW_ASSIGN_OR_RETURN(const auto parsed, ParseRecipe(contender.recipe));
    KVSTOW_ASSIGN_OR_RETURN(const auto codec, MakeCodec(parsed, spec));
    const std::vector<uint8_t> raw = MakePage(spec, 0);
    KVSTOW_ASSIGN_OR_RETURN(const EncodedPage page,
                            codec->Encode({.raw = raw, .tokens = spec.page_tokens}));
    KVSTOW_ASSIGN_OR_RETURN(coding.one_decoder_gbps, DecodeGbps(page, raw.size(), 1));
    KVSTOW_ASSIGN_OR_RETURN(const double all, DecodeGbps(page, raw.size(), Decoders(compared)));
    coding.size.decode_bytes_per_s = all * 1e9;
    coding.size.decode_origin = planner::Origin::kMeasured;
  }
  return out;
}

// Has one contender store the prefix, and give it back `rounds` times. The pages are spread over as
// many sessions as there may be clients, each of which gets its part in one call.
absl::StatusOr<PrefixRow> RunPrefix(Peer& peer, const LinkComparison& compared) {
  const RoundsPlan& plan = compared.rounds;
  const uint32_t clients = MostClients(compared);
  const std::vector<uint8_t> page = MakePage(plan.spec, 0);
  const size_t pages = (compared.prefix_tokens + plan.spec.page_tokens - 1) / plan.spec.page_tokens;
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::vector<Item>> items;
  for (uint32_t c = 0; c < clients; ++c) {
    const size_t first = pages * c / clients, end = pages * (c + 1) / clients;
    if (first == end) continue;
    KVSTOW_ASSIGN_OR_RETURN(sessions.emplace_back(), peer.Connect());
    const std::span<uint8_t> buffer = sessions.back()->Buffer((end - first) * page.size());
    items.emplace_back();
    for (size_t p = first; p < end; ++p) {
      items.back().push_back(
          {absl::StrCat("p", p), buffer.subspan((p - first) * page.size(), page.size())});
      std::ranges::copy(page, items.back().back().value.begin());
    }
  }
  PrefixRow row{.name = peer.name()};
  const double gigabytes = static_cast<double>(pages * page.size()) * 1e-9;
  KVSTOW_ASSIGN_OR_RETURN(const Sample put,
                          Measure(peer, sessions, items, plan.batch, {&Session::Put}));
  std::vector<Sample> gets;
  for (uint32_t round = 0; round <= plan.rounds; ++round) {
    KVSTOW_ASSIGN_OR_RETURN(
        Sample get,
        Measure(peer, sessions, items, pages, {.each = &Session::Get, .first = &Session::LookUp}));
    if (round > 0) gets.push_back(std::move(get));  // the first one warms up
  }
  const Sample get = Summary(gets);
  row.put_s = gigabytes / put.gbps;
  row.get_s = gigabytes / get.gbps;
  row.cpu_s = get.cpu_s_per_gb * gigabytes;
  return row;
}

absl::StatusOr<std::vector<PrefixRow>> RunPrefixes(const Link& link,
                                                   const LinkComparison& compared) {
  std::vector<PrefixRow> out;
  if (compared.prefix_tokens == 0) return out;
  Progress progress("fetching prefixes", compared.contenders.size(), "stores");
  for (const Contender& contender : compared.contenders) {
    KVSTOW_ASSIGN_OR_RETURN(const std::unique_ptr<Peer> peer, Start(link, contender));
    KVSTOW_ASSIGN_OR_RETURN(PrefixRow row, RunPrefix(*peer, compared));
    row.recipe = contender.recipe;
    out.push_back(std::move(row));
    progress.Update(out.size());
  }
  return out;
}

// The best of the rivals with that operation and number of clients; 0 without rivals.
double BestRival(const std::map<RowKey, Sample>& rows, const std::vector<std::string>& names,
                 const RowKey& of) {
  double best = 0;
  for (const auto& [key, row] : rows) {
    if (key.operation == of.operation && key.clients == of.clients && IsRival(names[key.peer]))
      best = std::max(best, row.gbps);
  }
  return best;
}

std::string LimitOf(double of_link, double busy) {
  if (of_link >= kLinkIsFull) return "link";
  return busy >= kCoresAreFull ? "cores" : "waiting";
}

std::string OrDash(double value, int digits) {
  return value > 0 ? FormatFixed(value, digits) : "-";
}

struct Tables {
  Json json = Json::object();
  std::string text;
};

// A row for each contender, in groups of an operation and a number of clients.
void AddRates(const LinkComparison& compared, const Codings& codings,
              const std::vector<std::string>& names, const Rows& all, Tables& out) {
  std::map<RowKey, Sample> rows;
  for (const auto& [key, samples] : all) rows[key] = Summary(samples);
  Json list = Json::array();
  std::vector<std::vector<std::string>> table;
  for (const auto& [key, row] : rows) {
    const Coding& coding = codings.at(compared.contenders[key.peer].recipe);
    const double rival = BestRival(rows, names, key);
    const double of_link = row.gbps * 1e9 / coding.size.ratio / compared.bytes_per_s;
    const double p50 = Percentile(row.us, 0.5), p99 = Percentile(row.us, 0.99);
    list.push_back({{"operation", key.operation},
                    {"clients", key.clients},
                    {"peer", names[key.peer]},
                    {"gbps", row.gbps},
                    {"of_best_rival", rival > 0 ? Json(row.gbps / rival) : Json()},
                    {"of_link", of_link},
                    {"cores_busy", row.busy},
                    {"limit", LimitOf(of_link, row.busy)},
                    {"cpu_s_per_gb", row.cpu_s_per_gb},
                    {"p50_us", p50},
                    {"p99_us", p99}});
    table.push_back({key.operation, absl::StrCat(key.clients), names[key.peer],
                     FormatFixed(row.gbps, 2), OrDash(rival > 0 ? row.gbps / rival : 0, 2),
                     FormatFixed(of_link, 2), FormatFixed(row.busy, 2), LimitOf(of_link, row.busy),
                     FormatFixed(row.cpu_s_per_gb, 2), FormatFixed(p50 / 1e3, 1),
                     FormatFixed(p99 / 1e3, 1)});
  }
  out.json["rows"] = list;
  absl::StrAppend(&out.text, FormatTable({"OPERATION", "CLIENTS", "STORE", "GB/s", "xRIVAL",
                                          "xLINK", "BUSY", "LIMIT", "CPU s/GB", "P50 ms", "P99 ms"},
                                         table));
}

void AddDecoders(const LinkComparison& compared, const Codings& codings, Tables& out) {
  Json list = Json::array();
  std::vector<std::vector<std::string>> table;
  for (const auto& [name, coding] : codings) {
    if (coding.one_decoder_gbps <= 0) continue;
    const double link = compared.bytes_per_s * coding.size.ratio * 1e-9;
    const double all = coding.size.decode_bytes_per_s * 1e-9;
    list.push_back({{"recipe", name},
                    {"ratio", coding.size.ratio},
                    {"link_gbps", link},
                    {"one_decoder_gbps", coding.one_decoder_gbps},
                    {"decoders", Decoders(compared)},
                    {"decoders_gbps", all}});
    table.push_back({name, FormatFixed(coding.size.ratio, 2), FormatFixed(link, 2),
                     FormatFixed(coding.one_decoder_gbps, 2), FormatFixed(all, 2)});
  }
  out.json["recipes"] = list;
  if (table.empty()) return;
  absl::StrAppend(
      &out.text, "\n",
      FormatTable({"RECIPE", "RATIO", "LINK x RATIO, GB/s", "ONE DECODER, GB/s",
                   absl::StrCat(Decoders(compared), " DECODERS, GB/s")},
                  table),
      "decoders alone, on idle cores; over the link they share the cores with both ends\n");
}

// The command that prints the same prediction.
std::string PlanCommand(const LinkComparison& compared, const Codings& codings) {
  std::string out =
      absl::StrCat("kvstow plan --model ", kModelOverLink, " --kv-dtype f16 --page-tokens ",
                   compared.rounds.spec.page_tokens, " --prompt ", compared.prefix_tokens,
                   " --link ", FormatFixed(compared.bytes_per_s * 8e-9, 3), "Gbit/s");
  for (const auto& [name, coding] : codings) {
    absl::StrAppend(&out, " --recipe '", name);
    if (coding.size.decode_bytes_per_s > 0)
      absl::StrAppend(&out, "@", FormatFixed(coding.size.decode_bytes_per_s * 1e-9, 2), "GB/s");
    absl::StrAppend(&out, "'");
  }
  return out;
}

// What the planner says of a prefix, and what this machine adds: both ends share its cores.
struct Prediction {
  planner::FetchTime plan;  // of all tokens
  double cores_s = 0;       // that all cores together have to work
  std::string limit() const {
    return cores_s > plan.seconds() ? "cores" : std::string(plan.limit());
  }
};

Prediction Predict(const LinkComparison& compared, const planner::RecipeSize& size,
                   const PrefixRow& row) {
  const KvSpec& spec = compared.rounds.spec;
  const double tokens = compared.prefix_tokens;
  Prediction out{.cores_s = row.cpu_s / std::max(1u, std::thread::hardware_concurrency())};
  out.plan = planner::TimeToFetch({.link_bytes_per_s = compared.bytes_per_s}, 0,
                                  PageBytes(spec, spec.page_tokens) / spec.page_tokens, size);
  out.plan.link_s *= tokens;
  out.plan.decode_s *= tokens;
  return out;
}

// The prefix, a row for each contender.
void AddPrefixes(const LinkComparison& compared, const Codings& codings,
                 const std::vector<PrefixRow>& prefixes, Tables& out) {
  if (prefixes.empty()) return;
  double rival = 0;
  for (const PrefixRow& row : prefixes) {
    if (IsRival(row.name)) rival = rival > 0 ? std::min(rival, row.get_s) : row.get_s;
  }
  const KvSpec& spec = compared.rounds.spec;
  const uint64_t raw =
      PageBytes(spec, spec.page_tokens) / spec.page_tokens * compared.prefix_tokens;
  Json list = Json::array();
  std::vector<std::vector<std::string>> table;
  for (const PrefixRow& row : prefixes) {
    const planner::RecipeSize& size = codings.at(row.recipe).size;
    const Prediction predicted = Predict(compared, size, row);
    const planner::FetchTime& plan = predicted.plan;
    const auto stored = static_cast<double>(size.StoredBytes(raw));
    list.push_back({{"peer", row.name},
                    {"stored_bytes", stored},
                    {"put_s", row.put_s},
                    {"first_token_s", row.get_s},
                    {"rival_over_ours", rival > 0 ? Json(rival / row.get_s) : Json()},
                    {"plan_first_token_s", plan.seconds()},
                    {"of_plan", row.get_s / plan.seconds()},
                    {"plan_link_s", plan.link_s},
                    {"plan_decode_s", plan.decode_s},
                    {"cores_s", predicted.cores_s},
                    {"limit", predicted.limit()}});
    table.push_back({row.name, FormatFixed(stored * 1e-9, 2), FormatFixed(row.put_s, 2),
                     FormatFixed(row.get_s, 2), OrDash(rival > 0 ? rival / row.get_s : 0, 2),
                     FormatFixed(plan.seconds(), 2), FormatFixed(row.get_s / plan.seconds(), 2),
                     FormatFixed(plan.link_s, 2), OrDash(plan.decode_s, 2),
                     FormatFixed(predicted.cores_s, 2), predicted.limit()});
  }
  out.json["prefix"] = {{"model", kModelOverLink},
                        {"tokens", compared.prefix_tokens},
                        {"raw_bytes", raw},
                        {"plan", PlanCommand(compared, codings)},
                        {"rows", list}};
  absl::StrAppend(
      &out.text, "\na prefix of ", compared.prefix_tokens, " tokens of ", kModelOverLink, ", ",
      FormatFixed(static_cast<double>(raw) * 1e-9, 2), " GB raw, in ", MostClients(compared),
      " calls at once: seconds to the first token, when all of it is there\n",
      FormatTable({"STORE", "GB SENT", "PUT s", "FIRST TOKEN s", "xRIVAL", "PLAN s", "OF PLAN",
                   "LINK s", "DECODER s", "CORES s", "LIMIT"},
                  table),
      "LINK, DECODER: the parts of the plan, of which the slower counts. CORES: what both ends "
      "have "
      "to compute, on all cores of\nthis machine; two machines have more. The plan is that of\n  ",
      PlanCommand(compared, codings), "\n");
}

}  // namespace

absl::StatusOr<KvSpec> SpecOverLink(uint32_t page_tokens) {
  KVSTOW_ASSIGN_OR_RETURN(const planner::ModelKv model, planner::LoadModel(kModelOverLink, "f16"));
  KVSTOW_ASSIGN_OR_RETURN(const planner::RankKv rank, planner::DivideOverRanks(model, 1));
  KVSTOW_ASSIGN_OR_RETURN(KvSpec spec, planner::SpecOfRank(model, rank, page_tokens));
  spec.revision = kUnversioned;
  return spec;
}

absl::Status CompareOverLink(const OutputFlags& output, const Link& link,
                             const LinkComparison& compared) {
  KVSTOW_RETURN_IF_ERROR(link.Enter(Link::kClients));
  KVSTOW_ASSIGN_OR_RETURN(const Codings codings, CodingsOf(compared));
  std::vector<std::string> names;
  Rows rows;
  {
    std::vector<std::unique_ptr<Peer>> peers;
    for (const Contender& contender : compared.contenders) {
      KVSTOW_ASSIGN_OR_RETURN(peers.emplace_back(), Start(link, contender));
      names.push_back(peers.back()->name());
    }
    KVSTOW_ASSIGN_OR_RETURN(rows, RunRounds(compared.rounds, peers));
  }
  KVSTOW_ASSIGN_OR_RETURN(const std::vector<PrefixRow> prefixes, RunPrefixes(link, compared));
  const RoundsPlan& plan = compared.rounds;
  const uint64_t value = PageBytes(plan.spec, plan.spec.page_tokens);
  Tables tables;
  tables.json = {{"link_bytes_per_s", compared.bytes_per_s},
                 {"mtu", Link::kMtu},
                 {"value_bytes", value},
                 {"batch", plan.batch},
                 {"rounds", plan.rounds}};
  tables.text = absl::StrCat(
      "values of ", FormatSize(value), ", ", plan.batch, " in a call; medians of ", plan.rounds,
      " rounds in turns; a link of ", FormatFixed(compared.bytes_per_s * 8e-9, 3), " Gbit/s, ",
      FormatFixed(compared.bytes_per_s * 1e-9, 3), " GB/s, each way, packets of ", Link::kMtu,
      " bytes\nGB/s are of fp16 values. xRIVAL: of the best of Redis and memcached; xLINK: bytes "
      "of "
      "values on the wire, of the link; BUSY: share of all cores. CPU: both ends, seconds a GB\n");
  AddRates(compared, codings, names, rows, tables);
  AddDecoders(compared, codings, tables);
  AddPrefixes(compared, codings, prefixes, tables);
  Print(output, tables.json, tables.text);
  return absl::OkStatus();
}

}  // namespace kvstow::cli
