// Reads Hugging Face's config.json. Rules of each architecture follow its configuration class in
// the transformers library.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/planner/model.h"

namespace kvstow::planner {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kMaxValue = 1u << 30;

enum class LayerKind { kFull, kWindow, kState };

// How an architecture tells which layer is what, where the file has no layer_types.
enum class Layout {
  kFull,         // all alike
  kWindowIfSet,  // all have a window when sliding_window is a number
  kQwen,         // use_sliding_window: from layer max_window_layers on
  kAlternate,    // every other one, the first has a window
  kPattern,      // every sliding_window_pattern-th looks back over everything
  kInterval,     // every full_attention_interval-th has KV
  kPeriod,       // attn_layer_period and attn_layer_offset: the rest keeps a state
  kIndices,      // attn_layer_indices have KV
  kNoRope,       // no_rope_layers: 1 marks a layer with chunks of attention_chunk_size
  kNeedTypes,    // only layer_types tells
};

struct Architecture {
  absl::string_view type;  // model_type
  Layout layout = Layout::kFull;
  bool latent = false;            // MLA
  bool absent_kv_is_mha = false;  // its class: num_key_value_heads = num_attention_heads if absent
};

constexpr Architecture kArchitectures[] = {
    {"bamba", Layout::kIndices},
    {"cohere", Layout::kFull, false, true},
    {"cohere2", Layout::kPattern},
    {"deepseek_v2", Layout::kFull, true},
    {"deepseek_v3", Layout::kFull, true},
    {"gemma"},
    {"gemma2", Layout::kAlternate},
    {"gemma3_text", Layout::kPattern},
    {"glm"},
    {"glm4"},
    {"glm4_moe"},
    {"gpt_oss", Layout::kNeedTypes},
    {"granite", Layout::kFull, false, true},
    {"granitemoehybrid", Layout::kNeedTypes},
    {"jamba", Layout::kPeriod},
    {"kimi_k2", Layout::kFull, true},
    {"lfm2", Layout::kNeedTypes},
    {"llama", Layout::kFull, false, true},
    {"llama4_text", Layout::kNoRope},
    {"minicpm3", Layout::kFull, true},
    {"mistral", Layout::kWindowIfSet},
    {"mixtral", Layout::kWindowIfSet},
    {"olmo", Layout::kFull, false, true},
    {"olmo2", Layout::kFull, false, true},
    {"olmo3", Layout::kNeedTypes},
    {"phi", Layout::kFull, false, true},
    {"phi3", Layout::kWindowIfSet, false, true},
    {"qwen2", Layout::kQwen},
    {"qwen2_moe", Layout::kQwen},
    {"qwen3", Layout::kQwen},
    {"qwen3_moe", Layout::kQwen},
    {"qwen3_next", Layout::kInterval},
    {"smollm3", Layout::kNeedTypes},
    {"stablelm"},
    {"starcoder2", Layout::kWindowIfSet},
};

const Architecture* FindArchitecture(absl::string_view type) {
  for (const Architecture& a : kArchitectures) {
    if (a.type == type) return &a;
  }
  return nullptr;
}

// The object that holds the text model's fields, and messages that name file and field.
class Fields {
 public:
  Fields(const Json& object, std::string file, std::string prefix)
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

  absl::Status Wrong(absl::string_view field, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(file_, ": ", prefix_, field, " ", what));
  }
  // A field that is not there and one that is null are the same to Hugging Face, but for defaults.
  bool Has(const char* field) const { return object_.contains(field) && !object_[field].is_null(); }
  bool Names(const char* field) const { return object_.contains(field); }
  const Json& operator[](const char* field) const { return object_[field]; }

