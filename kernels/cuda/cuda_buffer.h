// A GPU's DeviceBuffer. Thread-safe; its device outlives it.
#ifndef KVSTOW_KERNELS_CUDA_CUDA_BUFFER_H_
#define KVSTOW_KERNELS_CUDA_CUDA_BUFFER_H_

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "kernels/cuda/primary_context.h"
#include "kernels/device/device.h"

namespace kvstow {

class CudaBuffer final : public DeviceBuffer {
 public:
  // Takes over `data`, which was allocated on `stream`.
  CudaBuffer(const PrimaryContext& gpu, cudaStream_t stream, uint8_t* data, size_t size)
      : gpu_(gpu), stream_(stream), data_(data), size_(size) {}
  // A part of memory that `owner` keeps.
  CudaBuffer(const PrimaryContext& gpu, std::shared_ptr<const void> owner, uint8_t* data,
             size_t size)
      : gpu_(gpu), owner_(std::move(owner)), data_(data), size_(size) {}
  // The bytes are at rest: every call that used them has returned.
  ~CudaBuffer() override {
    if (owner_ != nullptr) return;
    const OnGpu current(gpu_);
    cudaFreeAsync(data_, stream_);
  }
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;

  size_t size() const override { return size_; }
  uint8_t* data() const { return data_; }
  int ordinal() const { return gpu_.ordinal(); }

 private:
  const PrimaryContext& gpu_;
  const cudaStream_t stream_ = nullptr;
  const std::shared_ptr<const void> owner_;  // null: the buffer is its own
  uint8_t* const data_;
  const size_t size_;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CUDA_CUDA_BUFFER_H_
