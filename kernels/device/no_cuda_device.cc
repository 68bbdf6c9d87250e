// OpenCudaDevice and OpenCudaSharing of a build without CUDA; kernels/cuda/ has the others.
#include "absl/strings/str_cat.h"
#include "kernels/device/device.h"
#include "kernels/device/device_sharing.h"

namespace kvstow {
namespace {

absl::Status NoCuda(int ordinal) {
  return absl::UnavailableError(absl::StrCat(
      "cuda:", ordinal, ": this build has no CUDA (configure with nvcc on PATH to have it)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int ordinal) { return NoCuda(ordinal); }
absl::StatusOr<std::unique_ptr<DeviceSharing>> OpenCudaSharing(int ordinal) {
  return NoCuda(ordinal);
}

}  // namespace kvstow
