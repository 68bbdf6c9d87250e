// A run codec that keeps some tokens only: each head of each layer those that a selection
// (importance/budget.h) names, coded by another run codec as if they stood one after another.
//
// Body of the base level: which tokens each (layer, head) kept, then the length of each coded part,
// then the parts; of a further level: lengths and parts. docs/FORMAT.md has every byte. What was
// dropped decodes to zeros; KeptTokens says which tokens those are, and a worker that gets such a
// page must mask them: zeros are not what attention saw.
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
