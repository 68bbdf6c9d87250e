// A GPU that shares memory with other processes: physical memory of the driver's virtual memory
// management, exported as a POSIX file descriptor. kernels/device/no_cuda_device.cc takes this
// file's place in a build without CUDA.
//
// Those calls are the driver's alone (FindInDriver). The method is CUDA's sample memMapIPCDrv.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/cuda_buffer.h"
#include "kernels/cuda/cuda_lanes.h"
#include "kernels/cuda/primary_context.h"
#include "kernels/device/device_sharing.h"

namespace kvstow {
namespace {

constexpr auto kHandleType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// The driver's functions, as of CUDA 12.
struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) import_handle = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) unreserve = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuDeviceGetAttribute) attribute = nullptr;

  absl::Status Load() {
    KVSTOW_RETURN_IF_ERROR(FindInDriver("cuMemGetAllocationGranularity", granularity));
    KVSTOW_RETURN_IF_ERROR(FindInDriver("cuMemCreate", create));
    KVSTOW_RETURN_IF_ERROR(FindInDriver("cuMemRelease", release));
    KVSTOW_RETURN_IF_ERROR(FindInDriver("cuMemExportToShareableHandle", export_handle));
    KVSTOW_RETURN_IF_ERROR(FindInDriver("cuMemImportFromShareableHandle", import_handle));
    KVSTOW_RETURN_IF_ERROR(FindInDriver("cuMemAddressReserve", reserve));
    KVSTOW_RETURN_IF_ERROR(FindInDriver("cuMemAddressFree", unreserve));
    KVSTOW_RETURN_IF_ERROR(FindInDriver("cuMemMap", map));
    KVSTOW_RETURN_IF_ERROR(FindInDriver("cuMemUnmap", unmap));
    KVSTOW_RETURN_IF_ERROR(FindInDriver("cuMemSetAccess", set_access));
    return FindInDriver("cuDeviceGetAttribute", attribute);
  }
};

CUmemAllocationProp PropertiesOf(int ordinal) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = kHandleType;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal};
  return properties;
}

class CudaShared final : public SharedDeviceMemory,
                         public std::enable_shared_from_this<CudaShared> {
 public:
  CudaShared(const Driver& driver, const PrimaryContext& gpu, size_t size)
      : driver_(driver), gpu_(gpu), size_(size) {}
  ~CudaShared() override {
    const OnGpu current(gpu_);
    if (mapped_) driver_.unmap(address_, size_);
    if (address_ != 0) driver_.unreserve(address_, size_);
    if (descriptor_ >= 0) close(descriptor_);
  }
  CudaShared(const CudaShared&) = delete;
  CudaShared& operator=(const CudaShared&) = delete;

  // The handle is not needed once its memory is mapped, and exported.
  absl::Status Make() {
    const CUmemAllocationProp properties = PropertiesOf(gpu_.ordinal());
    CUmemGenericAllocationHandle handle{};
    KVSTOW_RETURN_IF_ERROR(DriverStatus(driver_.create(&handle, size_, &properties, 0),
                                        absl::StrCat("allocating ", size_, " bytes to share")));
    absl::Status made = DriverStatus(driver_.export_handle(&descriptor_, handle, kHandleType, 0),
                                     "exporting shared memory");
    if (made.ok()) made = MapAt(handle);
    driver_.release(handle);
    return made;
  }
  absl::Status Import(int descriptor) {
    CUmemGenericAllocationHandle handle{};
    KVSTOW_RETURN_IF_ERROR(DriverStatus(
        driver_.import_handle(&handle, reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor)),
                              kHandleType),
        "importing shared memory"));
    const absl::Status mapped = MapAt(handle);
    driver_.release(handle);
    return mapped;
  }

  std::span<uint8_t> bytes() const override {
    return {reinterpret_cast<uint8_t*>(address_), size_};
  }
  int descriptor() const override { return descriptor_; }
  absl::StatusOr<std::shared_ptr<DeviceBuffer>> View(size_t offset, size_t bytes) override {
    KVSTOW_RETURN_IF_ERROR(CheckView(*this, offset, bytes));
    return std::make_shared<CudaBuffer>(gpu_, shared_from_this(), this->bytes().data() + offset,
                                        bytes);
  }

 private:
  absl::Status MapAt(CUmemGenericAllocationHandle handle) {
    KVSTOW_RETURN_IF_ERROR(
        DriverStatus(driver_.reserve(&address_, size_, 0, 0, 0), "reserving addresses"));
    KVSTOW_RETURN_IF_ERROR(
        DriverStatus(driver_.map(address_, size_, 0, handle, 0), "mapping shared memory"));
    mapped_ = true;
    const CUmemAccessDesc access{.location = PropertiesOf(gpu_.ordinal()).location,
                                 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return DriverStatus(driver_.set_access(address_, size_, &access, 1), "access to shared memory");
  }

  const Driver& driver_;
  const PrimaryContext& gpu_;
  const size_t size_;
  CUdeviceptr address_ = 0;
  bool mapped_ = false;
  int descriptor_ = -1;
};

