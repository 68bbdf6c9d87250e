// A GPU as a Device: stream-ordered allocation and copies through pinned memory.
// kernels/device/no_cuda_device.cc takes this file's place in a build without CUDA.
//
// The CUDA runtime is linked statically: on a host without a driver it starts and reports an error,
// so one binary serves with and without a GPU.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/cuda_buffer.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_lanes.h"
#include "kernels/cuda/joint/cublas.h"
#include "kernels/cuda/primary_context.h"
#include "kernels/device/device.h"

namespace kvstow {
namespace {

constexpr uint64_t kKeptScratchBytes = 64 << 20;
// Calls of calibrated pages that can be on the GPU at once. A page of few streams keeps a GPU busy
// with hardly a fiftieth of its processors, and for milliseconds: copies do not wait for it.
constexpr size_t kJointLanes = 12;

class Cuda final : public Device, public DeviceKernels {
 public:
  Cuda(int ordinal, std::string name)
      : name_(std::move(name)), gpu_(ordinal), lanes_(gpu_), joint_lanes_(gpu_) {}
  ~Cuda() override {
    joint_lanes_.Close();
    lanes_.Close();  // frees that are under way belong to the pools
    CloseCublas();
    if (tier_ == nullptr && scratch_ == nullptr) return;
    const OnGpu current(gpu_);
    for (const cudaMemPool_t pool : {tier_, scratch_}) {
      if (pool != nullptr) cudaMemPoolDestroy(pool);
    }
  }

  absl::Status Open() {
    KVSTOW_RETURN_IF_ERROR(gpu_.Open());
    const OnGpu current(gpu_);
    KVSTOW_RETURN_IF_ERROR(current.status());
    // The tier has a budget and fills it again and again: it keeps what was freed. What one call
    // allocates may be half a gigabyte, which others on the GPU need once the call is over.
    KVSTOW_RETURN_IF_ERROR(OpenPool(std::numeric_limits<uint64_t>::max(), tier_));
    KVSTOW_RETURN_IF_ERROR(OpenPool(kKeptScratchBytes, scratch_));
    KVSTOW_RETURN_IF_ERROR(joint_lanes_.Open(kJointLanes, LaneUse::kKernels));
    return lanes_.Open(kCopyLanes, LaneUse::kCopies);
  }

  std::string name() const override { return name_; }

  absl::StatusOr<DeviceMemory> Memory() const override {
    const OnGpu current(gpu_);
    KVSTOW_RETURN_IF_ERROR(current.status());
    size_t free = 0, total = 0;
    KVSTOW_RETURN_IF_ERROR(ToStatus(cudaMemGetInfo(&free, &total), "memory of the GPU"));
    uint64_t reserved = 0, used = 0;
    KVSTOW_RETURN_IF_ERROR(
        ToStatus(cudaMemPoolGetAttribute(tier_, cudaMemPoolAttrReservedMemCurrent, &reserved),
                 "memory pool"));
    KVSTOW_RETURN_IF_ERROR(ToStatus(
        cudaMemPoolGetAttribute(tier_, cudaMemPoolAttrUsedMemCurrent, &used), "memory pool"));
    return DeviceMemory{.total_bytes = total,
                        .free_bytes = free + reserved - std::min(used, reserved)};
  }

  absl::StatusOr<std::shared_ptr<const DeviceBuffer>> Store(const SharedBytes& bytes) override {
    const OnGpu current(gpu_);
    KVSTOW_RETURN_IF_ERROR(current.status());
    const Lanes::Hold lane(lanes_);
    KVSTOW_ASSIGN_OR_RETURN(auto buffer, NewBuffer(bytes.size(), tier_, lane->stream()));
    KVSTOW_RETURN_IF_ERROR(lane->ToDevice(bytes.span(), buffer->data()));
    return buffer;
  }

  absl::StatusOr<SharedBytes> Load(const std::shared_ptr<const DeviceBuffer>& buffer) override {
    const auto* cuda = dynamic_cast<const CudaBuffer*>(buffer.get());
    if (cuda == nullptr || cuda->ordinal() != gpu_.ordinal()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the buffer is not of ", name_, ": load it from its own device"));
    }
    const OnGpu current(gpu_);
    KVSTOW_RETURN_IF_ERROR(current.status());
    const Lanes::Hold lane(lanes_);
    ByteBlock block(cuda->size());
    KVSTOW_RETURN_IF_ERROR(lane->ToHost(cuda->data(), block.span()));
    return std::move(block).Share();
  }

