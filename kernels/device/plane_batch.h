// The streams of one launch of the plane decoder (plane_layout.h), gathered page by page and run by
// run, then sent to the GPU in one piece.
//
//   PlaneBatch batch;
//   batch.Add(page, tokens, tokens_per_stream, lists, planes);
//   const absl::StatusOr<PlaneBatch::Sent> sent = batch.Send(device);
//   sent->Place(engine.AddressOf(*sent->buffer), launch);
//
// Value type. It borrows lists and planes until Send has returned.
#ifndef KVSTOW_KERNELS_DEVICE_PLANE_BATCH_H_
#define KVSTOW_KERNELS_DEVICE_PLANE_BATCH_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
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
  // Appends bytes that go along, one after another from `Sent::beside` on.
  void AddBeside(std::span<const uint8_t> bytes);

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
  // Pieces of memory that stand one after another.
  class Pieces {
   public:
    // Appends one, and returns where it begins, in bytes.
    size_t Add(std::span<const uint8_t> bytes);
    size_t size() const { return size_; }
    void CopyTo(uint8_t* to) const;

   private:
    std::vector<std::pair<size_t, std::span<const uint8_t>>> pieces_;
    size_t size_ = 0;
  };
  template <typename T>
  static uint32_t Append(std::span<const T> list, Pieces& to);

  std::vector<PlaneJob> jobs_;
  Pieces rows_, tilts_, factors_, words_, beside_;
};

}  // namespace kvstow::gpu

#endif  // KVSTOW_KERNELS_DEVICE_PLANE_BATCH_H_
