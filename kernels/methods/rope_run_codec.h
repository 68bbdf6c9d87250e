// rope|codec: the codec behind it codes K without its rotary positions (before RoPE), where
// neighbouring tokens are alike and low rank is low. Decoding puts them back.
//
// That codec sees the run as F32 values, so nothing is rounded twice. Its bodies are those of an
// F32 page. K is coded as it is in a space whose K has no rotary positions, or whose pages hold K
// before RoPE. rope.h has the rotation. Immutable: thread-safe.
#ifndef KVSTOW_KERNELS_METHODS_ROPE_RUN_CODEC_H_
#define KVSTOW_KERNELS_METHODS_ROPE_RUN_CODEC_H_

#include <memory>

#include "kernels/methods/run_codec.h"

namespace kvstow {

// `inner` is made for FloatSpec(spec).
std::unique_ptr<const RunCodec> MakeRopeRunCodec(const KvSpec& spec,
                                                 std::unique_ptr<const RunCodec> inner);

// Returns the same geometry with F32 values.
KvSpec FloatSpec(const KvSpec& spec);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_ROPE_RUN_CODEC_H_
