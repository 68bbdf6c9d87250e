// Codes calibrated pages (`joint`, joint_run_codec.h) that lie raw in a device's memory. The device
// transforms and entropy-codes them. Coded pages are in host memory: they have a fifteenth to a
// seventieth of the raw bytes. The host puts bodies together and takes them apart, and codes first
// tokens. JointEngine is the GPU's part; joint_encoder.h and joint_decoder.h are the host's.
//
//   MakeDeviceJointCodec(gpu, recipe, spec, calibrations)   // matrices go to the GPU, once
//   codec->Encode(jobs)                                     // pages of all lengths and positions
//
// The product takes bf16 and sums in F32, so a rounding decision may differ from a CPU's: bodies
// are not the CPU's bytes, but any codec of the recipe decodes them, and what two codecs decode
// differs by less than kJointDeviceError of squared error over energy.
//
// Where the calibration has a vocabulary, the encoder finds the tokens of pages as the CPU's does,
// and codes what they do not foretell (calibration/vocabulary.h). Headers have the tokens.
//
// Where the calibration has mean queries, the encoder foretells the attention of tokens as the
// CPU's does (importance/foretold_attention.h). Step classes are those of the CPU but for rounding.
//
// Thread-safe: the host's part of one thread's call overlaps the kernels of another's. A call of
// many pages uses some threads of the host, and takes up to twice its raw bytes of the device's
// memory. Calls borrow buffers, which are the device's own. The device outlives its codecs.
//
// Errors: INVALID_ARGUMENT names a page whose buffer or tokens do not fit, before any work.
// DATA_LOSS names a damaged page; others may then be written or not. RESOURCE_EXHAUSTED and
// INTERNAL are those of Device.
#ifndef KVSTOW_KERNELS_DEVICE_DEVICE_JOINT_CODEC_H_
#define KVSTOW_KERNELS_DEVICE_DEVICE_JOINT_CODEC_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/device/device.h"
#include "kernels/device/joint_jobs.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

class DeviceJointCodec {
 public:
  virtual ~DeviceJointCodec() = default;

  // Returns the recipe with its calibration named, as the headers of its pages have it.
  virtual const Recipe& recipe() const = 0;
  virtual uint32_t levels() const = 0;
  virtual absl::StatusOr<std::vector<JointPage>> Encode(std::span<const JointEncodeJob> pages) = 0;
  virtual absl::Status Decode(std::span<const JointDecodeJob> pages) = 0;
};

// UNIMPLEMENTED for another recipe than `joint` alone, for streams of more tokens than a thread
// block has room for (plane_layout.h), and when the device has no JointEngine. Other errors are
// MakeCodec's.
absl::StatusOr<std::unique_ptr<DeviceJointCodec>> MakeDeviceJointCodec(
    Device& device, const Recipe& recipe, const KvSpec& spec, const CalibrationStore& calibrations);

}  // namespace kvstow

#endif  // KVSTOW_KERNELS_DEVICE_DEVICE_JOINT_CODEC_H_
