#include "client/planner/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/paths.h"

namespace kvstow::planner {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

std::string Fixture(const std::string& name) { return TestsPath("data/models/" + name + ".json"); }

uint64_t BytesPerToken(const absl::StatusOr<ModelKv>& model, uint32_t ranks = 1) {
  if (!model.ok()) {
    ADD_FAILURE() << model.status();
    return 0;
  }
  const auto rank = DivideOverRanks(*model, ranks);
  EXPECT_TRUE(rank.ok()) << rank.status();
  return rank.ok() ? rank->bytes_per_token : 0;
}

Json Llama() {
  return {{"model_type", "llama"},   {"hidden_size", 4096},      {"num_attention_heads", 32},
          {"num_hidden_layers", 32}, {"num_key_value_heads", 8}, {"torch_dtype", "bfloat16"}};
}

std::string ErrorOf(const Json& config, absl::string_view dtype = "") {
  const auto model = ParseModelConfig(config.dump(), "c.json", dtype);
  EXPECT_FALSE(model.ok()) << config;
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument) << config;
  return std::string(model.status().message());
}

// Published geometries; the file and the built-in table must agree.
TEST(Model, BytesPerTokenAreExact) {
  const std::pair<const char*, uint64_t> expected[] = {
      {"llama-3.1-8b", 131072},  {"qwen2.5-7b", 57344},   {"deepseek-v3", 70272},
      {"llama-3.1-70b", 327680}, {"smollm2-135m", 23040}, {"gemma-3-27b", 507904},
      {"gpt-oss-20b", 49152},    {"llama-2-7b", 524288},  {"qwen3-next-80b-a3b", 24576},
  };
  for (const auto& [name, bytes] : expected) {
    EXPECT_EQ(BytesPerToken(LoadModel(Fixture(name))), bytes) << name;
    const auto read = LoadModel(Fixture(name)), known = LoadModel(name);
    EXPECT_EQ(BytesPerToken(known), bytes) << name;
    ASSERT_TRUE(read.ok() && known.ok()) << name;
    EXPECT_EQ(read->layers, known->layers) << name;
    EXPECT_EQ(read->state_layers, known->state_layers) << name;
    EXPECT_EQ(read->dtype, known->dtype) << name;
  }
  EXPECT_EQ(BytesPerToken(LoadModel(Fixture("gemma-2b"))), 18u * 2 * 256 * 2) << "multi-query";
}

TEST(Model, EveryNameOfTheTableIsFound) {
  for (const KnownModel& m : KnownModels()) EXPECT_GT(BytesPerToken(FindModel(m.name)), 0u);
  EXPECT_EQ(BytesPerToken(FindModel("meta-llama/Llama-3.1-8B-Instruct")), 131072u);
  EXPECT_EQ(FindModel("gpt-6").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(FindModel("gpt-6").status().message()),
              AllOf(HasSubstr("gpt-6"), HasSubstr("llama-3.1-8b")));
}

TEST(Model, RanksDivideHeadsAndReplicateWhatTheyCannot) {
  EXPECT_EQ(BytesPerToken(LoadModel("llama-3.1-70b"), 8), 40960u);
  const auto llama = LoadModel("llama-3.1-8b"), deepseek = LoadModel("deepseek-v3");
  ASSERT_TRUE(llama.ok() && deepseek.ok());
  const auto replicated = DivideOverRanks(*llama, 16);
  ASSERT_TRUE(replicated.ok());
  EXPECT_EQ(replicated->bytes_per_token, 131072u / 8) << "one head a rank, each on two ranks";
  EXPECT_EQ(replicated->copies, 2u);
  EXPECT_EQ(replicated->all_bytes_per_token, 2 * 131072u) << "each rank stores its own";
  const auto latent = DivideOverRanks(*deepseek, 8);
  ASSERT_TRUE(latent.ok());
  EXPECT_EQ(latent->bytes_per_token, 70272u) << "a latent has no heads to divide";
  EXPECT_EQ(latent->copies, 8u);
  EXPECT_EQ(latent->all_bytes_per_token, 70272u) << "ranks share a latent";
  EXPECT_THAT(std::string(DivideOverRanks(*llama, 3).status().message()), HasSubstr("multiple"));
  EXPECT_FALSE(DivideOverRanks(*llama, 0).ok());
}

TEST(Model, WindowsAreAPartOfTheBytesOfAToken) {
  const auto model = LoadModel("gemma-3-27b");
  ASSERT_TRUE(model.ok());
  const auto rank = DivideOverRanks(*model, 1);
  ASSERT_TRUE(rank.ok());
  const uint64_t layer = 16 * 256 * 2;
  EXPECT_EQ(rank->window_bytes, 52 * layer);
  EXPECT_EQ(rank->bytes_per_token, 62 * layer);
}

