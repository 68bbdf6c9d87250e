// The vocabulary of a calibration (calibration/vocabulary.h) on a device, for the encoder and the
// decoder of calibrated pages (joint_encoder.h, joint_decoder.h).
//
// Immutable after Open: thread-safe. Borrows the device and its engine.
#ifndef KVSTOW_KERNELS_DEVICE_VOCABULARY_ON_DEVICE_H_
#define KVSTOW_KERNELS_DEVICE_VOCABULARY_ON_DEVICE_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/calibration/vocabulary.h"
#include "kernels/device/joint_layout.h"
#include "kernels/methods/joint_coder.h"

namespace kvstow {

class VocabularyOnDevice {
 public:
  VocabularyOnDevice(Device& device, const JointEngine& engine)
      : device_(device), engine_(engine) {}
  // Sends the calibration's vocabulary. There is nothing to do where it has none.
  absl::Status Open(const JointCoder& coder);
  // Returns whether pages are foretold.
  bool on() const { return held_ != nullptr; }

  // Returns all of a launch but its ids, rows and raw pages. Each page has `tokens` tokens, and
  // `first` of these are first tokens.
  gpu::TokenLaunch LaunchOf(uint32_t pages, uint32_t tokens, uint32_t first) const;
  // Gives a launch memory for its rows. Returns what holds it.
  absl::StatusOr<std::shared_ptr<DeviceBuffer>> GiveRows(gpu::TokenLaunch& launch) const;
  // Gives run `r` of a launch what it multiplies with the rows of its tokens.
  void Place(size_t r, gpu::JointLaunch& launch) const;

 private:
  // Offsets in `held_`.
  struct OfRun {
    size_t means = 0, importance = 0;
    bool felt = false;  // has importance
  };

  Device& device_;
  const JointEngine& engine_;
  std::shared_ptr<const DeviceBuffer> held_;  // what `shape_` and launches point at
  gpu::TokenLaunch shape_;                    // without pages
  std::vector<OfRun> runs_;
  KvSpec spec_;
};

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_VOCABULARY_ON_DEVICE_H_
