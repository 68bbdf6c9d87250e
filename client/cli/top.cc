// kvstow top: what the server holds and does, at a glance and again and again.
#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
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

constexpr uint64_t kMinuteMs = 60'000, kHourMs = 60 * kMinuteMs;
constexpr size_t kRows = 6;      // of spaces, of slow calls, of failing ones
constexpr size_t kColumns = 60;  // of a curve; each is six minutes or less

struct Flags {
  OutputFlags output;
  ServerFlags server;
  bool once = false;
  double interval_s = 2;
};

struct Seen {
  v1::StatusResponse status;
  v1::UsageResponse usage;
  v1::AgesResponse ages;
  v1::ActivityResponse activity;
  v1::TenantsResponse tenants;
};

absl::StatusOr<Seen> Ask(Client& client) {
  Seen out;
  KVSTOW_ASSIGN_OR_RETURN(out.status, CallServer<v1::StatusResponse>(
                                          client, "/kvstow.v1.Admin/Status", v1::StatusRequest()));
  KVSTOW_ASSIGN_OR_RETURN(out.usage, CallServer<v1::UsageResponse>(
                                         client, "/kvstow.v1.KvCache/Usage", v1::UsageRequest()));
  KVSTOW_ASSIGN_OR_RETURN(
      out.ages, CallServer<v1::AgesResponse>(client, "/kvstow.v1.Admin/Ages", v1::AgesRequest()));
  KVSTOW_ASSIGN_OR_RETURN(
      out.activity,
      CallServer<v1::ActivityResponse>(client, "/kvstow.v1.Admin/Activity", v1::ActivityRequest()));
  KVSTOW_ASSIGN_OR_RETURN(
      out.tenants,
      CallServer<v1::TenantsResponse>(client, "/kvstow.v1.Admin/Tenants", v1::TenantsRequest()));
  return out;
}

// A name that somebody else chose: no control characters for the terminal, and not too long.
std::string Name(const std::string& text) {
  constexpr size_t kMost = 32;
  std::string out = text.size() <= kMost ? text : text.substr(0, kMost - 2) + "..";
  for (char& c : out) c = absl::ascii_isprint(c) ? c : '?';
  return out.empty() ? "-" : out;
}

std::string Percent(double part, double of) {
  return of > 0 ? FormatFixed(100 * part / of, 1) + "%" : "-";
}
std::string Percent(uint64_t part, uint64_t of) {
  return Percent(static_cast<double>(part), static_cast<double>(of));
}

std::string Time(uint64_t ms) {
  return absl::FormatDuration(absl::Seconds(static_cast<int64_t>(ms / 1000)));
}

// The sum of the intervals that ended at most so long ago.
v1::WorkInterval WorkWithin(const v1::ActivityResponse& activity, uint64_t ms) {
  v1::WorkInterval sum;
  for (const v1::WorkInterval& w : activity.intervals()) {
    if (w.ended_ago_ms() > ms) continue;
    sum.set_length_ms(sum.length_ms() + w.length_ms());
    sum.set_lookup_keys(sum.lookup_keys() + w.lookup_keys());
    sum.set_lookup_hit_keys(sum.lookup_hit_keys() + w.lookup_hit_keys());
    sum.set_put_raw_bytes(sum.put_raw_bytes() + w.put_raw_bytes());
    sum.set_get_payload_bytes(sum.get_payload_bytes() + w.get_payload_bytes());
    sum.set_failed_calls(sum.failed_calls() + w.failed_calls());
  }
  return sum;
}

double PerSecond(uint64_t bytes, uint64_t ms) {
  return ms == 0 ? 0 : 1000 * static_cast<double>(bytes) / static_cast<double>(ms);
}

std::string Rate(double bytes_per_s) {
  return FormatSize(static_cast<uint64_t>(bytes_per_s)) + "/s";
}

