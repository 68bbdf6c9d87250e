// cuBLAS, loaded at its first use. A program without a GPU starts without it. A program with a GPU
// but without the library lacks only the codec of calibrated pages.
//
// One caller uses a handle at a time; the GPU is current.
#ifndef KVSTOW_KERNELS_CUDA_JOINT_CUBLAS_H_
#define KVSTOW_KERNELS_CUDA_JOINT_CUBLAS_H_

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <memory>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/device/joint_layout.h"

namespace kvstow {

class Cublas {
 public:
  // Fails with UNIMPLEMENTED without the library, and with INTERNAL when it does not start.
  static absl::StatusOr<std::unique_ptr<Cublas>> Open();
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  // Starts it: bf16 in, F32 sums and results.
  absl::Status Multiply(const gpu::JointProduct& product, cudaStream_t stream);

 private:
  // cublasGemmEx, which the header overloads.
  using Gemm = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int,
                                  int, const void*, const void*, cudaDataType, int, const void*,
                                  cudaDataType, int, const void*, void*, cudaDataType, int,
                                  cublasComputeType_t, cublasGemmAlgo_t);
  // The functions of the library that we use.
  struct Functions {
    decltype(&cublasCreate_v2) create = nullptr;
    decltype(&cublasDestroy_v2) destroy = nullptr;
    decltype(&cublasSetStream_v2) set_stream = nullptr;
    Gemm gemm = nullptr;
  };
  static absl::StatusOr<Functions> Load();

  explicit Cublas(const Functions& functions) : functions_(functions) {}

  const Functions functions_;
  cublasHandle_t handle_ = nullptr;
};

// The handle of a GPU. All of its engines share it, because it has a workspace of tens of MiB.
struct SharedCublas {
  Mutex mu;
  std::unique_ptr<Cublas> handle KVSTOW_GUARDED_BY(mu);  // null until the first engine is made
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CUDA_JOINT_CUBLAS_H_
