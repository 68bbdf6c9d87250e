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
  CudaJointEngine(const CudaContext& context, SharedCublas& cublas, size_t shared_bytes)
      : context_(context), cublas_(cublas), shared_bytes_(shared_bytes) {}

  uint8_t* AddressOf(const DeviceBuffer& buffer) const override {
    const auto* cuda = dynamic_cast<const CudaBuffer*>(&buffer);
    return cuda != nullptr && cuda->ordinal() == context_.gpu.ordinal() ? cuda->data() : nullptr;
  }

  size_t shared_bytes() const override { return shared_bytes_; }

  absl::Status Encode(const TokenLaunch& tokens, std::span<const AskLaunch> asks,
                      std::span<const JointLaunch> runs,
                      const gpu::PlaneEncodeLaunch& planes) override {
    const OnGpu current(context_.gpu);
    KVSTOW_RETURN_IF_ERROR(current.status());
    const Lanes::Hold lane(context_.lanes);
    const cudaStream_t stream = lane->stream();
    KVSTOW_RETURN_IF_ERROR(
        lane->Drain(LookAt(planes, tokens, asks, stream), "looking at calibrated pages"));
    {
      MutexLock lock(cublas_.mu);
      absl::Status status = StartRuns(runs, stream);
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
    // Streams and tokens of several calls go side by side, the rest one call after another.
    cudaError_t code = gpu::LaunchDecodePlanes(planes, lane->stream());
    if (code == cudaSuccess) code = gpu::LaunchTokens(tokens, lane->stream());
    KVSTOW_RETURN_IF_ERROR(lane->Drain(code, "decoding calibrated pages"));
    MutexLock lock(cublas_.mu);
    absl::Status status = StartAfterStreams(runs, lane->stream());
    // Whatever became of it, nothing is under way any more.
    status.Update(lane->Drain(cudaSuccess, "decoding calibrated pages"));
    return status;
  }

 private:
  // Starts what comes before the products of raw pages, and needs no turn.
  static cudaError_t LookAt(const gpu::PlaneEncodeLaunch& planes, const TokenLaunch& tokens,
                            std::span<const AskLaunch> asks, cudaStream_t stream) {
    cudaError_t code = cudaMemsetAsync(planes.answer, 0, planes.answer_bytes, stream);
    if (code == cudaSuccess) code = gpu::LaunchTokens(tokens, stream);
    for (size_t i = 0; i < asks.size() && code == cudaSuccess; ++i)
      code = gpu::LaunchAsking(asks[i], stream);
    return code;
  }
  // Starts what makes coefficients of raw pages.
  absl::Status StartRuns(std::span<const JointLaunch> runs, cudaStream_t stream)
      KVSTOW_REQUIRES(cublas_.mu) {
    for (const JointLaunch& run : runs) {
      KVSTOW_RETURN_IF_ERROR(Foretell(run, true, stream));
      KVSTOW_RETURN_IF_ERROR(ToStatus(gpu::LaunchBeforeEncoding(run, stream), kStarting));
      KVSTOW_RETURN_IF_ERROR(Multiply(run, true, stream));
      KVSTOW_RETURN_IF_ERROR(ToStatus(gpu::LaunchAfterEncoding(run, stream), kStarting));
    }
    return absl::OkStatus();
  }
  // Starts what makes raw pages of coefficients.
  absl::Status StartAfterStreams(std::span<const JointLaunch> runs, cudaStream_t stream)
      KVSTOW_REQUIRES(cublas_.mu) {
    for (const JointLaunch& run : runs) {
      KVSTOW_RETURN_IF_ERROR(Multiply(run, false, stream));
      KVSTOW_RETURN_IF_ERROR(Foretell(run, false, stream));
      KVSTOW_RETURN_IF_ERROR(ToStatus(gpu::LaunchAfterDecoding(run, stream), kStarting));
    }
    return absl::OkStatus();
  }
  absl::Status Multiply(const JointLaunch& launch, bool encoding, cudaStream_t stream)
      KVSTOW_REQUIRES(cublas_.mu) {
    if (launch.coded() == 0) return absl::OkStatus();
    return cublas_.handle->Multiply(gpu::ProductOf(launch, encoding), stream);
  }
  absl::Status Foretell(const JointLaunch& launch, bool encoding, cudaStream_t stream)
      KVSTOW_REQUIRES(cublas_.mu) {
    if (launch.coded() == 0 || launch.token_width == 0) return absl::OkStatus();
    return cublas_.handle->Multiply(gpu::TokenProductOf(launch, encoding), stream);
  }

  const CudaContext context_;
  SharedCublas& cublas_;
  const size_t shared_bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<JointEngine>> MakeCudaJointEngine(const CudaContext& context,
                                                                 SharedCublas& cublas) {
  const OnGpu current(context.gpu);
  KVSTOW_RETURN_IF_ERROR(current.status());
  int shared_bytes = 0;
  KVSTOW_RETURN_IF_ERROR(
      ToStatus(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                      context.gpu.ordinal()),
               "shared memory of a thread block"));
  {
    MutexLock lock(cublas.mu);
    if (cublas.handle == nullptr) {
      KVSTOW_ASSIGN_OR_RETURN(cublas.handle, Cublas::Open());
    }
  }
  return std::make_unique<CudaJointEngine>(context, cublas, static_cast<size_t>(shared_bytes));
}

}  // namespace kvstow