std::string Head(const Seen& seen, const std::string& server) {
  const v1::WorkInterval hour = WorkWithin(seen.activity, kHourMs);
  const v1::WorkInterval minute = WorkWithin(seen.activity, kMinuteMs);
  return absl::StrCat(
      "kvstow ", seen.status.version(), " at ", server, ", ",
      seen.status.ready() ? "serving" : "not ready", ", ", seen.status.device(), ", up ",
      Time(seen.status.uptime_ms()), "\n",
      FormatTable(
          {"HELD", "RATIO", "PAGES", "PINNED", "LEASES", "HIT RATE 1H", "OUT", "IN", "FAILED 1H"},
          {{FormatSize(seen.usage.encoded_bytes()),
            FormatRatio(seen.usage.raw_bytes(), seen.usage.encoded_bytes()),
            absl::StrCat(seen.usage.pages()), absl::StrCat(seen.usage.pinned_pages()),
            absl::StrCat(seen.usage.leases()), Percent(hour.lookup_hit_keys(), hour.lookup_keys()),
            Rate(PerSecond(minute.get_payload_bytes(), minute.length_ms())),
            Rate(PerSecond(minute.put_raw_bytes(), minute.length_ms())),
            absl::StrCat(hour.failed_calls())}}));
}

std::string LoadTable(const v1::Load& load) {
  const auto pair = [](uint64_t in, uint64_t out) { return absl::StrCat(in, " / ", out); };
  return absl::StrCat(
      "\n",
      FormatTable(
          {"STREAMS IN / OUT", "QUEUED", "WAIT FOR MEMORY", "BYTES IN / OUT", "DIRECT", "LOCAL",
           "INDEX"},
          {{pair(load.put_streams(), load.get_streams()),
            pair(load.put_queue_pages(), load.get_queue_pages()), absl::StrCat(load.waiting_gets()),
            absl::StrCat(FormatSize(load.put_bytes()), " / ", FormatSize(load.get_bytes())),
            absl::StrCat(load.direct_connections()), absl::StrCat(load.local_sessions()),
            FormatSize(load.index_bytes())}}));
}

// Draws values of 0 to 1 as a row of blocks.
std::string Curve(const std::vector<double>& values) {
  static constexpr const char* kBlocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::string out;
  for (const double value : values) {
    const double height = std::clamp(value, 0.0, 1.0) * 8;
    absl::StrAppend(&out, kBlocks[value > 0 ? std::max(1, static_cast<int>(height + 0.5)) : 0]);
  }
  return out;
}

std::string Hours(const v1::ActivityResponse& activity) {
  const int all = activity.intervals_size();
  const int each = std::max<int>(1, (all + kColumns - 1) / kColumns);
  std::vector<double> hits, out, in;
  double most = 0;
  for (int first = all % each == 0 ? 0 : all % each - each; first < all; first += each) {
    v1::ActivityResponse part;
    for (int i = std::max(0, first); i < first + each; ++i) {
      *part.add_intervals() = activity.intervals(i);
    }
    const v1::WorkInterval sum = WorkWithin(part, UINT64_MAX);
    hits.push_back(sum.lookup_keys() == 0 ? 0
                                          : static_cast<double>(sum.lookup_hit_keys()) /
                                                static_cast<double>(sum.lookup_keys()));
    out.push_back(PerSecond(sum.get_payload_bytes(), sum.length_ms()));
    in.push_back(PerSecond(sum.put_raw_bytes(), sum.length_ms()));
    most = std::max({most, out.back(), in.back()});
  }
  for (auto* values : {&out, &in}) {
    for (double& value : *values) value = most > 0 ? value / most : 0;
  }
  const uint64_t span =
      all == 0 ? 0 : activity.intervals(0).ended_ago_ms() + activity.intervals(0).length_ms();
  return absl::StrCat("\nLAST ", Time(span), "\n",
                      FormatFields({{"hit rate", Curve(hits)},
                                    {"out", Curve(out)},
                                    {"in", Curve(in)},
                                    {"highest", Rate(most)}}));
}

std::string MoreMemory(const v1::UsageResponse& usage) {
  double budgets = 0;
  for (const v1::TierUsage& tier : usage.tiers()) {
    budgets += static_cast<double>(tier.budget_bytes());
  }
  if (usage.reuse().curve().empty() || usage.encoded_bytes() == 0) return "";
  const double ratio =
      static_cast<double>(usage.raw_bytes()) / static_cast<double>(usage.encoded_bytes());
  std::vector<std::string> sizes = {"MEMORY"}, rates = {"hit rate"};
  for (const double times : {0.25, 0.5, 1.0, 2.0, 4.0}) {
    double rate = 0;
    for (const v1::ReusePoint& point : usage.reuse().curve()) {
      if (static_cast<double>(point.raw_bytes()) <= times * budgets * ratio) {
        rate = point.hit_rate();
      }
    }
    sizes.push_back(FormatSize(static_cast<uint64_t>(times * budgets)));
    if (times == 1) sizes.back() += " (NOW)";
    rates.push_back(Percent(rate, 1));
  }
  sizes.emplace_back("ENDLESS");
  rates.push_back(Percent(usage.reuse().infinite_hit_rate(), 1));
  return absl::StrCat("\n", FormatTable(sizes, {rates}));
}

