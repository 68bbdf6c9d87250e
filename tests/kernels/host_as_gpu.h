// The host's memory as that of a GPU: a test's device says where it differs.
#ifndef KVSTOW_TESTS_KERNELS_HOST_AS_GPU_H_
#define KVSTOW_TESTS_KERNELS_HOST_AS_GPU_H_

#include <memory>
#include <string>

#include "kernels/device.h"
#include "kernels/device_codec.h"
#include "kernels/device_scorer.h"

namespace kvstow {

class HostAsGpu : public Device {
 public:
  std::string name() const override { return "the host as a GPU"; }
  absl::StatusOr<DeviceMemory> Memory() const override { return HostDevice().Memory(); }
  absl::StatusOr<std::shared_ptr<const DeviceBuffer>> Store(const SharedBytes& bytes) override {
    return HostDevice().Store(bytes);
  }
  absl::StatusOr<SharedBytes> Load(const std::shared_ptr<const DeviceBuffer>& buffer) override {
    return HostDevice().Load(buffer);
  }
  absl::StatusOr<std::shared_ptr<DeviceBuffer>> Allocate(size_t bytes) override {
    return HostDevice().Allocate(bytes);
  }
  absl::StatusOr<std::unique_ptr<DeviceCodec>> NewCodec(const Recipe& recipe,
                                                        const KvSpec& spec) override {
    return HostDevice().NewCodec(recipe, spec);
  }
  absl::StatusOr<std::unique_ptr<DeviceScorer>> NewScorer(const Recipe& recipe,
                                                          const KvSpec& spec) override {
    return HostDevice().NewScorer(recipe, spec);
  }
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_KERNELS_HOST_AS_GPU_H_
