// A GPU's primary context, and the scope in which a thread works on that GPU.
//
// Our code runs on threads of an inference engine too. It must leave them as they were: with the
// device that was current, or with none. And it must not disturb a capture of a CUDA graph: while
// any thread captures in global mode, calls such as cudaEventQuery fail on every thread and spoil
// the capture, unless the calling thread has changed its own mode to relaxed.
//
// The driver's functions are looked up through the runtime, which is linked statically: nothing
// needs a driver to start.
//
// Thread-safe, except for an OnGpu, which belongs to its scope alone.
#ifndef KVSTOW_KERNELS_CUDA_PRIMARY_CONTEXT_H_
#define KVSTOW_KERNELS_CUDA_PRIMARY_CONTEXT_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace kvstow {

// Returns RESOURCE_EXHAUSTED when the GPU's memory is short, else INTERNAL, with the driver's text.
absl::Status ToStatus(cudaError_t code, absl::string_view what);
// Does the same for calls of the driver alone. INVALID_ARGUMENT for values that it does not take.
absl::Status DriverStatus(CUresult code, absl::string_view what);

// Looks up a function of the driver, as of CUDA 12. Fails with UNAVAILABLE.
template <typename Function>
absl::Status FindInDriver(const char* name, Function& out) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const auto e = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  if (e != cudaSuccess || found == nullptr) {
    cudaGetLastError();
    return absl::UnavailableError(absl::StrCat("the driver has no ", name, " of CUDA 12"));
  }
  out = reinterpret_cast<Function>(found);
  return absl::OkStatus();
}

class PrimaryContext {
 public:
  explicit PrimaryContext(int ordinal) : ordinal_(ordinal) {}
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  // Retains the context. Fails with UNAVAILABLE without such a driver.
  absl::Status Open();
  int ordinal() const { return ordinal_; }

  // Looks at what a call returned. After some errors (a kernel's illegal address, uncorrectable
  // memory) every later call in the process fails too. From then on OnGpu fails at once, so that
  // nobody waits for a GPU that cannot answer.
  void Watch(cudaError_t code) const;
  // Returns the first such error, or cudaSuccess.
  cudaError_t failure() const { return failure_.load(std::memory_order_relaxed); }

 private:
  friend class OnGpu;

  const int ordinal_;
  CUcontext context_ = nullptr;
  decltype(&cuDevicePrimaryCtxRelease) release_ = nullptr;
  decltype(&cuCtxPushCurrent) push_ = nullptr;
  decltype(&cuCtxPopCurrent) pop_ = nullptr;
  mutable std::atomic<cudaError_t> failure_ = cudaSuccess;
};

// Makes the GPU current for a scope, in relaxed capture mode. Scopes nest.
class OnGpu {
 public:
  explicit OnGpu(const PrimaryContext& gpu);
  ~OnGpu();
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  // UNAVAILABLE once the GPU has failed for good; else the driver's error.
  const absl::Status& status() const { return status_; }

 private:
  const PrimaryContext& gpu_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // the thread's own, to put back
  bool pushed_ = false;
  absl::Status status_;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CUDA_PRIMARY_CONTEXT_H_
