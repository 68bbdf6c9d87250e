// raw: keeps the bytes. Any dtype.
#ifndef KVSTOW_KERNELS_METHODS_RAW_RUN_CODEC_H_
#define KVSTOW_KERNELS_METHODS_RAW_RUN_CODEC_H_

#include <memory>

#include "kernels/methods/run_codec.h"
#include "kernels/page/page.h"

namespace kvstow {

std::unique_ptr<const RunCodec> MakeRawRunCodec(const KvSpec& spec);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_METHODS_RAW_RUN_CODEC_H_
