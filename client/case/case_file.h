// A case: the KV cache of one prompt in a safetensors file, and decoded copies of it.
//
// The file has the tensors `k.L`, `v.L` [tokens, kv_heads, head_dim] (F16, BF16 or F32) for each
// layer L, and `tokens` (I32); the metadata `layers, kv_heads, head_dim, rope_theta, rope_layout,
// prefix` and optionally `model` and `revision`. Where some layers have another theta, it is
// `other_rope_theta`, and `other_rope_layers` lists them ("5,11,17"). Only the first `prefix` of
// `tokens` have KV. The reader ignores everything else.
//
// Errors: INVALID_ARGUMENT or NOT_FOUND, with the file and the tensor or metadata field.
#ifndef KVSTOW_CLIENT_CASE_CASE_FILE_H_
#define KVSTOW_CLIENT_CASE_CASE_FILE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/case/safetensors.h"
#include "kernels/importance/budget.h"
#include "kernels/page/page.h"

namespace kvstow {

class CaseFile {
 public:
  static absl::StatusOr<CaseFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  // The model's geometry, for pages of `page_tokens`.
  KvSpec Spec(uint32_t page_tokens) const;
  // The tokens that have KV.
  std::span<const int32_t> tokens() const { return tokens_; }
  const TensorMetadata& metadata() const { return file_.metadata(); }
  // Everything that the file holds.
  const SafetensorsReader& tensors() const { return file_; }

  // Writes the page of tokens [first, first + count) into `out`, PageBytes(spec, count) bytes.
  // The range must lie within tokens().
  void ReadPage(uint32_t first, uint32_t count, std::span<uint8_t> out) const;
  // Writes K or V of one layer, all of tokens(), into `out`.
  void ReadSlab(uint32_t layer, Part part, std::span<uint8_t> out) const;

 private:
  explicit CaseFile(SafetensorsReader file) : file_(std::move(file)) {}
  absl::Status ReadSpec();
  absl::Status ReadOtherRope();
  absl::Status ReadTokens();
  absl::Status FindSlabs();

  SafetensorsReader file_;
  KvSpec spec_;
  std::vector<int32_t> tokens_;
  std::vector<std::span<const uint8_t>> slabs_;  // k.0, v.0, k.1, v.1, ... of all tokens
};

// One page of a sequence, as decoding returns it.
struct DecodedPage {
  uint32_t first = 0, count = 0;  // tokens
  std::span<const uint8_t> raw;
  // The tokens that it holds; null = all.
  const Selection* kept = nullptr;
};

// Writes consecutive pages from token 0 as the tensors k.L and v.L in the spec's dtype. The
// metadata are the case's, with `prefix` set to the number of tokens that are there, and
// `stored_bytes`. When a page lacks tokens, also writes keep.L, U8 [tokens, kv_heads]: 0 = dropped.
absl::Status WriteDecoded(const std::string& path, const CaseFile& source,
                          std::span<const DecodedPage> pages, uint64_t stored_bytes);

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CASE_CASE_FILE_H_
