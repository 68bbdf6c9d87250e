// The mean queries of a calibration (calibration/query_means.h) on a device, for the encoder of
// calibrated pages (joint_encoder.h), which foretells the attention of their tokens.
//
// Immutable after Open: thread-safe. Borrows the device and its engine.
#ifndef KVSTOW_KERNELS_DEVICE_QUERY_MEANS_ON_DEVICE_H_
#define KVSTOW_KERNELS_DEVICE_QUERY_MEANS_ON_DEVICE_H_

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/calibration/query_means.h"
#include "kernels/device/joint_jobs.h"
#include "kernels/device/joint_layout.h"
#include "kernels/methods/joint_coder.h"

namespace kvstow {

class QueryMeansOnDevice {
 public:
  QueryMeansOnDevice(Device& device, const JointEngine& engine)
      : device_(device), engine_(engine) {}
  // Sends the calibration's mean queries. There is nothing to do where it has none, or where no run
  // of the codec has step classes.
  absl::Status Open(const JointCoder& coder);
  // Returns whether pages ask.
  bool on() const { return held_ != nullptr; }

  // Returns all of a launch but its memory. `batch` has indices of pages of one length.
  gpu::AskLaunch LaunchOf(std::span<const JointEncodeJob> pages,
                          std::span<const size_t> batch) const;
  // Gives the launches, which run one after another, the memory that they share. Returns what holds
  // it.
  absl::StatusOr<std::shared_ptr<DeviceBuffer>> ShareScratch(
      std::span<gpu::AskLaunch> launches) const;

 private:
  Device& device_;
  const JointEngine& engine_;
  std::shared_ptr<const DeviceBuffer> held_;  // what `shape_` points at; null: no page asks
  gpu::AskLaunch shape_;                      // without pages
  KvSpec spec_;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_QUERY_MEANS_ON_DEVICE_H_
