// The geometry of a model's KV cache and the layout of a raw page: a page before it is coded.
//
// A *page* is K and V of `tokens` consecutive tokens, in every layer of one worker rank. Its raw
// bytes are, layer after layer, the K slab and then the V slab. A *slab* is [tokens, kv_heads,
// head_dim] in row-major order, in the space's dtype, without padding. A latent (MLA) cache has no
// V: head_dim_v is 0, and K holds the latent and the RoPE part.
//
// Free functions and values; thread-safe.
#ifndef KVSTOW_KERNELS_PAGE_PAGE_H_
#define KVSTOW_KERNELS_PAGE_PAGE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvstow {

// Persisted: do not change values. FP8 values pass through untouched (exact recipes only).
enum class DType : uint8_t { kF16 = 1, kBF16 = 2, kF32 = 3, kF8E4M3 = 4, kF8E5M2 = 5 };

size_t DTypeBytes(DType dtype);
absl::string_view DTypeName(DType dtype);                  // "F16", as safetensors writes it
absl::StatusOr<DType> ParseDType(absl::string_view name);  // the inverse; INVALID_ARGUMENT
inline bool IsFloat8(DType d) { return d == DType::kF8E4M3 || d == DType::kF8E5M2; }

// The rotation of positions into K. Persisted: do not change values.
struct RopeSpec {
  enum class Layout : uint8_t {
    kNone = 0,         // no rotary positions
    kHalf = 1,         // channel i pairs with i + rotary_dims/2 (Hugging Face, vLLM)
    kInterleaved = 2,  // channel 2i pairs with 2i + 1 (GPT-J, GGUF)
  };
  enum class Scaling : uint8_t {
    kNone = 0,
    kLinear = 1,
    kNtk = 2,
    kYarn = 3,
    kLlama3 = 4,
    kLongRope = 5,  // a factor for each pair: RopeDetails; codecs take the frequencies as they are
  };
  Layout layout = Layout::kNone;
  Scaling scaling = Scaling::kNone;
  bool k_after_rope = true;  // K in the page is already rotated
  uint32_t rotary_dims = 0;  // leading channels that are rotated; 0 = all of head_dim_k
  double theta = 10000;
  double factor = 1;            // factor of the scaling
  double low_freq_factor = 1;   // llama3; YaRN's beta_slow
  double high_freq_factor = 1;  // llama3; YaRN's beta_fast
  uint32_t original_context = 0;
  bool operator==(const RopeSpec&) const = default;
};

// The rotation of some layers, where it is another one than that of the rest: Gemma 3 turns K of
// full layers by other frequencies than K of layers with a window, and SmolLM3 leaves the K of
// every fourth layer as it is.
struct OtherRope {
  RopeSpec rope;                 // stored before or behind it, as K of the rest
  std::vector<uint32_t> layers;  // that have it, ascending; empty = all layers are alike
  bool operator==(const OtherRope&) const = default;
};

// Other settings that turn or scale K. They change bytes, so they are part of the identity; no
// codec reads them.
struct RopeDetails {
  double attention_factor = 0;           // multiplies cos and sin; 0 = the method's own
  double mscale = 0;                     // YaRN of DeepSeek; 0 = not used
  double mscale_all_dim = 0;             // likewise
  std::vector<double> short_factors;     // LongRoPE: one for each pair, up to the original context
  std::vector<double> long_factors;      // and beyond it
  std::vector<uint32_t> mrope_sections;  // pairs that turn by time, height, width
  bool operator==(const RopeDetails&) const = default;
};

// The revision of weights that nobody versions. Two workers that give it vouch for each other.
inline constexpr char kUnversioned[] = "unversioned";

// Everything about a model's KV that changes bytes.
struct KvSpec {
  std::string model;        // for example "HuggingFaceTB/SmolLM2-135M-Instruct"
  std::string revision;     // revision of the weights: a commit, a digest, or kUnversioned
  uint32_t layers = 0;      // 1..1024
  uint32_t kv_heads = 0;    // KV heads of this rank, 1..1024
  uint32_t head_dim_k = 0;  // 1..1024
  uint32_t head_dim_v = 0;  // 0 = no V (MLA latent)
  DType dtype = DType::kF16;
  uint32_t page_tokens = 0;  // 1..4096; a page may hold fewer, never more
  uint32_t rank = 0;         // rank in the tensor-parallel group
  uint32_t world_size = 1;
  RopeSpec rope;
  std::string engine;  // free text: engine, version, layout; part of the identity
  // Free texts, compared as they are; "" = none.
  std::string weight_quantization;  // "awq-int4", "fp8", ...
  std::string adapter;              // LoRA or another adapter: its name and revision
  std::string kv_scales;            // scales of an FP8 cache: written out, or their digest
  uint32_t sliding_window = 0;      // tokens that a windowed layer sees; 0 = no such layers
  std::string layer_layout;         // which layers are here, and which of them see a window
  RopeDetails rope_details;
  OtherRope other_rope;
  bool operator==(const KvSpec&) const = default;
};

inline constexpr uint32_t kMaxPageTokens = 4096;
inline constexpr uint32_t kMaxLayers = 1024;
inline constexpr uint32_t kMaxHeads = 1024;
inline constexpr uint32_t kMaxHeadDim = 1024;
inline constexpr uint64_t kMaxPageBytes = uint64_t{1} << 30;  // bytes of one raw page
inline constexpr size_t kMaxKeyBytes = 64;

// Fails with INVALID_ARGUMENT, which names the field that is out of range and its limits.
absl::Status Validate(const KvSpec& spec);

// Returns the first field in which two specs differ, with both values ("layers: 30 here, 32
// asked"), or "".
std::string FirstDifference(const KvSpec& have, const KvSpec& asked);

// Returns the rotation of a layer.
const RopeSpec& RopeOfLayer(const RopeSpec& usual, const OtherRope& other, uint32_t layer);
inline const RopeSpec& RopeOfLayer(const KvSpec& spec, uint32_t layer) {
  return RopeOfLayer(spec.rope, spec.other_rope, layer);
}

// Consecutive layers of a page.
struct LayerRange {
  uint32_t first = 0;
  uint32_t count = 0;
};
// Consecutive tokens of a page.
struct TokenRange {
  uint32_t first = 0;
  uint32_t count = 0;
};
struct PageRange {  // a count of 0 = all from `first`
  LayerRange layers;
  TokenRange tokens;
};

// A token of the model's vocabulary.
using TokenId = uint32_t;
inline constexpr TokenId kUnknownToken = UINT32_MAX;
inline constexpr uint32_t kMaxVocabulary = 1 << 24;  // tokens

// Sizes: SlabValues counts values, the others count bytes. V's are 0 where there is no V.
enum class Part : uint8_t { kK = 0, kV = 1 };
size_t SlabValues(const KvSpec& spec, Part part, uint32_t tokens);
size_t LayerBytes(const KvSpec& spec, uint32_t tokens);
size_t PageBytes(const KvSpec& spec, uint32_t tokens);
size_t BytesPerToken(const KvSpec& spec);

// Returns the byte at which the slab of `part` of `layer` begins in a raw page of `tokens` tokens.
size_t SlabOffset(const KvSpec& spec, uint32_t layer, Part part, uint32_t tokens);

// Copies the wanted tokens out of `raw`, the raw bytes of `layers` layers of a page of `tokens`
// tokens. `out` becomes those layers of a page of wanted.count tokens.
void CopyTokens(const KvSpec& spec, uint32_t layers, uint32_t tokens, std::span<const uint8_t> raw,
                TokenRange wanted, std::span<uint8_t> out);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_PAGE_PAGE_H_
