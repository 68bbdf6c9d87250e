// A run codec that keeps some tokens only: each head of each layer those that a selection
// (importance/budget.h) names, coded by another run codec as if they stood one after another.
//
// Body of the base level: which tokens each (layer, head) kept, then the length of each coded part,
// then the parts; of a further level: lengths and parts. docs/FORMAT.md has every byte. What was
// dropped decodes to zeros; KeptTokens says which tokens those are, and a worker that gets such a
// page must mask them: zeros are not what attention saw.
#ifndef KVSTOW_KERNELS_SPARSE_RUN_CODEC_H_
#define KVSTOW_KERNELS_SPARSE_RUN_CODEC_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/importance/budget.h"
#include "kernels/run_codec.h"

namespace kvstow {

// `head_codec` codes pages of one layer and one KV head of `spec`'s width.
std::unique_ptr<const RunCodec> MakeSparseRunCodec(const KvSpec& spec,
                                                   std::unique_ptr<const RunCodec> head_codec);

// Reads which tokens a base level's body keeps, from its beginning: a Selection of the run's
// layers. DATA_LOSS when it cannot be.
absl::StatusOr<Selection> ReadKept(std::span<const uint8_t> body, const Run& run, uint32_t heads);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_SPARSE_RUN_CODEC_H_