TEST(Model, LayersWithWindowsAreThoseOfTheArchitecture) {
  Json config = Llama();
  config["sliding_window"] = 4096;
  const auto layers = [&] {
    const auto model = ParseModelConfig(config.dump(), "c.json");
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? model->layers : std::vector<KvLayers>();
  };
  EXPECT_EQ(layers(), (std::vector<KvLayers>{{32, 8, 128, 128, 0}})) << "llama has no windows";
  config["model_type"] = "mistral";
  EXPECT_EQ(layers(), (std::vector<KvLayers>{{32, 8, 128, 128, 4096}}));
  config["sliding_window"] = nullptr;
  EXPECT_EQ(layers(), (std::vector<KvLayers>{{32, 8, 128, 128, 0}}));
  config["sliding_window"] = 4096;
  config["model_type"] = "gemma2";
  EXPECT_EQ(layers(), (std::vector<KvLayers>{{16, 8, 128, 128, 0}, {16, 8, 128, 128, 4096}}));
  config["model_type"] = "qwen2";
  config["use_sliding_window"] = true;
  config["max_window_layers"] = 20;
  EXPECT_EQ(layers(), (std::vector<KvLayers>{{20, 8, 128, 128, 0}, {12, 8, 128, 128, 4096}}));
  config["model_type"] = "jamba";
  config["attn_layer_period"] = 8;
  config["attn_layer_offset"] = 4;
  EXPECT_EQ(layers(), (std::vector<KvLayers>{{4, 8, 128, 128, 0}}));
  config["model_type"] = "bamba";
  config["attn_layer_indices"] = {9, 18, 27};
  EXPECT_EQ(layers(), (std::vector<KvLayers>{{3, 8, 128, 128, 0}}));
  config["model_type"] = "llama4_text";
  config["no_rope_layers"] = std::vector<int>(32, 1);
  config["no_rope_layers"][31] = 0;
  config["attention_chunk_size"] = 8192;
  EXPECT_EQ(layers(), (std::vector<KvLayers>{{1, 8, 128, 128, 0}, {31, 8, 128, 128, 8192}}));
  config["num_kv_shared_layers"] = 2;
  EXPECT_EQ(layers(), (std::vector<KvLayers>{{30, 8, 128, 128, 8192}}));
}

TEST(Model, TheTypeOfKvIsNamedOrRead) {
  Json config = Llama();
  EXPECT_EQ(BytesPerToken(ParseModelConfig(config.dump(), "c", "fp8")), 65536u);
  config["quantization_config"] = {{"kv_cache_scheme", {{"num_bits", 8}, {"type", "float"}}}};
  EXPECT_EQ(BytesPerToken(ParseModelConfig(config.dump(), "c")), 65536u);
  config["quantization_config"]["kv_cache_scheme"]["num_bits"] = 4;
  EXPECT_THAT(ErrorOf(config), HasSubstr("kv_cache_scheme"));
  config = Llama();
  config.erase("torch_dtype");
  EXPECT_THAT(ErrorOf(config), AllOf(HasSubstr("torch_dtype"), HasSubstr("--kv-dtype")));
  config["dtype"] = "float32";
  EXPECT_EQ(BytesPerToken(ParseModelConfig(config.dump(), "c")), 262144u);
  EXPECT_FALSE(LoadModel("llama-3.1-8b", "int3").ok());
}

TEST(Model, WhatIsNotGivenIsANoteOrAnError) {
  const auto mha = LoadModel(Fixture("llama-2-7b"));
  ASSERT_TRUE(mha.ok());
  EXPECT_THAT(mha->notes, testing::Contains(HasSubstr("num_key_value_heads")));
  EXPECT_THAT(mha->notes, testing::Contains(HasSubstr("head_dim")));
  for (const char* field :
       {"model_type", "hidden_size", "num_attention_heads", "num_hidden_layers"}) {
    Json config = Llama();
    config.erase(field);
    EXPECT_THAT(ErrorOf(config), AllOf(HasSubstr("c.json: "), HasSubstr(field)));
    for (const Json& bad : {Json(0), Json(-3), Json(1.5), Json("32"), Json(1ull << 40)}) {
      config[field] = bad;
      EXPECT_THAT(ErrorOf(config), HasSubstr(field)) << bad;
    }
  }
  Json qwen = Llama();
  qwen["model_type"] = "qwen3";
  qwen.erase("num_key_value_heads");
  EXPECT_THAT(ErrorOf(qwen), HasSubstr("num_key_value_heads is missing"));
}

TEST(Model, ContradictionsAndUnknownsAreErrors) {
  const auto with = [](std::initializer_list<std::pair<const char*, Json>> changes) {
    Json config = Llama();
    for (const auto& [field, value] : changes) config[field] = value;
    return ErrorOf(config);
  };
  EXPECT_THAT(with({{"num_key_value_heads", 64}}), HasSubstr("contradicts num_attention_heads"));
  EXPECT_THAT(with({{"num_key_value_heads", 7}}), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(with({{"hidden_size", 4097}}), HasSubstr("hidden_size"));
  EXPECT_THAT(with({{"layer_types", {"full_attention"}}}), HasSubstr("layer_types"));
  EXPECT_THAT(with({{"layer_types", std::vector<std::string>(32, "magic")}}),
              HasSubstr("layer_types[0] is 'magic'"));
  EXPECT_THAT(with({{"layer_types", std::vector<std::string>(32, "sliding_attention")}}),
              HasSubstr("sliding_window is missing"));
  EXPECT_THAT(with({{"layer_types", std::vector<std::string>(32, "mamba")}}),
              HasSubstr("no layer with KV"));
  EXPECT_THAT(with({{"model_type", "perceiver"}}),
              AllOf(HasSubstr("perceiver"), HasSubstr("llama")));
  EXPECT_THAT(with({{"model_type", "gpt_oss"}}), HasSubstr("layer_types is missing"));
  EXPECT_THAT(with({{"model_type", "deepseek_v3"}}), HasSubstr("kv_lora_rank is missing"));
  EXPECT_THAT(with({{"torch_dtype", "int8"}}), HasSubstr("torch_dtype"));
  EXPECT_THAT(ErrorOf(Json::array()), HasSubstr("not a JSON object"));
  const auto broken = ParseModelConfig("{\n\"model_type\": ,\n}", "c.json");
  EXPECT_THAT(std::string(broken.status().message()),
              AllOf(HasSubstr("c.json"), HasSubstr("line 2")));
  EXPECT_THAT(std::string(LoadModel("/nowhere/config.json").status().message()),
              HasSubstr("/nowhere/config.json"));
}

}  // namespace
}  // namespace kvstow::planner
