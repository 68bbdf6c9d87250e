// What codecs and scorers on a GPU need of its device: its context, streams, and scratch memory of
// a pool.
//
// Thread-safe but for a Scratch, which is its scope's alone.
#ifndef KVSTOW_KERNELS_CUDA_CUDA_SCRATCH_H_
#define KVSTOW_KERNELS_CUDA_CUDA_SCRATCH_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_lanes.h"
#include "kernels/cuda/primary_context.h"

namespace kvstow {

struct CudaContext {
  const PrimaryContext& gpu;
  cudaMemPool_t pool;
  Lanes& lanes;
};

// Memory of the pool for a scope, on one stream.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (data_ != nullptr) cudaFreeAsync(data_, stream_);
  }
  absl::Status Open(const CudaContext& context, cudaStream_t stream, size_t bytes) {
    stream_ = stream;
    return ToStatus(cudaMallocFromPoolAsync(&data_, bytes, context.pool, stream),
                    absl::StrCat("allocating ", bytes, " bytes of scratch memory"));
  }
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }

 private:
  cudaStream_t stream_ = nullptr;
  void* data_ = nullptr;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CUDA_CUDA_SCRATCH_H_
