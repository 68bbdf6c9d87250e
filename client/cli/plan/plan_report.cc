#include "client/cli/plan/plan_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/bytes.h"
#include "client/cli/text.h"

namespace kvstow::cli {
namespace {

using Json = nlohmann::ordered_json;
using planner::ModelKv;
using planner::RankKv;
using planner::RecipeSize;
using planner::SizeCurve;

constexpr double kGib = 1 << 30;

std::string Percent(double rate) { return FormatFixed(100 * rate, 1); }

Json LayersJson(const ModelKv& model) {
  Json layers = Json::array();
  for (const planner::KvLayers& l : model.layers) {
    layers.push_back({{"layers", l.layers},
                      {"kv_heads", l.kv_heads},
                      {"head_dim_k", l.head_dim_k},
                      {"head_dim_v", l.head_dim_v},
                      {"window", l.window}});
  }
  return layers;
}

// Null when the recipe does not say its own speed.
Json DecodeJson(const RecipeSize& r) {
  if (r.decode_bytes_per_s <= 0) return Json();
  return {{"bytes_per_second", r.decode_bytes_per_s},
          {"origin", std::string(planner::OriginName(r.decode_origin))}};
}

Json SizesJson(const PlanReport& report) {
  Json recipes = Json::array();
  for (const RecipeSize& r : report.recipes) {
    recipes.push_back({{"recipe", r.recipe},
                       {"ratio", r.ratio},
                       {"stored_bytes_per_token", r.StoredBytes(report.rank.bytes_per_token)},
                       {"origin", std::string(planner::OriginName(r.origin))},
                       {"decode", DecodeJson(r)}});
  }
  return {{"model",
           {{"name", report.model.name},
            {"source", report.model.source},
            {"dtype", std::string(DTypeName(report.model.dtype))},
            {"layers", LayersJson(report.model)},
            {"state_layers", report.model.state_layers},
            {"ranks", report.rank.ranks},
            {"copies", report.rank.copies},
            {"notes", report.model.notes}}},
          {"bytes_per_token",
           {{"raw", report.rank.bytes_per_token},
            {"stored", report.recipes[0].StoredBytes(report.rank.bytes_per_token)},
            {"recipe", report.recipes[0].recipe},
            {"all_ranks", report.rank.all_bytes_per_token},
            {"in_windows", report.rank.window_bytes}}},
          {"recipes", recipes}};
}

std::string LayersText(const ModelKv& model) {
  std::vector<std::string> parts;
  for (const planner::KvLayers& l : model.layers) {
    std::string text = l.latent()
                           ? absl::StrCat(l.layers, " layers of one latent of ", l.head_dim_k)
                           : absl::StrCat(l.layers, " layers of ", l.kv_heads, " x (", l.head_dim_k,
                                          " + ", l.head_dim_v, ")");
    if (l.window > 0) absl::StrAppend(&text, ", window ", l.window);
    parts.push_back(text);
  }
  if (model.state_layers > 0) {
    parts.push_back(
        absl::StrCat(model.state_layers, " layers with a state, which is not counted here"));
  }
  return absl::StrJoin(parts, "; ");
}

std::string DecodeText(const RecipeSize& r) {
  if (r.decode_bytes_per_s <= 0) return "-";
  return absl::StrCat(FormatFixed(r.decode_bytes_per_s / 1e9, 2), ", ",
                      planner::OriginName(r.decode_origin));
}

std::string SizesText(const PlanReport& report) {
  const RankKv& rank = report.rank;
  std::vector<std::pair<std::string, std::string>> fields = {
      {"model", absl::StrCat(report.model.name, " (", report.model.source, "), ",
                             DTypeName(report.model.dtype))},
      {"layers", LayersText(report.model)},
      {"raw", absl::StrCat(rank.bytes_per_token, " bytes a token",
                           rank.ranks > 1 ? " and rank" : "", ", published")}};
  if (rank.ranks > 1) {
    fields.emplace_back(
        "all ranks", absl::StrCat(rank.all_bytes_per_token, " bytes a token that ", rank.ranks,
                                  " ranks store (a latent once); ", rank.copies,
                                  rank.copies == 1 ? " rank holds" : " ranks hold", " the same"));
  }
  if (rank.window_bytes > 0) {
    fields.emplace_back("windows", absl::StrCat(rank.window_bytes,
                                                " of the raw bytes are in layers with a window"));
  }
  for (const std::string& note : report.model.notes) fields.emplace_back("note", note);
  std::vector<std::vector<std::string>> rows;
  for (const RecipeSize& r : report.recipes) {
    const uint64_t stored = r.StoredBytes(rank.bytes_per_token);
    rows.push_back({r.recipe, FormatFixed(r.ratio, 2), absl::StrCat(stored),
                    FormatFixed((uint64_t{1} << 30) / static_cast<double>(stored), 0),
                    std::string(planner::OriginName(r.origin)), DecodeText(r)});
  }
  return absl::StrCat(FormatFields(fields), "\n",
                      FormatTable({"RECIPE", "RATIO", "STORED BYTES A TOKEN", "TOKENS A GIB",
                                   "RATIO IS", "DECODER, GB/S"},
                                  rows));
}

Json CurveJson(const PlanReport& report, const SizeCurve& curve) {
  Json points = Json::array();
  for (size_t i = 0; i < curve.rates.size(); ++i) {
    points.push_back({{"gib", static_cast<double>(report.curves.sizes[i]) / kGib},
                      {"hit_rate", curve.rates[i]}});
  }
  return points;
}

void AddLoadJson(const PlanReport& report, Json& out) {
  const planner::Load& load = *report.load;
  out["load"] = {{"name", report.load_name},
                 {"origin", std::string(planner::OriginName(report.load_origin))},
                 {"requests", load.requests},
                 {"seconds", load.span_s},
                 {"block_tokens", load.block_tokens},
                 {"blocks", load.curve.references()},
                 {"distinct_blocks", load.distinct_blocks},
                 {"prompt_tokens", load.prompt_tokens},
                 {"output_tokens", load.output_tokens}};
  for (size_t r = 0; r < report.recipes.size(); ++r) {
    const SizeCurve& curve = report.curves.recipes[r];
    out["recipes"][r]["curve"] = CurveJson(report, curve);
    out["recipes"][r]["all_gib"] = static_cast<double>(curve.all_bytes) / kGib;
  }
  out["curve"] = CurveJson(report, report.curves.recipes[0]);
  out["infinite_hit_rate"] = report.curves.infinite;
}

std::string LoadText(const PlanReport& report) {
  const planner::Load& load = *report.load;
  std::string out = FormatFields(
      {{"load", absl::StrCat(report.load_name, ", ", planner::OriginName(report.load_origin))},
       {"requests",
        absl::StrCat(load.requests, " in ", FormatFixed(load.span_s, 0), " s, prompts of ",
                     FormatFixed(load.prompt_tokens, 0), " and answers of ",
                     FormatFixed(load.output_tokens, 0), " tokens on average")},
       {"blocks", absl::StrCat(load.curve.references(), " of ", load.block_tokens, " tokens, ",
                               load.distinct_blocks, " of them distinct")}});
  std::vector<std::string> heading = {"HIT RATE, % OF BLOCKS"};
  std::vector<std::vector<std::string>> rows(report.curves.sizes.size() + 1);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = {i < report.curves.sizes.size() ? FormatSize(report.curves.sizes[i]) : "infinite"};
  }
  std::vector<std::pair<std::string, std::string>> sparks;
  for (const SizeCurve& curve : report.curves.recipes) {
    heading.push_back(curve.recipe);
    for (size_t i = 0; i < curve.rates.size(); ++i) rows[i].push_back(Percent(curve.rates[i]));
    rows.back().push_back(Percent(report.curves.infinite));
    sparks.emplace_back(curve.recipe,
                        absl::StrCat(planner::Sparkline(curve.rates), "  nothing gained beyond ",
                                     FormatSize(curve.all_bytes)));
  }
  return absl::StrCat(out, "\n", FormatTable(heading, rows),
                      "modelled: an LRU over the load; a hit is a leading block that is there\n\n",
                      FormatFields(sparks));
}

}  // namespace

Json PlanJson(const PlanReport& report) {
  Json out = SizesJson(report);
  if (report.load.has_value()) AddLoadJson(report, out);
  AddOutcomesJson(report, out);
  AddFleetJson(report, out);
  return out;
}

std::string PlanText(const PlanReport& report) {
  std::string out = SizesText(report);
  if (report.load.has_value()) absl::StrAppend(&out, "\n", LoadText(report));
  for (const std::string& part : {OutcomesText(report), FleetText(report)}) {
    if (!part.empty()) absl::StrAppend(&out, "\n", part);
  }
  return out;
}

}  // namespace kvstow::cli
