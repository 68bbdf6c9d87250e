#include "kernels/cuda/primary_context.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/status_macros.h"

namespace kvstow {
namespace {

// The CUDA runtime's manual says of each: the process must be started again to use CUDA.
constexpr std::array kFatal = {
    cudaErrorECCUncorrectable,   cudaErrorNvlinkUncorrectable,
    cudaErrorContextIsDestroyed, cudaErrorAssert,
    cudaErrorHardwareStackError, cudaErrorIllegalInstruction,
    cudaErrorMisalignedAddress,  cudaErrorInvalidAddressSpace,
    cudaErrorInvalidPc,          cudaErrorIllegalAddress,
    cudaErrorLaunchTimeout,      cudaErrorLaunchFailure,
    cudaErrorExternalDevice,     cudaErrorUnknown,
};

}  // namespace

absl::Status ToStatus(cudaError_t code, absl::string_view what) {
  if (code == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // an error that is not fatal must not meet the next caller
  const std::string text = absl::StrCat(what, ": ", cudaGetErrorString(code));
  if (code == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(text);
  return absl::InternalError(text);
}

absl::Status DriverStatus(CUresult code, absl::string_view what) {
  if (code == CUDA_SUCCESS) return absl::OkStatus();
  const std::string text = absl::StrCat(what, ": the driver's error ", static_cast<int>(code));
  if (code == CUDA_ERROR_OUT_OF_MEMORY) return absl::ResourceExhaustedError(text);
  if (code == CUDA_ERROR_INVALID_VALUE) return absl::InvalidArgumentError(text);
  return absl::InternalError(text);
}

PrimaryContext::~PrimaryContext() {
  if (context_ != nullptr) release_(ordinal_);
}

absl::Status PrimaryContext::Open() {
  decltype(&cuDevicePrimaryCtxRetain) retain = nullptr;
  KVSTOW_RETURN_IF_ERROR(FindInDriver("cuDevicePrimaryCtxRetain", retain));
  KVSTOW_RETURN_IF_ERROR(FindInDriver("cuDevicePrimaryCtxRelease", release_));
  KVSTOW_RETURN_IF_ERROR(FindInDriver("cuCtxPushCurrent", push_));
  KVSTOW_RETURN_IF_ERROR(FindInDriver("cuCtxPopCurrent", pop_));
  CUcontext context = nullptr;
  KVSTOW_RETURN_IF_ERROR(DriverStatus(retain(&context, ordinal_), "the GPU's context"));
  context_ = context;
  return absl::OkStatus();
}

void PrimaryContext::Watch(cudaError_t code) const {
  if (std::ranges::find(kFatal, code) == kFatal.end()) return;
  cudaError_t none = cudaSuccess;
  failure_.compare_exchange_strong(none, code);
}

OnGpu::OnGpu(const PrimaryContext& gpu) : gpu_(gpu) {
  if (const cudaError_t failed = gpu.failure(); failed != cudaSuccess) {
    status_ = absl::UnavailableError(absl::StrCat("cuda:", gpu.ordinal(), " failed before (",
                                                  cudaGetErrorString(failed),
                                                  "): start the process again to use it"));
  }
  // Also after a failure: what goes then still has to be given back.
  absl::Status current = DriverStatus(gpu.push_(gpu.context_), "making the GPU current");
  pushed_ = current.ok();
  if (pushed_) current = ToStatus(cudaThreadExchangeStreamCaptureMode(&mode_), "the capture mode");
  status_.Update(current);
}

OnGpu::~OnGpu() {
  if (!pushed_) return;
  cudaThreadExchangeStreamCaptureMode(&mode_);
  CUcontext context;
  gpu_.pop_(&context);
}

}  // namespace kvstow
