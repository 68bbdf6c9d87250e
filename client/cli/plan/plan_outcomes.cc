// The part of a plan that follows from the hardware: times, traffic, wear, cost, advice.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/bytes.h"
#include "client/cli/plan/plan_report.h"
#include "client/cli/text.h"

namespace kvstow::cli {
namespace {

using Json = nlohmann::ordered_json;
using planner::Hardware;
using planner::Outcome;
using planner::Setting;

constexpr double kGib = 1 << 30;

std::string Percent(double rate) { return FormatFixed(100 * rate, 1); }
std::string Gigabytes(double bytes, bool over = false) {
  return FormatFixed(bytes / 1e9, bytes < 1e10 ? 2 : 1) + (over ? " (too much)" : "");
}
std::string Optional(const std::optional<double>& value, double scale, int digits) {
  return value.has_value() ? FormatFixed(*value * scale, digits) : "-";
}
Json OptionalJson(const std::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json();
}

Json HardwareJson(const Hardware& hardware) {
  Json out = {{"origin", "given"}};
  for (size_t t = 0; t < Hardware::kTiers; ++t) {
    const Hardware::Tier& tier = hardware.tiers[t];
    out[std::string(planner::TierName(t))] = {{"gib", static_cast<double>(tier.bytes) / kGib},
                                              {"bytes_per_second", tier.bytes_per_s},
                                              {"price_per_gib", tier.price_per_gib}};
  }
  out["prefill_tokens_per_second"] = hardware.prefill_tokens_per_s;
  out["link_bytes_per_second"] = hardware.link_bytes_per_s;
  out["decode_bytes_per_second"] = hardware.decode_bytes_per_s;
  out["disk_life_bytes"] = hardware.disk_life_bytes;
  out["write_amplification"] = hardware.write_amplification;
  return out;
}

Json OutcomeJson(const Outcome& o) {
  Json tiers = Json::object();
  for (size_t t = 0; t < Hardware::kTiers; ++t) {
    tiers[std::string(planner::TierName(t))] = {
        {"hit_rate", o.tiers[t].hit_rate},
        {"read_bytes_per_second", o.tiers[t].read_bytes_per_s},
        {"overloaded", o.tiers[t].overloaded}};
  }
  return {{"origin", "modelled"},
          {"hit_rate", o.hit_rate},
          {"tiers", tiers},
          {"first_token_cold_s", OptionalJson(o.cold_s)},
          {"first_token_mean_s", OptionalJson(o.warm_s)},
          {"first_token_hit_s", OptionalJson(o.hit_s)},
          {"link_bytes_per_second", o.link_bytes_per_s},
          {"link_overloaded", o.link_overloaded},
          {"stored_bytes_per_second", o.stored_bytes_per_s},
          {"disk_bytes_per_day", OptionalJson(o.disk_bytes_per_day)},
          {"disk_life_years", OptionalJson(o.disk_life_years)},
          {"cost", OptionalJson(o.cost)}};
}

Json SettingJson(const PlanReport& report, const Setting& setting) {
  return {{"recipe", report.recipes[setting.recipe].recipe},
          {"ram_gib", static_cast<double>(setting.ram_bytes) / kGib},
          {"disk_gib", static_cast<double>(setting.disk_bytes) / kGib},
          {"outcome", OutcomeJson(setting.outcome)}};
}

std::string BreakEvenText(const PlanReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (const planner::RecipeSize& r : report.recipes) {
    const auto link = BreakEvenLink(r, report.rank.all_bytes_per_token, report.hardware);
    if (link.has_value()) {
      rows.push_back({r.recipe, Gigabytes(*link), FormatFixed(*link * 8e-9, 1)});
    }
  }
  if (rows.empty()) return "";
  return absl::StrCat(
      FormatTable({"BREAK-EVEN LINK", "GB/S", "GBIT/S"}, rows), "modelled: at ",
      FormatFixed(report.hardware.prefill_tokens_per_s, 0),
      " tokens/s of prefill (given), computing is faster than fetching on a slower link\n");
}

std::string OutcomesTable(const PlanReport& report) {
  std::vector<std::string> heading = {"WITH THIS HARDWARE"};
  std::vector<std::vector<std::string>> rows;
  const auto row = [&](const std::string& name, const auto& value) {
    rows.push_back({name});
    for (const Outcome& o : report.outcomes) rows.back().push_back(value(o));
  };
  for (const planner::RecipeSize& r : report.recipes) heading.push_back(r.recipe);
  for (size_t t = 0; t < Hardware::kTiers; ++t) {
    const Hardware::Tier& tier = report.hardware.tiers[t];
    if (tier.bytes == 0) continue;
    const std::string name(planner::TierName(t));
    row(absl::StrCat("hits of ", name, ", ", FormatSize(tier.bytes), ", %"),
        [&](const Outcome& o) { return Percent(o.tiers[t].hit_rate); });
    row(absl::StrCat("reads of ", name, ", GB/s"), [&](const Outcome& o) {
      return Gigabytes(o.tiers[t].read_bytes_per_s, o.tiers[t].overloaded);
    });
  }
  row("hits, %", [](const Outcome& o) { return Percent(o.hit_rate); });
  row("over the link, GB/s",
      [](const Outcome& o) { return Gigabytes(o.link_bytes_per_s, o.link_overloaded); });
  row("newly stored, GB/s", [](const Outcome& o) { return Gigabytes(o.stored_bytes_per_s); });
  row("first token, no cache, ms", [](const Outcome& o) { return Optional(o.cold_s, 1e3, 1); });
  row("first token, mean, ms", [](const Outcome& o) { return Optional(o.warm_s, 1e3, 1); });
  row("first token, all there, ms", [](const Outcome& o) { return Optional(o.hit_s, 1e3, 1); });
  if (report.hardware.tiers[Hardware::kDisk].bytes > 0) {
    row("disk writes a day, TB",
        [](const Outcome& o) { return Optional(o.disk_bytes_per_day, 1e-12, 2); });
    row("life of the disk, years",
        [](const Outcome& o) { return Optional(o.disk_life_years, 1, 1); });
  }
  row("cost", [](const Outcome& o) { return Optional(o.cost, 1, 0); });
  return absl::StrCat(
      FormatTable(heading, rows),
      "modelled from the load and from what was given; '-': not enough was given\n");
}

// Returns how long it takes to fetch the prompt of --prompt from the fastest tier that was given,
// by its size or its bandwidth.
planner::FetchTime PromptTime(const PlanReport& report, const planner::RecipeSize& recipe) {
  const auto& tiers = report.hardware.tiers;
  const auto* const tier =
      std::find_if(std::begin(tiers), std::end(tiers),
                   [](const Hardware::Tier& t) { return t.bytes > 0 || t.bytes_per_s > 0; });
  planner::FetchTime time =
      TimeToFetch(report.hardware, tier == std::end(tiers) ? 0 : tier->bytes_per_s,
                  report.rank.all_bytes_per_token, recipe);
  for (double* const part : {&time.link_s, &time.tier_s, &time.decode_s})
    *part *= report.prompt_tokens;
  return time;
}

Json PromptJson(const PlanReport& report, const planner::RecipeSize& recipe) {
  const planner::FetchTime time = PromptTime(report, recipe);
  return {
      {"origin", "modelled"},  {"tokens", report.prompt_tokens}, {"first_token_s", time.seconds()},
      {"link_s", time.link_s}, {"tier_s", time.tier_s},          {"decode_s", time.decode_s},
      {"limit", time.limit()}};
}

std::string PromptText(const PlanReport& report) {
  const auto ms = [](double seconds) {
    return seconds > 0 ? FormatFixed(seconds * 1e3, 1) : std::string("-");
  };
  std::vector<std::vector<std::string>> rows;
  for (const planner::RecipeSize& r : report.recipes) {
    const planner::FetchTime time = PromptTime(report, r);
    rows.push_back({r.recipe, ms(time.seconds()), ms(time.link_s), ms(time.tier_s),
                    ms(time.decode_s),
                    time.limit().empty() ? "nothing given" : std::string(time.limit())});
  }
  return absl::StrCat(
      FormatTable({absl::StrCat("FIRST TOKEN OF ", report.prompt_tokens), "MS", "LINK", "TIER",
                   "DECODER", "LIMIT"},
                  rows),
      "modelled, for a prompt that is all there: the parts work at the same time, and the slowest "
      "decides\n");
}

std::string TargetText(const PlanReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (size_t r = 0; r < report.recipes.size(); ++r) {
    const auto size = SizeFor(*report.load, report.curves.recipes[r], report.goal.hit_rate);
    rows.push_back({report.recipes[r].recipe, size.has_value() ? FormatSize(*size) : "no size"});
  }
  return FormatTable({absl::StrCat("FOR ", Percent(report.goal.hit_rate), " % HITS"), "AT LEAST"},
                     rows);
}

std::string AdviceText(const PlanReport& report) {
  if (!report.advice.has_value()) return "No setting of these recipes meets the goal.\n";
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const std::string& name, const Setting& s) {
    rows.push_back(
        {name, report.recipes[s.recipe].recipe, FormatSize(s.ram_bytes),
         s.disk_bytes > 0 ? FormatSize(s.disk_bytes) : "none", Percent(s.outcome.hit_rate),
         Optional(s.outcome.warm_s, 1e3, 1),
         Optional(s.outcome.cost, 1, 0) + (s.outcome.overloaded() ? " (too slow)" : "")});
  };
  const Setting& best = report.advice->cheapest;
  add("cheapest", best);
  for (const Setting& s : report.advice->steps) {
    const bool ram = s.ram_bytes != best.ram_bytes;
    const bool more = s.ram_bytes > best.ram_bytes || s.disk_bytes > best.disk_bytes;
    add(absl::StrCat(more ? "more " : "less ", ram ? "RAM" : "disk"), s);
  }
  return FormatTable({"SETTING", "RECIPE", "RAM", "DISK", "HITS, %", "FIRST TOKEN, MS", "COST"},
                     rows) +
         "modelled: the cheapest that meets the goal, and one step from it\n";
}

}  // namespace

