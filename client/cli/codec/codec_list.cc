// kvstow codec list: the table of recipes.
#include "absl/strings/str_cat.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/codec/presets.h"
#include "kernels/importance/policy.h"
#include "kernels/recipe/recipe.h"

namespace kvstow::cli {
namespace {

struct Facts {
  uint32_t levels = 0;
  double bits_per_value = 0;  // 0 = not known: the recipe needs more than a page
};

// Measured on a page of 256 tokens of noise in F16 with 4 layers of 2 heads: what a fixed-rate code
// takes, headers and scales included; entropy coders take less on real data.
Facts Measure(const Preset& preset) {
  KvSpec spec;
  spec.layers = 4;
  spec.kv_heads = 2;
  spec.head_dim_k = spec.head_dim_v = 128;
  spec.page_tokens = 256;
  const auto recipe = ParseRecipe(preset.name);
  if (!recipe.ok()) return {};
  const auto codec = MakeCodec(*recipe, spec);
  if (!codec.ok()) return {};
  std::vector<uint8_t> raw(PageBytes(spec, spec.page_tokens));
  uint32_t state = 1;
  for (size_t i = 0; i + 1 < raw.size(); i += 2) {
    state = state * 1664525u + 1013904223u;
    raw[i] = static_cast<uint8_t>(state >> 24);
    raw[i + 1] = static_cast<uint8_t>(0x38 | (state >> 16 & 0x83));
  }
  const auto page = (*codec)->Encode({.raw = raw, .tokens = spec.page_tokens});
  if (!page.ok()) return {.levels = (*codec)->levels()};
  return {.levels = (*codec)->levels(),
          .bits_per_value = 8.0 * static_cast<double>(page->StoredBytes()) /
                            static_cast<double>(raw.size() / DTypeBytes(spec.dtype))};
}

// Policies stand before a codec: what they keep depends on the page, so no bits are told.
std::string ListPolicies(Json& policies) {
  std::vector<std::vector<std::string>> rows;
  for (const Preset& p : PolicyPresets()) {
    policies.push_back({{"name", std::string(p.name)},
                        {"pipeline", std::string(p.pipeline)},
                        {"needs", std::string(p.needs)},
                        {"summary", std::string(p.summary)},
                        {"source", std::string(p.source)}});
    rows.push_back({std::string(p.name), p.needs.empty() ? "-" : std::string(p.needs),
                    std::string(p.pipeline), std::string(p.summary)});
  }
  return FormatTable({"POLICY", "NEEDS", "PIPELINE", "WHAT STAYS"}, rows);
}

int List(const OutputFlags& flags) {
  Json presets = Json::array();
  std::vector<std::vector<std::string>> rows;
  for (const Preset& p : CodecPresets()) {
    const Facts facts = Measure(p);
    presets.push_back({{"name", std::string(p.name)},
                       {"pipeline", std::string(p.pipeline)},
                       {"levels", facts.levels},
                       {"bits_per_value", facts.bits_per_value},
                       {"needs", std::string(p.needs)},
                       {"summary", std::string(p.summary)},
                       {"source", std::string(p.source)}});
    rows.push_back({std::string(p.name), facts.levels == 0 ? "-" : absl::StrCat(facts.levels),
                    facts.bits_per_value == 0 ? "-" : FormatFixed(facts.bits_per_value, 2),
                    p.needs.empty() ? "-" : std::string(p.needs), std::string(p.pipeline),
                    std::string(p.summary)});
  }
  Json policies = Json::array();
  const std::string table = ListPolicies(policies);
  Print(flags, {{"presets", presets}, {"policies", policies}},
        absl::StrCat(
            FormatTable({"NAME", "LEVELS", "BITS", "NEEDS", "PIPELINE", "WHAT IT IS"}, rows),
            "\nBITS are those of a value, all levels and headers counted, of a page of noise: 256 "
            "tokens,\n4 layers, 2 heads of 128. Real KV takes fewer with entropy coders: see "
            "kvstow codec roundtrip.\n\nPolicies stand before a codec, as in "
            "'snapkv(keep=0.25)|int8':\n\n",
            table));
  return kDone;
}

}  // namespace

void AddCodec(const Verb& app) {
  const Verb codec = app.Add("codec", "Recipes: what they are, and what they do");
  codec.NeedsVerb();
  const Verb verb = codec.Add(
      "list",
      "Presets, with levels, bits for each value of a 16-bit page, and needs; importance policies");
  const auto flags = std::make_shared<OutputFlags>();
  AddOutputFlags(verb, *flags);
  verb.Footer("Examples:\n  kvstow codec list\n  kvstow codec list --format json");
  verb.Run([flags] { return List(*flags); });
  AddCodecRoundtrip(codec);
  AddCodecCalibrate(codec);
  AddCodecSend(codec);
  codec.Footer(
      "Examples:\n  kvstow codec list\n"
      "  kvstow codec roundtrip --recipe kvstow prompt.safetensors decoded.safetensors\n"
      "  kvstow codec VERB --help");
}

}  // namespace kvstow::cli
