// A run codec that keeps some tokens only. Each head of each layer keeps those that a selection
// (importance/budget.h) names. Another run codec codes them as if they stood one after another.
//
// The body of the base level says which tokens each (layer, head) kept. The length of each coded
// part and the parts follow. A further level has lengths and parts. docs/FORMAT.md has every byte.
// Dropped tokens decode to zeros. KeptTokens (decode_page.h) says which tokens are kept. A worker
// that gets such a page must mask the others: zeros are not what attention saw.
#ifndef KVSTOW_KERNELS_METHODS_SPARSE_RUN_CODEC_H_
#define KVSTOW_KERNELS_METHODS_SPARSE_RUN_CODEC_H_

#include <memory>

#include "kernels/methods/run_codec.h"

namespace kvstow {

// `head_codec` codes pages of one layer and one KV head of `spec`'s width.
std::unique_ptr<const RunCodec> MakeSparseRunCodec(const KvSpec& spec,
                                                   std::unique_ptr<const RunCodec> head_codec);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_SPARSE_RUN_CODEC_H_
