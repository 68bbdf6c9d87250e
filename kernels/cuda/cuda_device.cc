// A GPU as a Device, over the CUDA runtime alone: stream-ordered allocation and copies through
// pinned memory. kernels/no_cuda_device.cc takes this file's place in a build without CUDA.
//
// The runtime is linked statically: on a host without a driver it starts and reports an error, so
// one binary serves with and without a GPU.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "kernels/device.h"

namespace kvstow {
namespace {

// A copy goes through page-locked memory in pieces of this size, two at a time: while the GPU moves
// one, the CPU fills or empties the other.
constexpr size_t kPieceBytes = 1 << 20;
// Copies that can run at once. Each lane costs a stream and two pinned pieces.
constexpr size_t kLanes = 4;

absl::Status ToStatus(cudaError_t code, absl::string_view what) {
  if (code == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // an error that is not sticky must not meet the next caller
  const std::string text = absl::StrCat(what, ": ", cudaGetErrorString(code));
  if (code == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(text);
  return absl::InternalError(text);
}

// One copy at a time: a stream, two pinned pieces and, for each, the event after its last transfer.
class Lane {
 public:
  Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane() {
    for (const Piece& piece : pieces_) {
      if (piece.moved != nullptr) cudaEventDestroy(piece.moved);
      if (piece.pinned != nullptr) cudaFreeHost(piece.pinned);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  absl::Status Open() {
    KVSTOW_RETURN_IF_ERROR(
        ToStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream"));
    for (Piece& piece : pieces_) {
      KVSTOW_RETURN_IF_ERROR(ToStatus(cudaMallocHost(&piece.pinned, kPieceBytes), "pinned memory"));
      KVSTOW_RETURN_IF_ERROR(ToStatus(
          cudaEventCreateWithFlags(&piece.moved, cudaEventDisableTiming), "creating an event"));
    }
    return absl::OkStatus();
  }

  cudaStream_t stream() const { return stream_; }

  // Both return when the bytes are there, or when nothing uses the pieces any more.
  absl::Status ToDevice(std::span<const uint8_t> from, uint8_t* to) {
    return Drain(SendAll(from, to), "copying to the GPU");
  }
  absl::Status ToHost(const uint8_t* from, std::span<uint8_t> to) {
    return Drain(ReceiveAll(from, to), "copying from the GPU");
  }

 private:
  struct Piece {
    void* pinned = nullptr;
    cudaEvent_t moved = nullptr;
  };

  cudaError_t SendAll(std::span<const uint8_t> from, uint8_t* to) {
    for (size_t at = 0, i = 0; at < from.size(); at += kPieceBytes, ++i) {
      const Piece& piece = pieces_[i % 2];
      const size_t bytes = std::min(kPieceBytes, from.size() - at);
      if (const auto e = cudaEventSynchronize(piece.moved); e != cudaSuccess) return e;
      std::memcpy(piece.pinned, from.data() + at, bytes);
      if (const auto e = Move(to + at, piece.pinned, bytes, cudaMemcpyHostToDevice, piece.moved);
          e != cudaSuccess) {
        return e;
      }
    }
    return cudaSuccess;
  }

  cudaError_t ReceiveAll(const uint8_t* from, std::span<uint8_t> to) {
    const size_t count = (to.size() + kPieceBytes - 1) / kPieceBytes;
    const auto bytes_of = [&](size_t i) {
      return std::min(kPieceBytes, to.size() - i * kPieceBytes);
    };
    const auto start = [&](size_t i) {
      const Piece& piece = pieces_[i % 2];
      return Move(piece.pinned, from + i * kPieceBytes, bytes_of(i), cudaMemcpyDeviceToHost,
                  piece.moved);
    };
    if (count > 0) {
      if (const auto e = start(0); e != cudaSuccess) return e;
    }
    for (size_t i = 0; i < count; ++i) {
      if (i + 1 < count) {
        if (const auto e = start(i + 1); e != cudaSuccess) return e;
      }
      const Piece& piece = pieces_[i % 2];
      if (const auto e = cudaEventSynchronize(piece.moved); e != cudaSuccess) return e;
      std::memcpy(to.data() + i * kPieceBytes, piece.pinned, bytes_of(i));
    }
    return cudaSuccess;
  }

  cudaError_t Move(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                   cudaEvent_t moved) {
    const auto e = cudaMemcpyAsync(to, from, bytes, kind, stream_);
    return e != cudaSuccess ? e : cudaEventRecord(moved, stream_);
  }

  absl::Status Drain(cudaError_t code, absl::string_view what) {
    const cudaError_t drained = cudaStreamSynchronize(stream_);
    return ToStatus(code != cudaSuccess ? code : drained, what);
  }

  cudaStream_t stream_ = nullptr;
  std::array<Piece, 2> pieces_{};
};

class CudaBuffer final : public DeviceBuffer {
 public:
  CudaBuffer(int ordinal, cudaStream_t stream, uint8_t* data, size_t size)
      : ordinal_(ordinal), stream_(stream), data_(data), size_(size) {}
  // The bytes are at rest: every Store and Load that used them has returned.
  ~CudaBuffer() override {
    cudaSetDevice(ordinal_);
    cudaFreeAsync(data_, stream_);
  }
  size_t size() const override { return size_; }
  uint8_t* data() const { return data_; }
  int ordinal() const { return ordinal_; }

 private:
  const int ordinal_;
  const cudaStream_t stream_;
  uint8_t* const data_;
  const size_t size_;
};

class Cuda final : public Device {
 public:
  Cuda(int ordinal, std::string name) : ordinal_(ordinal), name_(std::move(name)) {}
  ~Cuda() override {
    cudaSetDevice(ordinal_);
    cudaDeviceSynchronize();  // frees that are under way belong to the pool
    free_lanes_.clear();
    lanes_.clear();
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
    MutexLock lock(mu_);
    for (size_t i = 0; i < kLanes; ++i) {
      lanes_.push_back(std::make_unique<Lane>());
      KVSTOW_RETURN_IF_ERROR(lanes_.back()->Open());
      free_lanes_.push_back(lanes_.back().get());
    }
    return absl::OkStatus();
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
    const LaneHold lane(*this);
    void* data = nullptr;
    KVSTOW_RETURN_IF_ERROR(ToStatus(
        cudaMallocFromPoolAsync(&data, std::max<size_t>(bytes.size(), 1), pool_, lane->stream()),
        absl::StrCat("allocating ", bytes.size(), " bytes on ", name_)));
    auto buffer = std::make_shared<const CudaBuffer>(ordinal_, lane->stream(),
                                                     static_cast<uint8_t*>(data), bytes.size());
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
    const LaneHold lane(*this);
    ByteBlock block(cuda->size());
    KVSTOW_RETURN_IF_ERROR(lane->ToHost(cuda->data(), block.span()));
    return std::move(block).Share();
  }

 private:
  // A lane for a scope; waits until one is free. The copy itself runs outside the lock.
  class LaneHold {
   public:
    explicit LaneHold(Cuda& device) : device_(device) {
      MutexLock lock(device_.mu_);
      while (device_.free_lanes_.empty()) device_.lane_freed_.Wait(device_.mu_);
      lane_ = device_.free_lanes_.back();
      device_.free_lanes_.pop_back();
    }
    ~LaneHold() {
      MutexLock lock(device_.mu_);
      device_.free_lanes_.push_back(lane_);
      device_.lane_freed_.NotifyOne();
    }
    LaneHold(const LaneHold&) = delete;
    LaneHold& operator=(const LaneHold&) = delete;
    Lane* operator->() const { return lane_; }

   private:
    Cuda& device_;
    Lane* lane_ = nullptr;
  };

  const int ordinal_;
  const std::string name_;
  cudaMemPool_t pool_ = nullptr;
  std::vector<std::unique_ptr<Lane>> lanes_;
  Mutex mu_;
  CondVar lane_freed_;
  std::vector<Lane*> free_lanes_ KVSTOW_GUARDED_BY(mu_);
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
