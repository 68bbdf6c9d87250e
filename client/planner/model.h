// What a model's KV cache takes for each token: the first input of every capacity plan.
//
// A model comes from a Hugging Face config.json or from a small built-in table of published
// geometries. Attention may be multi-head, grouped, multi-query or latent (MLA: one vector a layer,
// no V); layers may attend to everything, to a sliding window, or keep a state instead of KV
// (Mamba, linear attention, convolutions). Bytes of a token in one layer:
//
//   MHA, GQA, MQA   kv_heads x (head_dim_k + head_dim_v) x bytes of a value
//   MLA             (kv_lora_rank + qk_rope_head_dim) x bytes of a value
//
// A cache that serves any later prompt needs every layer of every token, windows included: where
// the shared prefix will end is not known. SequenceBytes says what an engine itself keeps.
//
// Nothing is guessed in silence: what a file leaves out is an error that names file and field, or a
// note where Hugging Face itself defines what is meant.
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
  std::string name;    // as the table or the file has it
  std::string source;  // "built-in table", or the path of the file
  DType dtype = DType::kBF16;
  std::vector<KvLayers> layers;    // at least one
  uint32_t state_layers = 0;       // keep a state of fixed size instead: not in any figure here
  std::vector<std::string> notes;  // what was taken as Hugging Face defines it
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

// A model of the table. Case, an organisation before a slash and "-instruct", "-it" or "-chat" at
// the end do not matter. NOT_FOUND lists the names.
absl::StatusOr<ModelKv> FindModel(absl::string_view name);

// The text of a config.json; `file` is for messages. INVALID_ARGUMENT names file and field: a
// missing or contradicting field, an architecture that is not known, text that is not JSON. An
// empty `dtype` takes the file's.
absl::StatusOr<ModelKv> ParseModelConfig(absl::string_view text, const std::string& file,
                                         absl::string_view dtype = "");

// What the flag --model names: a config.json, a folder with one, else a name of the table. `dtype`
// ("bf16", "f16", "f32", "fp8" or as safetensors writes it) replaces the model's own.
absl::StatusOr<ModelKv> LoadModel(const std::string& name_or_path, absl::string_view dtype = "");

// A DType as people write it; INVALID_ARGUMENT lists the names.
absl::StatusOr<DType> ParseKvDType(absl::string_view name);

// One rank of a tensor-parallel group, and all of them.
struct RankKv {
  uint32_t ranks = 1;
  std::vector<KvLayers> layers;      // kv_heads of the rank
  uint64_t bytes_per_token = 0;      // of a rank
  uint64_t window_bytes = 0;         // those of them in layers with a window
  uint64_t all_bytes_per_token = 0;  // of all ranks, each head counted once
  uint32_t copies = 1;               // ranks that hold the same heads (the most of any layer)
};

// Latent KV is replicated on every rank, heads are divided; with fewer heads than ranks every head
// is on ranks / kv_heads of them. INVALID_ARGUMENT when neither divides the other.
absl::StatusOr<RankKv> DivideOverRanks(const ModelKv& model, uint32_t ranks);

// Bytes that one sequence of `tokens` takes inside an engine, on one rank: layers with a window
// keep no more than it.
uint64_t SequenceBytes(const RankKv& rank, DType dtype, uint64_t tokens);

}  // namespace kvstow::planner

#endif  // KVSTOW_CLIENT_PLANNER_MODEL_H_