class CudaSharing final : public DeviceSharing {
 public:
  explicit CudaSharing(int ordinal) : gpu_(ordinal), lanes_(gpu_) {}
  ~CudaSharing() override { lanes_.Close(); }

  absl::Status Open() {
    KVSTOW_RETURN_IF_ERROR(gpu_.Open());
    KVSTOW_RETURN_IF_ERROR(driver_.Load());
    for (const CUdevice_attribute needed :
         {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
          CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
      int has = 0;
      if (driver_.attribute(&has, needed, gpu_.ordinal()) != CUDA_SUCCESS || has == 0) {
        return absl::UnavailableError("the GPU cannot share memory by descriptor");
      }
    }
    const OnGpu current(gpu_);
    KVSTOW_RETURN_IF_ERROR(current.status());
    cudaDeviceProp properties{};
    KVSTOW_RETURN_IF_ERROR(
        ToStatus(cudaGetDeviceProperties(&properties, gpu_.ordinal()), "the GPU"));
    uuid_.assign(properties.uuid.bytes, sizeof(properties.uuid.bytes));
    return lanes_.Open(kCopyLanes, LaneUse::kCopies);
  }

  std::string uuid() const override { return uuid_; }

  absl::StatusOr<std::shared_ptr<SharedDeviceMemory>> Make(size_t bytes) override {
    if (bytes == 0) return absl::InvalidArgumentError("shared memory has at least 1 byte");
    const OnGpu current(gpu_);
    KVSTOW_RETURN_IF_ERROR(current.status());
    const CUmemAllocationProp properties = PropertiesOf(gpu_.ordinal());
    size_t unit = 0;
    KVSTOW_RETURN_IF_ERROR(DriverStatus(
        driver_.granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "granularity"));
    const auto memory =
        std::make_shared<CudaShared>(driver_, gpu_, (bytes + unit - 1) / unit * unit);
    KVSTOW_RETURN_IF_ERROR(memory->Make());
    // Nobody may read the bytes that were there before.
    const Lanes::Hold lane(lanes_);
    KVSTOW_RETURN_IF_ERROR(lane->Drain(
        cudaMemsetAsync(memory->bytes().data(), 0, memory->bytes().size(), lane->stream()),
        "clearing shared memory"));
    return memory;
  }

  absl::StatusOr<std::shared_ptr<SharedDeviceMemory>> Map(int descriptor, size_t bytes) override {
    const OnGpu current(gpu_);
    absl::Status mapped = current.status();
    const auto memory = std::make_shared<CudaShared>(driver_, gpu_, bytes);
    if (mapped.ok()) mapped = memory->Import(descriptor);
    close(descriptor);
    if (!mapped.ok()) return mapped;
    return memory;
  }

  absl::StatusOr<bool> Passed(void* event) override {
    if (event == nullptr) return true;
    const OnGpu current(gpu_);
    KVSTOW_RETURN_IF_ERROR(current.status());
    const cudaError_t code = cudaEventQuery(static_cast<cudaEvent_t>(event));
    gpu_.Watch(code);
    if (code != cudaErrorNotReady) {
      KVSTOW_RETURN_IF_ERROR(ToStatus(code, "an event of the worker's"));
      return true;
    }
    cudaGetLastError();
    return false;
  }

  absl::Status Copy(std::span<const uint8_t> from, uint8_t* to) override {
    const OnGpu current(gpu_);
    KVSTOW_RETURN_IF_ERROR(current.status());
    const Lanes::Hold lane(lanes_);
    return lane->Drain(
        cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyDeviceToDevice, lane->stream()),
        "copying within the GPU");
  }
  absl::Status ToHost(std::span<const uint8_t> from, uint8_t* to) override {
    const OnGpu current(gpu_);
    KVSTOW_RETURN_IF_ERROR(current.status());
    const Lanes::Hold lane(lanes_);
    return lane->ToHost(from.data(), {to, from.size()});
  }
  absl::Status ToDevice(std::span<const uint8_t> from, uint8_t* to) override {
    const OnGpu current(gpu_);
    KVSTOW_RETURN_IF_ERROR(current.status());
    const Lanes::Hold lane(lanes_);
    return lane->ToDevice(from, to);
  }

 private:
  std::string uuid_;
  Driver driver_;
  PrimaryContext gpu_;
  Lanes lanes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceSharing>> OpenCudaSharing(int ordinal) {
  const auto unavailable = [ordinal](absl::string_view why) {
    cudaGetLastError();
    return absl::UnavailableError(absl::StrCat("cuda:", ordinal, ": ", why));
  };
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return unavailable("there is no NVIDIA driver on this machine");
  }
  if (const auto e = cudaGetDeviceCount(&count); e != cudaSuccess) {
    return unavailable(cudaGetErrorString(e));
  }
  if (ordinal < 0 || ordinal >= count) {
    return unavailable(absl::StrCat("no such device, this machine has ", count));
  }
  auto sharing = std::make_unique<CudaSharing>(ordinal);
  if (const absl::Status opened = sharing->Open(); !opened.ok()) {
    return unavailable(opened.message());
  }
  return sharing;
}

}  // namespace kvstow
