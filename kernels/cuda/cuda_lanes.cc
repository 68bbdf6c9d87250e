#include "kernels/cuda/cuda_lanes.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

// A copy goes through page-locked memory in pieces of this size, two at a time: while the GPU moves
// one, the CPU fills or empties the other.
constexpr size_t kPieceBytes = 1 << 20;

}  // namespace

Lane::~Lane() {
  for (const Piece& piece : pieces_) {
    if (piece.moved != nullptr) cudaEventDestroy(piece.moved);
    if (piece.pinned != nullptr) cudaFreeHost(piece.pinned);
  }
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::Status Lane::Open(LaneUse use) {
  KVSTOW_RETURN_IF_ERROR(
      ToStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream"));
  if (use == LaneUse::kKernels) return absl::OkStatus();
  for (Piece& piece : pieces_) {
    KVSTOW_RETURN_IF_ERROR(ToStatus(cudaMallocHost(&piece.pinned, kPieceBytes), "pinned memory"));
    KVSTOW_RETURN_IF_ERROR(ToStatus(cudaEventCreateWithFlags(&piece.moved, cudaEventDisableTiming),
                                    "creating an event"));
  }
  return absl::OkStatus();
}

absl::Status Lane::ToDevice(std::span<const uint8_t> from, uint8_t* to) {
  return Drain(SendAll(from, to), "copying to the GPU");
}

absl::Status Lane::ToHost(const uint8_t* from, std::span<uint8_t> to) {
  return Drain(ReceiveAll(from, to), "copying from the GPU");
}

cudaError_t Lane::SendAll(std::span<const uint8_t> from, uint8_t* to) {
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

cudaError_t Lane::ReceiveAll(const uint8_t* from, std::span<uint8_t> to) {
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

cudaError_t Lane::Move(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                       cudaEvent_t moved) {
  const auto e = cudaMemcpyAsync(to, from, bytes, kind, stream_);
  return e != cudaSuccess ? e : cudaEventRecord(moved, stream_);
}

absl::Status Lane::Drain(cudaError_t code, absl::string_view what) {
  const cudaError_t drained = cudaStreamSynchronize(stream_);
  const cudaError_t first = code != cudaSuccess ? code : drained;
  gpu_.Watch(first);
  return ToStatus(first, what);
}

absl::Status Lanes::Open(size_t count, LaneUse use) {
  MutexLock lock(mu_);
  for (size_t i = 0; i < count; ++i) {
    lanes_.push_back(std::make_unique<Lane>(gpu_));
    KVSTOW_RETURN_IF_ERROR(lanes_.back()->Open(use));
    free_.push_back(lanes_.back().get());
  }
  return absl::OkStatus();
}

void Lanes::Close() {
  MutexLock lock(mu_);
  if (lanes_.empty()) return;
  const OnGpu current(gpu_);
  for (const auto& lane : lanes_) {
    // Whoever wanted the result has it, or has gone.
    lane->Drain(cudaSuccess, "closing").IgnoreError();
  }
  free_.clear();
  lanes_.clear();
}

Lanes::Hold::Hold(Lanes& lanes) : lanes_(lanes) {
  MutexLock lock(lanes_.mu_);
  while (lanes_.free_.empty()) lanes_.freed_.Wait(lanes_.mu_);
  lane_ = lanes_.free_.back();
  lanes_.free_.pop_back();
}

Lanes::Hold::~Hold() {
  MutexLock lock(lanes_.mu_);
  lanes_.free_.push_back(lane_);
  lanes_.freed_.NotifyOne();
}

}  // namespace kvstow