std::string Spaces(const v1::UsageResponse& usage) {
  std::vector<const v1::SpaceUsage*> spaces;
  for (const v1::SpaceUsage& space : usage.spaces()) spaces.push_back(&space);
  std::ranges::stable_sort(spaces, [](const v1::SpaceUsage* a, const v1::SpaceUsage* b) {
    return a->encoded_bytes() > b->encoded_bytes();
  });
  std::vector<std::vector<std::string>> rows;
  for (const v1::SpaceUsage* s : spaces) {
    if (rows.size() == kRows) break;
    rows.push_back({Name(s->space()), Name(s->recipe()), absl::StrCat(s->pages()),
                    FormatSize(s->encoded_bytes()), FormatRatio(s->raw_bytes(), s->encoded_bytes()),
                    absl::StrCat(s->lookup_keys()), absl::StrCat(s->lookup_hit_keys()),
                    Percent(s->lookup_hit_keys(), s->lookup_keys())});
  }
  if (rows.empty()) return "";
  return absl::StrCat("\n", FormatTable({"SPACE", "RECIPE", "PAGES", "HELD", "RATIO", "LOOKED UP",
                                         "FOUND", "HIT RATE"},
                                        rows));
}

// Nothing on a server without identities.
std::string Tenants(const v1::TenantsResponse& tenants) {
  std::vector<std::vector<std::string>> rows;
  bool named = false;
  for (const v1::TenantUsage& t : tenants.tenants()) {
    if (rows.size() == kRows) break;
    if (!t.tenant().empty()) named = true;
    rows.push_back({Name(t.tenant()), absl::StrCat(t.pages()), FormatSize(t.encoded_bytes()),
                    FormatRatio(t.raw_bytes(), t.encoded_bytes()), FormatSize(t.put_bytes()),
                    FormatSize(t.get_bytes()), absl::StrCat(t.refused())});
  }
  if (!named) return "";
  return absl::StrCat(
      "\n",
      FormatTable({"TENANT", "PAGES", "HELD", "RATIO", "CAME IN", "WENT OUT", "REFUSED"}, rows));
}

std::string Calls(const char* title,
                  const google::protobuf::RepeatedPtrField<v1::CallUsage>& calls) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::CallUsage& call : calls) {
    if (rows.size() == kRows) break;
    rows.push_back({call.method(), Name(call.space()), Name(call.code()),
                    call.slowest_ms() > 0 ? FormatFixed(call.slowest_ms(), 1) : "-",
                    absl::StrCat(call.calls()), Time(call.ended_ago_ms()) + " ago"});
  }
  if (rows.empty()) return "";
  return absl::StrCat("\n",
                      FormatTable({title, "SPACE", "CODE", "SLOWEST MS", "CALLS", "LAST"}, rows));
}

std::string Text(const Seen& seen, const std::string& server) {
  return absl::StrCat(Head(seen, server), "\n", TiersTable(seen.usage.tiers()),
                      LoadTable(seen.activity.load()), Hours(seen.activity),
                      seen.usage.pages() > 0 ? "\n" + AgesTable(seen.ages) : "",
                      MoreMemory(seen.usage), Spaces(seen.usage), Tenants(seen.tenants),
                      Calls("SLOW CALLS 1H", seen.activity.slow()),
                      Calls("FAILING CALLS 1H", seen.activity.failing()));
}

Json ToJson(const v1::WorkInterval& work) {
  return {{"ended_ago_ms", work.ended_ago_ms()},
          {"length_ms", work.length_ms()},
          {"lookup_keys", work.lookup_keys()},
          {"lookup_hit_keys", work.lookup_hit_keys()},
          {"put_raw_bytes", work.put_raw_bytes()},
          {"put_stored_bytes", work.put_stored_bytes()},
          {"get_payload_bytes", work.get_payload_bytes()},
          {"failed_calls", work.failed_calls()}};
}

