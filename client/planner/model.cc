#include "client/planner/model.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace kvstow::planner {
namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{4} << 20;
constexpr DType kBf16 = DType::kBF16, kF16 = DType::kF16;
constexpr KvLayers kNone = {};

// Rows are {layers, kv_heads, head_dim_k, head_dim_v, window}.
constexpr KnownModel kModels[] = {
    {"deepseek-v2", kBf16, {60, 1, 576, 0}, kNone, 0},
    {"deepseek-v2-lite", kBf16, {27, 1, 576, 0}, kNone, 0},
    {"deepseek-v3", kBf16, {61, 1, 576, 0}, kNone, 0},
    {"deepseek-r1", kBf16, {61, 1, 576, 0}, kNone, 0},
    {"kimi-k2", kBf16, {61, 1, 576, 0}, kNone, 0},
    {"gemma-2-9b", kBf16, {21, 8, 256, 256}, {21, 8, 256, 256, 4096}, 0},
    {"gemma-2-27b", kBf16, {23, 16, 128, 128}, {23, 16, 128, 128, 4096}, 0},
    {"gemma-3-270m", kBf16, {3, 1, 256, 256}, {15, 1, 256, 256, 512}, 0},
    {"gemma-3-1b", kBf16, {4, 1, 256, 256}, {22, 1, 256, 256, 512}, 0},
    {"gemma-3-4b", kBf16, {5, 4, 256, 256}, {29, 4, 256, 256, 1024}, 0},
    {"gemma-3-12b", kBf16, {8, 8, 256, 256}, {40, 8, 256, 256, 1024}, 0},
    {"gemma-3-27b", kBf16, {10, 16, 128, 128}, {52, 16, 128, 128, 1024}, 0},
    {"gpt-oss-20b", kBf16, {12, 8, 64, 64}, {12, 8, 64, 64, 128}, 0},
    {"gpt-oss-120b", kBf16, {18, 8, 64, 64}, {18, 8, 64, 64, 128}, 0},
    {"llama-2-7b", kF16, {32, 32, 128, 128}, kNone, 0},
    {"llama-2-13b", kF16, {40, 40, 128, 128}, kNone, 0},
    {"llama-2-70b", kF16, {80, 8, 128, 128}, kNone, 0},
    {"llama-3-8b", kBf16, {32, 8, 128, 128}, kNone, 0},
    {"llama-3-70b", kBf16, {80, 8, 128, 128}, kNone, 0},
    {"llama-3.1-8b", kBf16, {32, 8, 128, 128}, kNone, 0},
    {"llama-3.1-70b", kBf16, {80, 8, 128, 128}, kNone, 0},
    {"llama-3.1-405b", kBf16, {126, 8, 128, 128}, kNone, 0},
    {"llama-3.2-1b", kBf16, {16, 8, 64, 64}, kNone, 0},
    {"llama-3.2-3b", kBf16, {28, 8, 128, 128}, kNone, 0},
    {"llama-3.3-70b", kBf16, {80, 8, 128, 128}, kNone, 0},
    {"mistral-7b-v0.1", kBf16, kNone, {32, 8, 128, 128, 4096}, 0},
    {"mistral-7b-v0.3", kBf16, {32, 8, 128, 128}, kNone, 0},
    {"mixtral-8x7b-v0.1", kBf16, {32, 8, 128, 128}, kNone, 0},
    {"phi-4", kBf16, {40, 10, 128, 128}, kNone, 0},
    {"qwen2.5-0.5b", kBf16, {24, 2, 64, 64}, kNone, 0},
    {"qwen2.5-1.5b", kBf16, {28, 2, 128, 128}, kNone, 0},
    {"qwen2.5-3b", kBf16, {36, 2, 128, 128}, kNone, 0},
    {"qwen2.5-7b", kBf16, {28, 4, 128, 128}, kNone, 0},
    {"qwen2.5-14b", kBf16, {48, 8, 128, 128}, kNone, 0},
    {"qwen2.5-32b", kBf16, {64, 8, 128, 128}, kNone, 0},
    {"qwen2.5-72b", kBf16, {80, 8, 128, 128}, kNone, 0},
    {"qwen3-0.6b", kBf16, {28, 8, 128, 128}, kNone, 0},
    {"qwen3-4b", kBf16, {36, 8, 128, 128}, kNone, 0},
    {"qwen3-8b", kBf16, {36, 8, 128, 128}, kNone, 0},
    {"qwen3-14b", kBf16, {40, 8, 128, 128}, kNone, 0},
    {"qwen3-32b", kBf16, {64, 8, 128, 128}, kNone, 0},
    {"qwen3-30b-a3b", kBf16, {48, 4, 128, 128}, kNone, 0},
    {"qwen3-235b-a22b", kBf16, {94, 4, 128, 128}, kNone, 0},
    {"qwen3-next-80b-a3b", kBf16, {12, 2, 256, 256}, kNone, 36},
    {"smollm2-135m", kBf16, {30, 3, 64, 64}, kNone, 0},
    {"smollm2-360m", kBf16, {32, 5, 64, 64}, kNone, 0},
    {"smollm2-1.7b", kBf16, {24, 32, 64, 64}, kNone, 0},
};

