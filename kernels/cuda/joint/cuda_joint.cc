#include <utility>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "kernels/cuda/cuda_buffer.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/joint/cublas.h"
#include "kernels/cuda/joint/joint_launch.h"

namespace kvstow {
namespace {

using gpu::AskLaunch;
using gpu::JointLaunch;
using gpu::TokenLaunch;

constexpr absl::string_view kStarting = "starting a kernel";

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

  absl::Status Encode(const TokenLaunch& tokens, std::span<const AskLaunch> asks,
                      std::span<const JointLaunch> runs,
                      const gpu::PlaneEncodeLaunch& planes) override {
    const OnGpu current(context_.gpu);
    KVSTOW_RETURN_IF_ERROR(current.status());
    const Lanes::Hold lane(context_.lanes);
    const cudaStream_t stream = lane->stream();
    KVSTOW_RETURN_IF_ERROR(lane->Drain(
        cudaMemsetAsync(planes.answer, 0, planes.answer_bytes, stream), "clearing memory"));
    {
      MutexLock lock(mu_);
      absl::Status status = StartAll(tokens, asks, runs, stream);
      // Whatever became of it, nothing is under way any more.
      status.Update(lane->Drain(cudaSuccess, "encoding calibrated pages"));
      KVSTOW_RETURN_IF_ERROR(status);
    }
    return lane->Drain(gpu::LaunchEncodePlanes(planes, stream), "encoding calibrated pages");
  }

  absl::Status Move(const gpu::WordsLaunch& launch) override {
    const OnGpu current(context_.gpu);
    KVSTOW_RETURN_IF_ERROR(current.status());
    const Lanes::Hold lane(context_.lanes);
    return lane->Drain(gpu::LaunchMoveWords(launch, lane->stream()), "gathering coded words");
  }

  absl::Status Decode(const gpu::PlaneDecodeLaunch& planes, const TokenLaunch& tokens,
                      std::span<const JointLaunch> runs) override {
    const OnGpu current(context_.gpu);
    KVSTOW_RETURN_IF_ERROR(current.status());
    const Lanes::Hold lane(context_.lanes);
    // Streams of several calls go side by side, the rest one call after another.
    KVSTOW_RETURN_IF_ERROR(
        lane->Drain(gpu::LaunchDecodePlanes(planes, lane->stream()), "decoding calibrated pages"));
    MutexLock lock(mu_);
    absl::Status status = StartAfterStreams(tokens, runs, lane->stream());
    // Whatever became of it, nothing is under way any more.
    status.Update(lane->Drain(cudaSuccess, "decoding calibrated pages"));
    return status;
  }

 private:
  // Starts what makes coefficients of raw pages. Called under mu_.
  absl::Status StartAll(const TokenLaunch& tokens, std::span<const AskLaunch> asks,
                        std::span<const JointLaunch> runs, cudaStream_t stream) {
    KVSTOW_RETURN_IF_ERROR(ToStatus(gpu::LaunchTokens(tokens, stream), kStarting));
    for (const AskLaunch& ask : asks)
      KVSTOW_RETURN_IF_ERROR(ToStatus(gpu::LaunchAsking(ask, stream), kStarting));
    for (const JointLaunch& run : runs) {
      KVSTOW_RETURN_IF_ERROR(Foretell(run, true, stream));
      KVSTOW_RETURN_IF_ERROR(ToStatus(gpu::LaunchBeforeEncoding(run, stream), kStarting));
      KVSTOW_RETURN_IF_ERROR(Multiply(run, true, stream));
      KVSTOW_RETURN_IF_ERROR(ToStatus(gpu::LaunchAfterEncoding(run, stream), kStarting));
    }
    return absl::OkStatus();
  }
  // Starts what makes raw pages of coefficients. Called under mu_.
  absl::Status StartAfterStreams(const TokenLaunch& tokens, std::span<const JointLaunch> runs,
                                 cudaStream_t stream) {
    KVSTOW_RETURN_IF_ERROR(ToStatus(gpu::LaunchTokens(tokens, stream), kStarting));
    for (const JointLaunch& run : runs) {
      KVSTOW_RETURN_IF_ERROR(Multiply(run, false, stream));
      KVSTOW_RETURN_IF_ERROR(Foretell(run, false, stream));
      KVSTOW_RETURN_IF_ERROR(ToStatus(gpu::LaunchAfterDecoding(run, stream), kStarting));
    }
    return absl::OkStatus();
  }
  absl::Status Multiply(const JointLaunch& launch, bool encoding, cudaStream_t stream) {
    if (launch.coded() == 0) return absl::OkStatus();
    return cublas_->Multiply(gpu::ProductOf(launch, encoding), stream);
  }
  absl::Status Foretell(const JointLaunch& launch, bool encoding, cudaStream_t stream) {
    if (launch.coded() == 0 || launch.token_width == 0) return absl::OkStatus();
    return cublas_->Multiply(gpu::TokenProductOf(launch, encoding), stream);
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