  absl::StatusOr<uint32_t> Number(const char* field, uint32_t low = 1,
                                  uint32_t high = kMaxValue) const {
    if (!Has(field)) return Wrong(field, "is missing");
    return NumberIn(object_[field], field, low, high);
  }
  absl::StatusOr<uint32_t> NumberIn(const Json& value, absl::string_view field, uint32_t low,
                                    uint32_t high) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() < low ||
        value.get<uint64_t>() > high) {
      return Wrong(field,
                   absl::StrCat("is ", value.dump(-1, ' ', false, Json::error_handler_t::replace),
                                "; it must be an integer from ", low, " to ", high));
    }
    return value.get<uint32_t>();
  }
  absl::StatusOr<std::string> Text(const char* field) const {
    if (!Has(field)) return Wrong(field, "is missing");
    if (!object_[field].is_string()) return Wrong(field, "is not a text");
    return object_[field].get<std::string>();
  }

 private:
  const Json& object_;
  const std::string file_, prefix_;
};

absl::StatusOr<LayerKind> KindOf(const Fields& fields, size_t layer, const Json& type) {
  const std::string name = type.is_string() ? type.get<std::string>() : "?";
  if (name == "full_attention" || name == "attention") return LayerKind::kFull;
  if (name == "sliding_attention" || name == "chunked_attention") return LayerKind::kWindow;
  if (name == "linear_attention" || name == "mamba" || name == "conv" || name == "recurrent") {
    return LayerKind::kState;
  }
  return fields.Wrong(absl::StrCat("layer_types[", layer, "]"),
                      absl::StrCat("is '", name, "', a kind of layer that is not known"));
}

absl::StatusOr<std::vector<LayerKind>> ListedKinds(const Fields& fields, uint32_t layers) {
  const Json& types = fields["layer_types"];
  if (!types.is_array() || types.size() != layers) {
    return fields.Wrong("layer_types", absl::StrCat("must be a list of num_hidden_layers = ",
                                                    layers, " kinds; it has ", types.size()));
  }
  std::vector<LayerKind> kinds;
  for (size_t i = 0; i < types.size(); ++i) {
    KVSTOW_ASSIGN_OR_RETURN(const LayerKind kind, KindOf(fields, i, types[i]));
    kinds.push_back(kind);
  }
  return kinds;
}

