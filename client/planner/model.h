// The bytes of a model's KV cache for each token: the first input of every capacity plan.
//
// A model comes from a Hugging Face config.json or from a small built-in table of published
// geometries. Attention may be multi-head, grouped, multi-query or latent (MLA: one vector a layer,
// no V). Layers may attend to everything or to a sliding window, or keep a state instead of KV
// (Mamba, linear attention, convolutions). Bytes of a token in one layer:
//
//   MHA, GQA, MQA   kv_heads x (head_dim_k + head_dim_v) x bytes of a value
//   MLA             (kv_lora_rank + qk_rope_head_dim) x bytes of a value
//
// A cache that serves any later prompt needs every layer of every token, windows included: nobody
// knows where the shared prefix will end.
//
// The parser never guesses in silence. A missing field is an error that names file and field, or a
// note where Hugging Face itself defines the default.
//
// Free functions and values; thread-safe.
#ifndef KVSTOW_CLIENT_PLANNER_MODEL_H_
#define KVSTOW_CLIENT_PLANNER_MODEL_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/page/page.h"

namespace kvstow::planner {

// Layers of one geometry, in no particular place of the model.
struct KvLayers {
  uint32_t layers = 0;
  uint32_t kv_heads = 0;    // of the whole model; 1 when latent
  uint32_t head_dim_k = 0;  // when latent: kv_lora_rank + qk_rope_head_dim
  uint32_t head_dim_v = 0;  // 0 = latent
  uint32_t window = 0;      // tokens that the layers look back; 0 = all
  bool latent() const { return head_dim_v == 0; }
  bool operator==(const KvLayers&) const = default;
};

struct ModelKv {
  std::string name;    // in the table or the file
  std::string source;  // "built-in table", or the path of the file
  DType dtype = DType::kBF16;
  std::vector<KvLayers> layers;    // at least one
  uint32_t state_layers = 0;       // keep a state of fixed size instead: in no figure here
  std::vector<std::string> notes;  // defaults of Hugging Face that were used
};

// The built-in table.
struct KnownModel {
  absl::string_view name;
  DType dtype;
  KvLayers full;     // layers that look back over everything; layers = 0 when there are none
  KvLayers windows;  // sliding-window layers; layers = 0 when there are none
  uint32_t state_layers;
};
std::span<const KnownModel> KnownModels();

// Returns a model of the table. Ignores case, an organisation before a slash, and "-instruct",
// "-it" or "-chat" at the end. Fails with NOT_FOUND, which lists the names.
absl::StatusOr<ModelKv> FindModel(absl::string_view name);

// Parses the text of a config.json; `file` is for messages. An empty `dtype` takes the file's.
// Fails with INVALID_ARGUMENT, which names file and field, for a missing or contradicting field, an
// unknown architecture, and text that is not JSON.
absl::StatusOr<ModelKv> ParseModelConfig(absl::string_view text, const std::string& file,
                                         absl::string_view dtype = "");

// Loads the model that the flag --model names: a config.json, a folder with one, else a name of the
// table. `dtype` ("bf16", "f16", "f32", "fp8" or as safetensors writes it) replaces the model's
// own.
absl::StatusOr<ModelKv> LoadModel(const std::string& name_or_path, absl::string_view dtype = "");

// Parses a DType as people write it. Fails with INVALID_ARGUMENT, which lists the names.
absl::StatusOr<DType> ParseKvDType(absl::string_view name);

// One rank of a tensor-parallel group, and all of them.
struct RankKv {
  uint32_t ranks = 1;
  std::vector<KvLayers> layers;  // kv_heads of the rank
  uint64_t bytes_per_token = 0;  // of a rank
  uint64_t window_bytes = 0;     // the part of them in layers with a window
  // What all ranks store: each rank its heads, in a space of its own, and all ranks one latent.
  uint64_t all_bytes_per_token = 0;
  uint32_t copies = 1;  // ranks that hold the same heads (the most of any layer)
};

// Divides heads over ranks, and replicates latent KV on every rank. With fewer heads than ranks,
// every head is on ranks / kv_heads of them. Fails with INVALID_ARGUMENT when neither divides the
// other.
absl::StatusOr<RankKv> DivideOverRanks(const ModelKv& model, uint32_t ranks);

}  // namespace kvstow::planner

#endif  // KVSTOW_CLIENT_PLANNER_MODEL_H_
