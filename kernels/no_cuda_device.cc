// OpenCudaDevice of a build without CUDA; kernels/cuda/cuda_device.cc has the other one.
#include "absl/strings/str_cat.h"
#include "kernels/device.h"

namespace kvstow {

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int ordinal) {
  return absl::UnavailableError(absl::StrCat(
      "cuda:", ordinal, ": this build has no CUDA (configure with nvcc on PATH to have it)"));
}

}  // namespace kvstow
