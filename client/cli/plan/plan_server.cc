#include "client/cli/plan/plan_server.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "client/cli/admin.h"
#include "client/cli/text.h"
#include "client/planner/recipe_size.h"
#include "kvstow/v1/kv_cache.pb.h"
#include "storage/trace/live_reuse.h"

namespace kvstow::cli {
namespace {

using planner::Origin;
using planner::RecipeSize;

constexpr double kGib = 1 << 30;

struct Live {
  ReuseEstimate reuse;
  uint64_t present_bytes = 0;       // budgets of its tiers
  std::vector<RecipeSize> recipes;  // the first is what the server holds
  std::vector<uint64_t> sizes;
  double encode_bytes_per_s = 0, decode_bytes_per_s = 0;  // of one worker; 0 = did nothing yet
};

// Raw bytes a second of a codec, by the counters of the server.
double SpeedOf(const v1::UsageResponse& usage, const char* bytes, const char* us) {
  const auto value = [&](const char* name) {
    const auto it = usage.counters().find(name);
    return it == usage.counters().end() ? 0.0 : static_cast<double>(it->second);
  };
  return value(us) > 0 ? value(bytes) / value(us) * 1e6 : 0;
}

ReuseEstimate FromProto(const v1::Reuse& in) {
  ReuseEstimate out{.references = in.references(),
                    .distinct_pages = in.distinct_pages(),
                    .infinite_hit_rate = in.infinite_hit_rate(),
                    .sampled = in.sampled()};
  for (const v1::ReusePoint& point : in.curve()) {
    out.curve.push_back({.raw_bytes = point.raw_bytes(), .hit_rate = point.hit_rate()});
  }
  return out;
}

absl::StatusOr<Live> ReadServer(const ServerFlags& server, const std::vector<std::string>& recipes,
                                const std::vector<std::string>& roundtrips,
                                const std::vector<uint64_t>& sizes) {
  const auto client = Connect(server);
  KVSTOW_ASSIGN_OR_RETURN(
      const auto usage,
      CallServer<v1::UsageResponse>(*client, "/kvstow.v1.KvCache/Usage", v1::UsageRequest()));
  if (usage.reuse().references() == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        server.server, " was asked for no page in the last hours: there is nothing to plan from"));
  }
  Live live{.reuse = FromProto(usage.reuse()), .sizes = sizes};
  for (const v1::TierUsage& tier : usage.tiers()) live.present_bytes += tier.budget_bytes();
  if (usage.encoded_bytes() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(server.server, " holds no page: it cannot tell what its recipes store"));
  }
  live.encode_bytes_per_s = SpeedOf(usage, "encoded_raw_bytes", "encode_us");
  live.decode_bytes_per_s = SpeedOf(usage, "decoded_raw_bytes", "decode_us");
  live.recipes.push_back(
      {.recipe = "as now",
       .ratio = static_cast<double>(usage.raw_bytes()) / static_cast<double>(usage.encoded_bytes()),
       .origin = Origin::kMeasured,
       .decode_bytes_per_s = live.decode_bytes_per_s,
       .decode_origin = Origin::kMeasured});
  for (const std::string& text : recipes) {
    KVSTOW_ASSIGN_OR_RETURN(RecipeSize given, planner::GivenRatio(text));
    live.recipes.push_back(std::move(given));
  }
  for (const std::string& file : roundtrips) {
    KVSTOW_RETURN_IF_ERROR(planner::AddRoundtrips(file, live.recipes));
  }
  for (const double factor : {0.5, 1.0, 2.0, 4.0}) {
    live.sizes.push_back(static_cast<uint64_t>(factor * static_cast<double>(live.present_bytes)));
  }
  std::sort(live.sizes.begin(), live.sizes.end());
  live.sizes.erase(std::unique(live.sizes.begin(), live.sizes.end()), live.sizes.end());
  return live;
}

