// kvstow plan: what a model's KV cache takes, and what it pays to keep.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"
#include "client/planner/recipe_size.h"

namespace kvstow::cli {
namespace {

using planner::ModelKv;
using planner::RankKv;
using planner::RecipeSize;

struct Flags {
  OutputFlags output;
  std::string model, kv_dtype;
  uint32_t ranks = 1;
  uint32_t page_tokens = 256;
  std::vector<std::string> recipes = {"raw", "int8"};
};

struct Sizes {
  ModelKv model;
  RankKv rank;
  std::vector<RecipeSize> recipes;
};

absl::StatusOr<Sizes> SizesOf(const Flags& flags) {
  Sizes out;
  KVSTOW_ASSIGN_OR_RETURN(out.model, planner::LoadModel(flags.model, flags.kv_dtype));
  KVSTOW_ASSIGN_OR_RETURN(out.rank, planner::DivideOverRanks(out.model, flags.ranks));
  KVSTOW_ASSIGN_OR_RETURN(const KvSpec spec,
                          planner::SpecOfRank(out.model, out.rank, flags.page_tokens));
  for (const std::string& text : flags.recipes) {
    KVSTOW_ASSIGN_OR_RETURN(RecipeSize size, planner::SizeOfRecipe(text, spec));
    out.recipes.push_back(std::move(size));
  }
  return out;
}

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

Json ToJson(const Sizes& sizes) {
  Json recipes = Json::array();
  for (const RecipeSize& r : sizes.recipes) {
    recipes.push_back({{"recipe", r.recipe},
                       {"ratio", r.ratio},
                       {"stored_bytes_per_token", r.StoredBytes(sizes.rank.bytes_per_token)},
                       {"origin", std::string(planner::OriginName(r.origin))}});
  }
  return {{"model",
           {{"name", sizes.model.name},
            {"source", sizes.model.source},
            {"dtype", std::string(DTypeName(sizes.model.dtype))},
            {"layers", LayersJson(sizes.model)},
            {"state_layers", sizes.model.state_layers},
            {"ranks", sizes.rank.ranks},
            {"copies", sizes.rank.copies},
            {"notes", sizes.model.notes}}},
          {"bytes_per_token",
           {{"raw", sizes.rank.bytes_per_token},
            {"stored", sizes.recipes[0].StoredBytes(sizes.rank.bytes_per_token)},
            {"recipe", sizes.recipes[0].recipe},
            {"all_ranks", sizes.rank.all_bytes_per_token},
            {"in_windows", sizes.rank.window_bytes}}},
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

std::string Text(const Sizes& sizes) {
  const RankKv& rank = sizes.rank;
  std::vector<std::pair<std::string, std::string>> fields = {
      {"model", absl::StrCat(sizes.model.name, " (", sizes.model.source, "), ",
                             DTypeName(sizes.model.dtype))},
      {"layers", LayersText(sizes.model)},
      {"raw", absl::StrCat(rank.bytes_per_token, " bytes a token",
                           rank.ranks > 1 ? " and rank" : "", ", published")}};
  if (rank.ranks > 1) {
    fields.emplace_back(
        "all ranks", absl::StrCat(rank.all_bytes_per_token, " bytes a token on ", rank.ranks,
                                  " ranks, each head counted once; ", rank.copies,
                                  rank.copies == 1 ? " rank holds" : " ranks hold", " the same"));
  }
  if (rank.window_bytes > 0) {
    fields.emplace_back("windows", absl::StrCat(rank.window_bytes,
                                                " of the raw bytes are in layers with a window"));
  }
  for (const std::string& note : sizes.model.notes) fields.emplace_back("note", note);
  std::vector<std::vector<std::string>> rows;
  for (const RecipeSize& r : sizes.recipes) {
    const uint64_t stored = r.StoredBytes(rank.bytes_per_token);
    rows.push_back({r.recipe, FormatFixed(r.ratio, 2), absl::StrCat(stored),
                    FormatFixed((uint64_t{1} << 30) / static_cast<double>(stored), 0),
                    std::string(planner::OriginName(r.origin))});
  }
  return absl::StrCat(
      FormatFields(fields), "\n",
      FormatTable({"RECIPE", "RATIO", "STORED BYTES A TOKEN", "TOKENS A GIB", "RATIO IS"}, rows));
}

int Plan(const Flags& flags) {
  const absl::StatusOr<Sizes> sizes = SizesOf(flags);
  if (!sizes.ok()) return Fail(flags.output, sizes.status());
  Print(flags.output, ToJson(*sizes), Text(*sizes));
  return kDone;
}

}  // namespace

void AddPlan(CLI::App& app, int& exit_code) {
  CLI::App* const verb =
      app.add_subcommand("plan", "Capacity planning: what a model's KV cache takes");
  const auto flags = std::make_shared<Flags>();
  AddOutputFlags(*verb, flags->output);
  verb->add_option("--model", flags->model,
                   "a Hugging Face config.json, a folder with one, or a name of the built-in table")
      ->required();
  verb->add_option("--kv-dtype", flags->kv_dtype,
                   "f16, bf16, f32 or fp8: how the engine keeps KV, if not as the model says");
  verb->add_option("--tp", flags->ranks, "ranks of the tensor-parallel group")
      ->check(CLI::Range(1u, 1024u))
      ->capture_default_str();
  verb->add_option(
          "--recipe", flags->recipes,
          "may be repeated: a recipe whose size does not depend on the data, or NAME=RATIO "
          "with a ratio that was measured")
      ->take_all()
      ->capture_default_str();
  verb->add_option("--page-tokens", flags->page_tokens, "tokens of a page")
      ->check(CLI::Range(1u, kMaxPageTokens))
      ->capture_default_str();
  verb->footer(
      "Every figure says where it comes from: published (the model's geometry), given (typed in),\n"
      "measured (here, or counted), modelled (a formula over the others).\n"
      "Examples:\n"
      "  kvstow plan --model llama-3.1-8b\n"
      "  kvstow plan --model ./config.json --tp 8 --recipe int8 --recipe kvstow=6.0\n"
      "  kvstow plan --model deepseek-v3 --recipe mla8 --format json");
  verb->callback([flags, &exit_code] { exit_code = Plan(*flags); });
}

}  // namespace kvstow::cli