Json ToJson(const v1::CallUsage& call) {
  return {{"method", call.method()},
          {"space", call.space()},
          {"code", call.code()},
          {"calls", call.calls()},
          {"slowest_ms", call.slowest_ms()},
          {"ended_ago_ms", call.ended_ago_ms()}};
}

Json ToJson(const v1::SpaceUsage& space) {
  return {{"space", space.space()},
          {"recipe", space.recipe()},
          {"pages", space.pages()},
          {"raw_bytes", space.raw_bytes()},
          {"encoded_bytes", space.encoded_bytes()},
          {"lookup_keys", space.lookup_keys()},
          {"lookup_hit_keys", space.lookup_hit_keys()}};
}

Json ToJson(const v1::TenantUsage& tenant) {
  return {{"tenant", tenant.tenant()},       {"pages", tenant.pages()},
          {"raw_bytes", tenant.raw_bytes()}, {"encoded_bytes", tenant.encoded_bytes()},
          {"put_bytes", tenant.put_bytes()}, {"get_bytes", tenant.get_bytes()},
          {"refused", tenant.refused()}};
}

template <typename Rows>
Json ListOf(const Rows& rows) {
  Json out = Json::array();
  for (const auto& row : rows) out.push_back(ToJson(row));
  return out;
}

Json ToJson(const v1::Load& load) {
  return {{"put_streams", load.put_streams()},
          {"get_streams", load.get_streams()},
          {"direct_connections", load.direct_connections()},
          {"local_sessions", load.local_sessions()},
          {"put_queue_pages", load.put_queue_pages()},
          {"get_queue_pages", load.get_queue_pages()},
          {"waiting_gets", load.waiting_gets()},
          {"put_bytes", load.put_bytes()},
          {"get_bytes", load.get_bytes()},
          {"leased_pages", load.leased_pages()},
          {"index_bytes", load.index_bytes()}};
}

Json ToJson(const Seen& seen, const std::string& server) {
  return {{"server", server},
          {"version", seen.status.version()},
          {"ready", seen.status.ready()},
          {"device", seen.status.device()},
          {"uptime_ms", seen.status.uptime_ms()},
          {"pages", seen.usage.pages()},
          {"raw_bytes", seen.usage.raw_bytes()},
          {"encoded_bytes", seen.usage.encoded_bytes()},
          {"leases", seen.usage.leases()},
          {"pinned_pages", seen.usage.pinned_pages()},
          {"tiers", TiersJson(seen.usage.tiers())},
          {"ages", AgesJson(seen.ages)},
          {"spaces", ListOf(seen.usage.spaces())},
          {"tenants", ListOf(seen.tenants.tenants())},
          {"intervals", ListOf(seen.activity.intervals())},
          {"slow", ListOf(seen.activity.slow())},
          {"failing", ListOf(seen.activity.failing())},
          {"load", ToJson(seen.activity.load())}};
}

int Top(const Flags& flags) {
  const auto client = Connect(flags.server);
  return Watch(flags.output, !flags.once, flags.interval_s, [&]() -> absl::StatusOr<Look> {
    KVSTOW_ASSIGN_OR_RETURN(const Seen seen, Ask(*client));
    const std::string server = client->serving().address;
    return Look{ToJson(seen, server), Text(seen, server)};
  });
}

}  // namespace

void AddTop(const Verb& app) {
  const Verb verb = app.Add("top",
                            "What the server holds and does, refreshed in place: hit rate, "
                            "bandwidth, tiers, ages, spaces, tenants, slow and failing calls");
  const auto flags = std::make_shared<Flags>();
  AddServerFlags(verb, flags->server);
  AddOutputFlags(verb, flags->output);
  verb.Switch("--once", flags->once, "one look, for scripts");
  AddIntervalFlag(verb, flags->interval_s, "seconds between two looks");
  verb.Footer(
      "Examples:\n  kvstow top\n  kvstow top --once\n"
      "  kvstow top --once --format json | jq .failing");
  verb.Run([flags] { return Top(*flags); });
}

}  // namespace kvstow::cli