double HitRate(const Live& live, const RecipeSize& recipe, uint64_t stored_bytes) {
  return live.reuse.HitRate(
      static_cast<uint64_t>(static_cast<double>(stored_bytes) * recipe.ratio));
}

Json ToJson(const Live& live, const std::string& server) {
  Json recipes = Json::array();
  for (const RecipeSize& recipe : live.recipes) {
    Json curve = Json::array();
    for (const uint64_t size : live.sizes) {
      curve.push_back(
          {{"gib", static_cast<double>(size) / kGib}, {"hit_rate", HitRate(live, recipe, size)}});
    }
    recipes.push_back({{"recipe", recipe.recipe},
                       {"ratio", recipe.ratio},
                       {"origin", std::string(planner::OriginName(recipe.origin))},
                       {"curve", curve}});
  }
  return {{"server", server},
          {"present_gib", static_cast<double>(live.present_bytes) / kGib},
          {"load",
           {{"origin", "measured"},
            {"references", live.reuse.references},
            {"distinct_pages", live.reuse.distinct_pages},
            {"sampled", live.reuse.sampled}}},
          {"codec",
           {{"origin", "measured"},
            {"encode_bytes_per_second", live.encode_bytes_per_s},
            {"decode_bytes_per_second", live.decode_bytes_per_s}}},
          {"infinite_hit_rate", live.reuse.infinite_hit_rate},
          {"curve", recipes[0]["curve"]},
          {"recipes", recipes}};
}

std::string Speed(const char* verb, double bytes_per_s) {
  return bytes_per_s > 0 ? absl::StrCat(verb, " ", FormatFixed(bytes_per_s / 1e9, 2),
                                        " GB/s of raw pages a worker")
                         : absl::StrCat(verb, " nothing yet");
}

std::string Text(const Live& live, const std::string& server) {
  std::vector<std::string> heading = {"HIT RATE, % OF PAGES"};
  std::vector<std::vector<std::string>> rows(live.sizes.size() + 1);
  for (size_t i = 0; i < live.sizes.size(); ++i) {
    rows[i] = {FormatSize(live.sizes[i]) +
               (live.sizes[i] == live.present_bytes ? " (budget)" : "")};
  }
  rows.back() = {"infinite"};
  for (const RecipeSize& recipe : live.recipes) {
    heading.push_back(absl::StrCat(recipe.recipe, " (", FormatFixed(recipe.ratio, 2), "x, ",
                                   planner::OriginName(recipe.origin), ")"));
    for (size_t i = 0; i < live.sizes.size(); ++i) {
      rows[i].push_back(FormatFixed(100 * HitRate(live, recipe, live.sizes[i]), 1));
    }
    rows.back().push_back(FormatFixed(100 * live.reuse.infinite_hit_rate, 1));
  }
  return absl::StrCat(
      FormatFields(
          {{"server", server},
           {"asked for",
            absl::StrCat(live.reuse.references, " pages, about ",
                         FormatFixed(live.reuse.distinct_pages, 0), " different ones, measured")},
           {"sampled", absl::StrCat(FormatFixed(100 * live.reuse.sampled, 1), " % of the pages")},
           {"codec", absl::StrCat(Speed("encodes", live.encode_bytes_per_s), ", ",
                                  Speed("decodes", live.decode_bytes_per_s), ", measured")}}),
      "\n", FormatTable(heading, rows),
      "modelled: an LRU over the measured load of the last hours; all tiers together\n");
}

}  // namespace

int PlanServer(const OutputFlags& output, const ServerFlags& server,
               const std::vector<std::string>& recipes, const std::vector<std::string>& roundtrips,
               const std::vector<uint64_t>& sizes) {
  const absl::StatusOr<Live> live = ReadServer(server, recipes, roundtrips, sizes);
  if (!live.ok()) return Fail(output, live.status());
  Print(output, ToJson(*live, server.server), Text(*live, server.server));
  return kDone;
}

}  // namespace kvstow::cli
