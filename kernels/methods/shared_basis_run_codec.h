// sharedbasis(k,v): codes K of all layers of a run, and V of them, as a product of two thin
// matrices: a basis over the tokens that the layers share, and each layer's coefficients (xKV,
// arXiv 2503.18893, which takes 4 adjacent layers: `run(4)|rope|sharedbasis(k=0.125,v=0.1875)`).
//
//   X = [tokens, layers heads channels], V = its leading right singular vectors, rounded to fp16
//   A = fp16(X V^T), X' = A V
//
// k and v say how many vectors there are, as a share of X's columns (0.001..1; 0.125, 0.1875): at
// least one, at most as many as X has tokens or columns. The published figures are for whole
// prompts. The matrix V costs 16 rank / tokens bits a value, so short pages gain little.
//
// One level. Body: for K and then V: V [rank, layers heads channels] (fp16), A [tokens, rank]
// (fp16). Immutable: thread-safe.
#ifndef KVSTOW_KERNELS_METHODS_SHARED_BASIS_RUN_CODEC_H_
#define KVSTOW_KERNELS_METHODS_SHARED_BASIS_RUN_CODEC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/methods/run_codec.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<const RunCodec>> MakeSharedBasis(const OpArguments& arguments,
                                                                const KvSpec& spec);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_SHARED_BASIS_RUN_CODEC_H_
