// A GPU as a Device, over the CUDA runtime alone: stream-ordered allocation and copies through
// pinned memory. kernels/device/no_cuda_device.cc takes this file's place in a build without CUDA.
//
// The runtime is linked statically: on a host without a driver it starts and reports an error, so
// one binary serves with and without a GPU.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/cuda_buffer.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_lanes.h"
#include "kernels/device/device.h"

namespace kvstow {
namespace {

class Cuda final : public Device, public DeviceKernels {
 public:
  Cuda(int ordinal, std::string name) : ordinal_(ordinal), name_(std::move(name)) {}
  ~Cuda() override {
    cudaSetDevice(ordinal_);
    cudaDeviceSynchronize();  // frees that are under way belong to the pool
    lanes_.Close();
    if (pool_ != nullptr) cudaMemPoolDestroy(pool_);
  }

  absl::Status Open() {
    KVSTOW_RETURN_IF_ERROR(ToStatus(cudaSetDevice(ordinal_), name_));
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {.type = cudaMemLocationTypeDevice, .id = ordinal_};
    KVSTOW_RETURN_IF_ERROR(
        ToStatus(cudaMemPoolCreate(&pool_, &properties), "creating a memory pool"));
    // The tier has a budget and fills it again and again: keep what was freed.
    uint64_t keep = std::numeric_limits<uint64_t>::max();
    KVSTOW_RETURN_IF_ERROR(ToStatus(
        cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep), "memory pool"));
    return lanes_.Open();
  }

  std::string name() const override { return name_; }

  absl::StatusOr<DeviceMemory> Memory() const override {
    KVSTOW_RETURN_IF_ERROR(ToStatus(cudaSetDevice(ordinal_), name_));
    size_t free = 0, total = 0;
    KVSTOW_RETURN_IF_ERROR(ToStatus(cudaMemGetInfo(&free, &total), "memory of the GPU"));
    uint64_t reserved = 0, used = 0;
    KVSTOW_RETURN_IF_ERROR(
        ToStatus(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved),
                 "memory pool"));
    KVSTOW_RETURN_IF_ERROR(ToStatus(
        cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemCurrent, &used), "memory pool"));
    return DeviceMemory{.total_bytes = total,
                        .free_bytes = free + reserved - std::min(used, reserved)};
  }

  absl::StatusOr<std::shared_ptr<const DeviceBuffer>> Store(const SharedBytes& bytes) override {
    KVSTOW_RETURN_IF_ERROR(ToStatus(cudaSetDevice(ordinal_), name_));
    const Lanes::Hold lane(lanes_);
    KVSTOW_ASSIGN_OR_RETURN(auto buffer, NewBuffer(bytes.size(), lane->stream()));
    KVSTOW_RETURN_IF_ERROR(lane->ToDevice(bytes.span(), buffer->data()));
    return buffer;
  }

  absl::StatusOr<SharedBytes> Load(const std::shared_ptr<const DeviceBuffer>& buffer) override {
    const auto* cuda = dynamic_cast<const CudaBuffer*>(buffer.get());
    if (cuda == nullptr || cuda->ordinal() != ordinal_) {
      return absl::InvalidArgumentError(
          absl::StrCat("the buffer is not of ", name_, ": load it from its own device"));
    }
    KVSTOW_RETURN_IF_ERROR(ToStatus(cudaSetDevice(ordinal_), name_));
    const Lanes::Hold lane(lanes_);
    ByteBlock block(cuda->size());
    KVSTOW_RETURN_IF_ERROR(lane->ToHost(cuda->data(), block.span()));
    return std::move(block).Share();
  }

  absl::StatusOr<std::shared_ptr<DeviceBuffer>> Allocate(size_t bytes) override {
    KVSTOW_RETURN_IF_ERROR(ToStatus(cudaSetDevice(ordinal_), name_));
    const Lanes::Hold lane(lanes_);
    KVSTOW_ASSIGN_OR_RETURN(auto buffer, NewBuffer(bytes, lane->stream()));
    // Other streams may use it only once this one has it.
    KVSTOW_RETURN_IF_ERROR(lane->Drain(cudaSuccess, "allocating"));
    return buffer;
  }

  DeviceKernels& kernels() override { return *this; }

  absl::StatusOr<std::unique_ptr<DeviceCodec>> NewCodec(const Recipe& recipe,
                                                        const KvSpec& spec) override {
    return MakeCudaCodec(recipe, spec, CudaContext{ordinal_, pool_, lanes_});
  }

  absl::StatusOr<std::unique_ptr<DeviceScorer>> NewScorer(const Recipe& recipe,
                                                          const KvSpec& spec) override {
    return MakeCudaScorer(recipe, spec, CudaContext{ordinal_, pool_, lanes_});
  }

  absl::StatusOr<std::unique_ptr<JointEngine>> NewJointEngine() override {
    return MakeCudaJointEngine(CudaContext{ordinal_, pool_, lanes_});
  }

 private:
  absl::StatusOr<std::shared_ptr<CudaBuffer>> NewBuffer(size_t bytes, cudaStream_t stream) {
    void* data = nullptr;
    KVSTOW_RETURN_IF_ERROR(
        ToStatus(cudaMallocFromPoolAsync(&data, std::max<size_t>(bytes, 1), pool_, stream),
                 absl::StrCat("allocating ", bytes, " bytes on ", name_)));
    return std::make_shared<CudaBuffer>(ordinal_, stream, static_cast<uint8_t*>(data), bytes);
  }

  const int ordinal_;
  const std::string name_;
  cudaMemPool_t pool_ = nullptr;
  Lanes lanes_;
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