void AddOutcomesJson(const PlanReport& report, Json& out) {
  out["hardware"] = HardwareJson(report.hardware);
  for (size_t r = 0; r < report.recipes.size(); ++r) {
    out["recipes"][r]["break_even_link_bytes_per_second"] = OptionalJson(
        BreakEvenLink(report.recipes[r], report.rank.all_bytes_per_token, report.hardware));
    if (report.prompt_tokens > 0)
      out["recipes"][r]["prompt"] = PromptJson(report, report.recipes[r]);
    if (!report.outcomes.empty()) out["recipes"][r]["outcome"] = OutcomeJson(report.outcomes[r]);
    if (report.load.has_value() && report.goal.hit_rate > 0) {
      const auto size = SizeFor(*report.load, report.curves.recipes[r], report.goal.hit_rate);
      out["recipes"][r]["target_gib"] =
          size.has_value() ? Json(static_cast<double>(*size) / kGib) : Json();
    }
  }
  if (!report.advised) return;
  out["advice"] = Json();
  if (!report.advice.has_value()) return;
  Json steps = Json::array();
  for (const Setting& s : report.advice->steps) steps.push_back(SettingJson(report, s));
  out["advice"] = {{"cheapest", SettingJson(report, report.advice->cheapest)}, {"steps", steps}};
}

std::string OutcomesText(const PlanReport& report) {
  std::vector<std::string> parts = {BreakEvenText(report)};
  if (!report.outcomes.empty()) parts.push_back(OutcomesTable(report));
  if (report.prompt_tokens > 0) parts.push_back(PromptText(report));
  if (report.load.has_value() && report.goal.hit_rate > 0) parts.push_back(TargetText(report));
  if (report.advised) parts.push_back(AdviceText(report));
  std::erase(parts, "");
  return absl::StrJoin(parts, "\n");
}

}  // namespace kvstow::cli