  absl::StatusOr<std::shared_ptr<DeviceBuffer>> Allocate(size_t bytes) override {
    const OnGpu current(gpu_);
    KVSTOW_RETURN_IF_ERROR(current.status());
    const Lanes::Hold lane(lanes_);
    KVSTOW_ASSIGN_OR_RETURN(auto buffer, NewBuffer(bytes, scratch_, lane->stream()));
    // Other streams may use it only once this one has it.
    KVSTOW_RETURN_IF_ERROR(lane->Drain(cudaSuccess, "allocating"));
    return buffer;
  }

  DeviceKernels& kernels() override { return *this; }

  absl::StatusOr<std::unique_ptr<DeviceCodec>> NewCodec(const Recipe& recipe,
                                                        const KvSpec& spec) override {
    return MakeCudaCodec(recipe, spec, CudaContext{gpu_, scratch_, lanes_});
  }

  absl::StatusOr<std::unique_ptr<DeviceScorer>> NewScorer(const Recipe& recipe,
                                                          const KvSpec& spec) override {
    return MakeCudaScorer(recipe, spec, CudaContext{gpu_, scratch_, lanes_});
  }

  absl::StatusOr<std::unique_ptr<JointEngine>> NewJointEngine() override {
    return MakeCudaJointEngine(CudaContext{gpu_, scratch_, joint_lanes_}, cublas_);
  }

 private:
  void CloseCublas() {
    MutexLock lock(cublas_.mu);
    if (cublas_.handle == nullptr) return;
    const OnGpu current(gpu_);
    cublas_.handle.reset();
  }

  absl::StatusOr<std::shared_ptr<CudaBuffer>> NewBuffer(size_t bytes, cudaMemPool_t pool,
                                                        cudaStream_t stream) {
    void* data = nullptr;
    KVSTOW_RETURN_IF_ERROR(
        ToStatus(cudaMallocFromPoolAsync(&data, std::max<size_t>(bytes, 1), pool, stream),
                 absl::StrCat("allocating ", bytes, " bytes on ", name_)));
    return std::make_shared<CudaBuffer>(gpu_, stream, static_cast<uint8_t*>(data), bytes);
  }

  // `keep` is how much freed memory the pool does not give back to the GPU.
  absl::Status OpenPool(uint64_t keep, cudaMemPool_t& pool) {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {.type = cudaMemLocationTypeDevice, .id = gpu_.ordinal()};
    KVSTOW_RETURN_IF_ERROR(
        ToStatus(cudaMemPoolCreate(&pool, &properties), "creating a memory pool"));
    return ToStatus(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
                    "memory pool");
  }

  const std::string name_;
  PrimaryContext gpu_;
  cudaMemPool_t tier_ = nullptr;     // of what is stored
  cudaMemPool_t scratch_ = nullptr;  // of calls
  Lanes lanes_;
  Lanes joint_lanes_;
  SharedCublas cublas_;
};

absl::Status Unavailable(int ordinal, absl::string_view why) {
  cudaGetLastError();
  return absl::UnavailableError(absl::StrCat("cuda:", ordinal, ": ", why));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int ordinal) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return Unavailable(ordinal, "there is no NVIDIA driver on this machine");
  }
  int count = 0;
  if (const auto e = cudaGetDeviceCount(&count); e != cudaSuccess) {
    return Unavailable(ordinal, cudaGetErrorString(e));
  }
  if (ordinal < 0 || ordinal >= count) {
    return Unavailable(ordinal, absl::StrCat("no such device, this machine has ", count));
  }
  cudaDeviceProp properties{};
  int pools = 0;
  if (cudaGetDeviceProperties(&properties, ordinal) != cudaSuccess ||
      cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, ordinal) != cudaSuccess ||
      pools == 0) {
    return Unavailable(ordinal, "the device has no stream-ordered memory pools");
  }
  auto device =
      std::make_unique<Cuda>(ordinal, absl::StrCat("cuda:", ordinal, " (", properties.name, ")"));
  if (const absl::Status opened = device->Open(); !opened.ok()) {
    return Unavailable(ordinal, opened.message());
  }
  return device;
}

}  // namespace kvstow
