// lossless: entropy-codes the very bytes that were put. Any dtype, any bit pattern.
//
// It splits values by bytes (transform/byte_planes.h). In KV, signs and mantissas are noise.
// Exponents are not, least of all within a channel. Byte rANS codes the plane that has them, with
// tables of the run's own, which channels of alike bytes share (entropy/byte_classes.h). Each plane
// is kept as it is, or as one byte when it has no other, or coded, whichever is least. So F32 that
// came from 16-bit values costs what those would. Relatives: DFloat11 (arXiv:2504.11651) and ZipNN
// (arXiv:2411.05239), which code weights by Huffman codes and one table.
//
// docs/FORMAT.md has the body. Layers of a page of few tokens share a stream. A reader of one layer
// decodes those that share it.
#ifndef KVSTOW_KERNELS_METHODS_LOSSLESS_RUN_CODEC_H_
#define KVSTOW_KERNELS_METHODS_LOSSLESS_RUN_CODEC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/methods/run_codec.h"
#include "kernels/recipe/op_arguments.h"

namespace kvstow {

// Takes no argument.
absl::StatusOr<std::unique_ptr<const RunCodec>> MakeLossless(const OpArguments& arguments,
                                                             const KvSpec& spec);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_LOSSLESS_RUN_CODEC_H_
