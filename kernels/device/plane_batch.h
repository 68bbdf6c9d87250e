// The streams of one launch of the plane decoder (plane_layout.h), gathered page by page and run by
// run in host memory, then sent to the GPU in one piece.
//
//   PlaneBatch batch;
//   batch.Add({.page = p, .rank = .., .stride = .., .coefficients = ..}, layout, factors, streams);
//   const PlaneBatch::Sent sent = batch.Send(device, at_of);
//   sent.Place(launch);
//
// Value type.
#ifndef KVSTOW_KERNELS_DEVICE_PLANE_BATCH_H_
#define KVSTOW_KERNELS_DEVICE_PLANE_BATCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"
#include "kernels/device/plane_layout.h"
#include "kernels/entropy/plane_coder.h"

namespace kvstow::gpu {

class PlaneBatch {
 public:
  // The rows and tilts of a run of a page, and what the coefficients of each token are times.
  struct Lists {
    std::span<const int16_t> rows;
    std::span<const int8_t> tilts;   // or empty
    std::span<const float> factors;  // or empty
  };
  // Appends all streams of a run of a page. `planes` are the bodies of the levels that are there.
  // `page` says what all streams have in common: `page`, `rank`, `stride` and the place of the
  // first token's coefficients. Fails with DATA_LOSS for bodies that do not divide into streams.
  absl::Status Add(const PlaneJob& page, uint32_t tokens, uint32_t tokens_per_stream,
                   const Lists& lists, std::span<const std::span<const uint8_t>> planes);
  // Appends bytes that go along, and returns where they lie in `Sent::beside`.
  std::span<uint8_t> AddBeside(size_t bytes);

  uint32_t streams() const { return static_cast<uint32_t>(jobs_.size()); }

  // What was sent. It holds the memory that the launch uses.
  struct Sent {
    std::shared_ptr<const DeviceBuffer> buffer;
    size_t jobs = 0, rows = 0, tilts = 0, factors = 0, words = 0, beside = 0;
    // Has the launch read it; `at` is where the buffer lies.
    void Place(const uint8_t* at, PlaneDecodeLaunch& launch) const;
  };
  absl::StatusOr<Sent> Send(Device& device) const;

 private:
  std::vector<PlaneJob> jobs_;
  std::vector<int16_t> rows_;
  std::vector<int8_t> tilts_;
  std::vector<float> factors_;
  std::vector<uint8_t> words_;  // two bytes each
  std::vector<uint8_t> beside_;
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_DEVICE_PLANE_BATCH_H_
