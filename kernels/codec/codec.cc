#include "kernels/codec/codec.h"

#include <string>

#include "base/digest.h"
#include "kernels/codec/run_codecs.h"

namespace kvstow {

size_t ExactRunBytes(const Codec& codec, uint32_t tokens) {
  const auto ops = codec.recipe().codec_ops();
  if (ops.empty() || ops.back().name != "raw") return 0;
  const auto layers = LayersPerRun(codec.recipe(), codec.spec(), codec.levels());
  return layers.ok() ? *layers * LayerBytes(codec.spec(), tokens) : 0;
}

PageHeader NewPageHeader(const Codec& codec, const PageToEncode& page) {
  const KvSpec& spec = codec.spec();
  PageHeader header;
  header.key = std::string(page.key);
  header.pipeline = codec.recipe().pipeline();
  header.exact = codec.exact();
  header.layers = spec.layers;
  header.kv_heads = spec.kv_heads;
  header.head_dim_k = spec.head_dim_k;
  header.head_dim_v = spec.head_dim_v;
  header.dtype = spec.dtype;
  header.rope = spec.rope;
  header.other_rope = spec.other_rope;
  header.tokens = page.tokens;
  header.first_position = page.first_position;
  header.raw_digest = page.raw_digest.has_value() ? *page.raw_digest : Xxh3_128(page.raw);
  return header;
}

}  // namespace kvstow