uint64_t LayerTokenBytes(const KvLayers& l, DType dtype) {
  return uint64_t{l.kv_heads} * (l.head_dim_k + l.head_dim_v) * DTypeBytes(dtype);
}

absl::StatusOr<std::string> ReadConfig(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::string text;
  text.resize(kMaxConfigBytes + 1);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is larger than 4 MiB: is it a config.json?"));
  }
  return text;
}

}  // namespace

std::span<const KnownModel> KnownModels() { return kModels; }

absl::StatusOr<DType> ParseKvDType(absl::string_view name) {
  const std::string lower = absl::AsciiStrToLower(name);
  if (lower == "fp8") return DType::kF8E4M3;
  if (lower == "float16") return DType::kF16;
  if (lower == "bfloat16") return DType::kBF16;
  if (lower == "float32") return DType::kF32;
  if (const auto dtype = ParseDType(absl::AsciiStrToUpper(name)); dtype.ok()) return *dtype;
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is not a type of KV values: use f16, bf16, f32 or fp8"));
}

absl::StatusOr<ModelKv> FindModel(absl::string_view name) {
  std::string lower = absl::AsciiStrToLower(name);
  if (const size_t slash = lower.rfind('/'); slash != std::string::npos) lower.erase(0, slash + 1);
  absl::string_view base = lower;
  for (const absl::string_view end : {"-instruct", "-it", "-chat"}) {
    if (absl::ConsumeSuffix(&base, end)) break;
  }
  std::string names;
  for (const KnownModel& m : kModels) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", m.name);
    if (base != m.name) continue;
    ModelKv model{.name = std::string(m.name), .source = "built-in table", .dtype = m.dtype};
    if (m.full.layers > 0) model.layers.push_back(m.full);
    if (m.windows.layers > 0) model.layers.push_back(m.windows);
    model.state_layers = m.state_layers;
    return model;
  }
  return absl::NotFoundError(absl::StrCat(
      "model '", name, "' is neither a file nor known: give its config.json, or one of ", names));
}

absl::StatusOr<ModelKv> LoadModel(const std::string& name_or_path, absl::string_view dtype) {
  std::error_code error;
  std::filesystem::path path = name_or_path;
  const bool folder = std::filesystem::is_directory(path, error);
  if (folder) path /= "config.json";
  if (folder || std::filesystem::is_regular_file(path, error) || path.extension() == ".json") {
    KVSTOW_ASSIGN_OR_RETURN(const std::string text, ReadConfig(path.string()));
    return ParseModelConfig(text, path.string(), dtype);
  }
  KVSTOW_ASSIGN_OR_RETURN(ModelKv model, FindModel(name_or_path));
  if (!dtype.empty()) {
    KVSTOW_ASSIGN_OR_RETURN(model.dtype, ParseKvDType(dtype));
  }
  return model;
}

absl::StatusOr<RankKv> DivideOverRanks(const ModelKv& model, uint32_t ranks) {
  if (ranks == 0) return absl::InvalidArgumentError("tensor-parallel size 0: it must be 1 or more");
  RankKv out{.ranks = ranks};
  for (KvLayers l : model.layers) {
    if (l.latent() || (ranks > l.kv_heads && ranks % l.kv_heads == 0)) {
      out.copies = std::max(out.copies, ranks / l.kv_heads);
      l.kv_heads = 1;
    } else if (l.kv_heads % ranks == 0) {
      l.kv_heads /= ranks;
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor-parallel size ", ranks, " and ", l.kv_heads,
                       " KV heads: one must be a multiple of the other"));
    }
    const uint64_t bytes = l.layers * LayerTokenBytes(l, model.dtype);
    out.bytes_per_token += bytes;
    out.window_bytes += l.window > 0 ? bytes : 0;
    out.all_bytes_per_token += l.latent() ? bytes : ranks * bytes;
    out.layers.push_back(l);
  }
  return out;
}

}  // namespace kvstow::planner
