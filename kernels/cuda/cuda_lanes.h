// Streams of a GPU, each lent to one caller at a time; those for copies have pinned memory. kvstow
// never uses the default stream: all of its work on a GPU is on these.
//
// Thread-safe, except for a Lane, which belongs to its holder alone. The current device must be the
// GPU (OnGpu); Close makes it so itself.
#ifndef KVSTOW_KERNELS_CUDA_CUDA_LANES_H_
#define KVSTOW_KERNELS_CUDA_CUDA_LANES_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "kernels/cuda/primary_context.h"

namespace kvstow {

enum class LaneUse : uint8_t {
  kCopies,   // with two pinned pieces
  kKernels,  // without: ToDevice and ToHost are not for these
};

// One caller at a time: a stream, two pinned pieces and, for each, the event after its last
// transfer.
class Lane {
 public:
  explicit Lane(const PrimaryContext& gpu) : gpu_(gpu) {}
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane();

  absl::Status Open(LaneUse use);
  cudaStream_t stream() const { return stream_; }

  // After what the stream has to do before. Both return when the bytes are there, or when nothing
  // uses the pieces any more.
  absl::Status ToDevice(std::span<const uint8_t> from, uint8_t* to);
  absl::Status ToHost(const uint8_t* from, std::span<uint8_t> to);
  // Waits for the stream. Returns the first error of `code` and of the stream's work, told as
  // `what`.
  absl::Status Drain(cudaError_t code, absl::string_view what);

 private:
  struct Piece {
    void* pinned = nullptr;
    cudaEvent_t moved = nullptr;
  };

  cudaError_t SendAll(std::span<const uint8_t> from, uint8_t* to);
  cudaError_t ReceiveAll(const uint8_t* from, std::span<uint8_t> to);
  cudaError_t Move(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                   cudaEvent_t moved);

  const PrimaryContext& gpu_;
  cudaStream_t stream_ = nullptr;
  std::array<Piece, 2> pieces_{};
};

// Callers that can copy at once, of one device.
inline constexpr size_t kCopyLanes = 4;

class Lanes {
 public:
  explicit Lanes(const PrimaryContext& gpu) : gpu_(gpu) {}
  absl::Status Open(size_t count, LaneUse use);
  // Waits for what the streams have to do, and closes them; none may be held. Does nothing where
  // they were not opened.
  void Close();

  // Lends a lane for a scope. Waits until one is free.
  class Hold {
   public:
    explicit Hold(Lanes& lanes);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    Lane* operator->() const { return lane_; }
    Lane& operator*() const { return *lane_; }

   private:
    Lanes& lanes_;
    Lane* lane_ = nullptr;
  };

 private:
  const PrimaryContext& gpu_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  Mutex mu_;
  CondVar freed_;
  std::vector<Lane*> free_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_CUDA_CUDA_LANES_H_
