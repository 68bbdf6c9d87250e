// The run codec that takes each slab by itself through transforms, then one quantizer.
//
// The body of a level has the quantizer's body of that level for K of the first layer, V of the
// first layer, K of the second, and so on. Sizes follow from the shape. At the base level each of
// them stands behind the side parts of the transforms, in their order.
#ifndef KVSTOW_KERNELS_METHODS_SLAB_RUN_CODEC_H_
#define KVSTOW_KERNELS_METHODS_SLAB_RUN_CODEC_H_

#include <memory>
#include <vector>

#include "kernels/methods/run_codec.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/transform/transform.h"

namespace kvstow {

std::unique_ptr<const RunCodec> MakeSlabRunCodec(const KvSpec& spec,
                                                 std::vector<std::unique_ptr<Transform>> transforms,
                                                 std::unique_ptr<Quantizer> quantizer);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_SLAB_RUN_CODEC_H_