// The layers that attn_layer_indices or no_rope_layers list.
absl::Status MarkListed(const Fields& fields, const char* field, bool flags,
                        std::vector<LayerKind>& kinds) {
  if (!fields.Has(field)) return fields.Wrong(field, "is missing");
  const Json& list = fields[field];
  if (!list.is_array() || (flags && list.size() != kinds.size())) {
    return fields.Wrong(field, "is not a list that fits num_hidden_layers");
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const uint32_t high = flags ? 1 : static_cast<uint32_t>(kinds.size()) - 1;
    KVSTOW_ASSIGN_OR_RETURN(const uint32_t value,
                            fields.NumberIn(list[i], absl::StrCat(field, "[", i, "]"), 0, high));
    if (flags) {
      kinds[i] = value == 1 ? LayerKind::kWindow : LayerKind::kFull;
    } else {
      kinds[value] = LayerKind::kFull;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<LayerKind>> LayerKinds(const Fields& fields, const Architecture& a,
                                                  uint32_t layers) {
  if (fields.Has("layer_types")) return ListedKinds(fields, layers);
  std::vector<LayerKind> kinds(layers, LayerKind::kFull);
  switch (a.layout) {
    case Layout::kFull:
      break;
    case Layout::kWindowIfSet:
      if (fields.Has("sliding_window")) kinds.assign(layers, LayerKind::kWindow);
      break;
    case Layout::kQwen:
      if (fields.Has("use_sliding_window") && fields["use_sliding_window"] == true) {
        KVSTOW_ASSIGN_OR_RETURN(const uint32_t first, fields.Number("max_window_layers", 0));
        for (uint32_t i = first; i < layers; ++i) kinds[i] = LayerKind::kWindow;
      }
      break;
    case Layout::kAlternate:
      for (uint32_t i = 0; i < layers; i += 2) kinds[i] = LayerKind::kWindow;
      break;
    case Layout::kPattern: {
      KVSTOW_ASSIGN_OR_RETURN(const uint32_t every, fields.Number("sliding_window_pattern"));
      for (uint32_t i = 0; i < layers; ++i) {
        if ((i + 1) % every != 0) kinds[i] = LayerKind::kWindow;
      }
      break;
    }
    case Layout::kInterval: {
      KVSTOW_ASSIGN_OR_RETURN(const uint32_t every, fields.Number("full_attention_interval"));
      for (uint32_t i = 0; i < layers; ++i) {
        if ((i + 1) % every != 0) kinds[i] = LayerKind::kState;
      }
      break;
    }
    case Layout::kPeriod: {
      KVSTOW_ASSIGN_OR_RETURN(const uint32_t period, fields.Number("attn_layer_period"));
      KVSTOW_ASSIGN_OR_RETURN(const uint32_t offset,
                              fields.Number("attn_layer_offset", 0, period - 1));
      for (uint32_t i = 0; i < layers; ++i) {
        if (i % period != offset) kinds[i] = LayerKind::kState;
      }
      break;
    }
    case Layout::kIndices:
      kinds.assign(layers, LayerKind::kState);
      KVSTOW_RETURN_IF_ERROR(MarkListed(fields, "attn_layer_indices", false, kinds));
      break;
    case Layout::kNoRope:
      KVSTOW_RETURN_IF_ERROR(MarkListed(fields, "no_rope_layers", true, kinds));
      break;
    case Layout::kNeedTypes:
      return fields.Wrong("layer_types", "is missing: nothing else tells which layers have KV");
  }
  return kinds;
}

// Heads and channels of a layer.
absl::StatusOr<KvLayers> Geometry(const Fields& fields, const Architecture& a, ModelKv& model) {
  KvLayers out;
  if (a.latent) {
    KVSTOW_ASSIGN_OR_RETURN(const uint32_t rank, fields.Number("kv_lora_rank"));
    KVSTOW_ASSIGN_OR_RETURN(const uint32_t rope, fields.Number("qk_rope_head_dim"));
    out.kv_heads = 1;
    out.head_dim_k = rank + rope;
    return out;
  }
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t heads, fields.Number("num_attention_heads"));
  const char* const kv = "num_key_value_heads";
  if (fields.Has(kv)) {
    KVSTOW_ASSIGN_OR_RETURN(out.kv_heads, fields.Number(kv, 1, kMaxHeads));
  } else if (fields.Names(kv) || a.absent_kv_is_mha) {
    out.kv_heads = heads;
    model.notes.push_back(
        absl::StrCat(kv, " is not given: num_attention_heads = ", heads, " of them"));
  } else {
    return fields.Wrong(kv, "is missing");
  }
  if (out.kv_heads > heads || heads % out.kv_heads != 0) {
    return fields.Wrong(kv, absl::StrCat("= ", out.kv_heads, " contradicts num_attention_heads = ",
                                         heads, ": it must divide it"));
  }
  if (fields.Has("head_dim")) {
    KVSTOW_ASSIGN_OR_RETURN(out.head_dim_k, fields.Number("head_dim"));
  } else {
    KVSTOW_ASSIGN_OR_RETURN(const uint32_t hidden, fields.Number("hidden_size"));
    if (hidden % heads != 0) {
      return fields.Wrong("hidden_size",
                          absl::StrCat("= ", hidden, " contradicts num_attention_heads = ", heads,
                                       ": it does not divide by it, and there is no head_dim"));
    }
    out.head_dim_k = hidden / heads;
    model.notes.push_back(absl::StrCat(
        "head_dim is not given: hidden_size / num_attention_heads = ", out.head_dim_k));
  }
  out.head_dim_v = out.head_dim_k;
  return out;
}

absl::StatusOr<DType> DTypeOf(const Fields& fields, const Fields& top, absl::string_view given) {
  if (!given.empty()) return ParseKvDType(given);
  if (top.Has("quantization_config") && top["quantization_config"].is_object()) {
    const Json& quantization = top["quantization_config"];
    const auto scheme = quantization.find("kv_cache_scheme");
    if (scheme != quantization.end() && scheme->is_object()) {
      if (scheme->value("num_bits", Json()) == 8 && scheme->value("type", Json()) == "float") {
        return DType::kF8E4M3;
      }
      return top.Wrong("quantization_config.kv_cache_scheme",
                       "is not 8-bit float: give --kv-dtype");
    }
  }
  for (const Fields* where : {&fields, &top}) {
    for (const char* name : {"dtype", "torch_dtype"}) {
      if (!where->Has(name)) continue;
      KVSTOW_ASSIGN_OR_RETURN(const std::string text, where->Text(name));
      const auto dtype = ParseKvDType(text);
      if (!dtype.ok()) return where->Wrong(name, dtype.status().message());
      return *dtype;
    }
  }
  return top.Wrong("torch_dtype", "is missing: give --kv-dtype");
}

absl::Status FillLayers(const Fields& fields, const Architecture& a, ModelKv& model) {
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t layers, fields.Number("num_hidden_layers", 1, kMaxLayers));
  KVSTOW_ASSIGN_OR_RETURN(KvLayers geometry, Geometry(fields, a, model));
  KVSTOW_ASSIGN_OR_RETURN(std::vector<LayerKind> kinds, LayerKinds(fields, a, layers));
  if (fields.Has("num_kv_shared_layers")) {
    KVSTOW_ASSIGN_OR_RETURN(const uint32_t shared,
                            fields.Number("num_kv_shared_layers", 0, layers - 1));
    kinds.resize(layers - shared);
  }
  const auto count = [&](LayerKind kind) {
    return static_cast<uint32_t>(std::count(kinds.begin(), kinds.end(), kind));
  };
  model.state_layers = count(LayerKind::kState);
  if (geometry.layers = count(LayerKind::kFull); geometry.layers > 0) {
    model.layers.push_back(geometry);
  }
  if (geometry.layers = count(LayerKind::kWindow); geometry.layers > 0) {
    const bool chunks = a.layout == Layout::kNoRope;
    KVSTOW_ASSIGN_OR_RETURN(geometry.window,
                            fields.Number(chunks ? "attention_chunk_size" : "sliding_window"));
    model.layers.push_back(geometry);
  }
  if (model.layers.empty()) return fields.Wrong("layer_types", "leaves no layer with KV");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelKv> ParseModelConfig(absl::string_view text, const std::string& file,
                                         absl::string_view dtype) {
  Json root;
  try {
    root = Json::parse(text.begin(), text.end());
  } catch (const Json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": is not JSON: ", e.what()));
  }
  if (!root.is_object()) return absl::InvalidArgumentError(file + ": is not a JSON object");
  const Fields top(root, file, "");
  const bool nested = root.contains("text_config") && root["text_config"].is_object();
  const Fields fields(nested ? root["text_config"] : root, file, nested ? "text_config." : "");
  KVSTOW_ASSIGN_OR_RETURN(const std::string type, fields.Text("model_type"));
  const Architecture* const architecture = FindArchitecture(type);
  if (architecture == nullptr) {
    std::string known;
    for (const Architecture& a : kArchitectures) absl::StrAppend(&known, " ", a.type);
    return fields.Wrong("model_type",
                        absl::StrCat("= '", type, "' is not known. Known are:", known));
  }
  ModelKv model{.name = type, .source = file};
  if (root.contains("_name_or_path") && root["_name_or_path"].is_string() &&
      !root["_name_or_path"].get<std::string>().empty()) {
    model.name = root["_name_or_path"].get<std::string>();
  }
  KVSTOW_ASSIGN_OR_RETURN(model.dtype, DTypeOf(fields, top, dtype));
  KVSTOW_RETURN_IF_ERROR(FillLayers(fields, *architecture, model));
  return model;
}

}  // namespace kvstow::planner
