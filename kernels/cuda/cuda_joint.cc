#include <utility>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/cuda_buffer.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/joint_launch.h"

namespace kvstow {
namespace {

using gpu::JointLaunch;

class CudaJointEngine final : public JointEngine {
 public:
  CudaJointEngine(const CudaContext& context, std::unique_ptr<Cublas> cublas)
      : context_(context), cublas_(std::move(cublas)) {}
  ~CudaJointEngine() override {
    const OnGpu current(context_.gpu);
    cublas_.reset();
  }

  uint8_t* AddressOf(const DeviceBuffer& buffer) const override {
    const auto* cuda = dynamic_cast<const CudaBuffer*>(&buffer);
    return cuda != nullptr && cuda->ordinal() == context_.gpu.ordinal() ? cuda->data() : nullptr;
  }

  absl::Status Encode(const JointLaunch& launch) override {
    return OnLane([&](cudaStream_t stream) {
      const cudaError_t code = cudaMemsetAsync(launch.answer, 0, launch.answer_bytes, stream);
      KVSTOW_RETURN_IF_ERROR(ToStatus(code, "clearing memory"));
      KVSTOW_RETURN_IF_ERROR(
          ToStatus(gpu::LaunchBeforeEncoding(launch, stream), "starting a kernel"));
      KVSTOW_RETURN_IF_ERROR(Multiply(launch, true, stream));
      return ToStatus(gpu::LaunchAfterEncoding(launch, stream), "starting a kernel");
    });
  }

  absl::Status Decode(const gpu::PlaneDecodeLaunch& planes,
                      std::span<const JointLaunch> runs) override {
    const OnGpu current(context_.gpu);
    KVSTOW_RETURN_IF_ERROR(current.status());
    const Lanes::Hold lane(context_.lanes);
    // Streams of several calls go side by side, the rest one call after another.
    KVSTOW_RETURN_IF_ERROR(
        lane->Drain(gpu::LaunchDecodePlanes(planes, lane->stream()), "decoding calibrated pages"));
    MutexLock lock(mu_);
    absl::Status status;
    for (const JointLaunch& run : runs) {
      status = Multiply(run, false, lane->stream());
      if (status.ok()) {
        status = ToStatus(gpu::LaunchAfterDecoding(run, lane->stream()), "starting a kernel");
      }
      if (!status.ok()) break;
    }
    // Whatever became of it, nothing is under way any more.
    status.Update(lane->Drain(cudaSuccess, "decoding calibrated pages"));
    return status;
  }

 private:
  absl::Status Multiply(const JointLaunch& launch, bool encoding, cudaStream_t stream) {
    if (launch.coded() == 0) return absl::OkStatus();
    return cublas_->Multiply(gpu::ProductOf(launch, encoding), stream);
  }

  // Whatever became of `start`, nothing of it is under way any more.
  template <typename Start>
  absl::Status OnLane(const Start& start) {
    const OnGpu current(context_.gpu);
    KVSTOW_RETURN_IF_ERROR(current.status());
    MutexLock lock(mu_);
    const Lanes::Hold lane(context_.lanes);
    absl::Status status = start(lane->stream());
    status.Update(lane->Drain(cudaSuccess, "coding calibrated pages"));
    return status;
  }

  const CudaContext context_;
  Mutex mu_;
  std::unique_ptr<Cublas> cublas_;  // used under mu_
};

}  // namespace

absl::StatusOr<std::unique_ptr<JointEngine>> MakeCudaJointEngine(const CudaContext& context) {
  const OnGpu current(context.gpu);
  KVSTOW_RETURN_IF_ERROR(current.status());
  KVSTOW_ASSIGN_OR_RETURN(auto cublas, Cublas::Open());
  return std::make_unique<CudaJointEngine>(context, std::move(cublas));
}

}  // namespace kvstow
