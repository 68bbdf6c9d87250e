// A GPU that the host plays (emulated_codec.h), and whose memory fails when it is told to.
#ifndef KVSTOW_TESTS_SERVICE_UNSTEADY_GPU_H_
#define KVSTOW_TESTS_SERVICE_UNSTEADY_GPU_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "kernels/device/device.h"
#include "kernels/device/device_kernels.h"
#include "tests/kernels/device/emulated_codec.h"

namespace kvstow::testing {

class UnsteadyGpu final : public Device {
 public:
  std::atomic<bool> is_full = false;    // no buffer can be had
  std::atomic<bool> is_broken = false;  // nothing comes back from it
  std::atomic<int> buffers = 0;         // that were asked for
  std::atomic<int> loads = 0;
  std::function<void()> on_load = [] {};  // set while nobody loads

  std::string name() const override { return gpu_->name(); }
  absl::StatusOr<DeviceMemory> Memory() const override { return gpu_->Memory(); }
  absl::StatusOr<std::shared_ptr<const DeviceBuffer>> Store(const SharedBytes& bytes) override {
    ++buffers;
    if (is_full) return absl::ResourceExhaustedError("the GPU is full");
    return gpu_->Store(bytes);
  }
  absl::StatusOr<SharedBytes> Load(const std::shared_ptr<const DeviceBuffer>& buffer) override {
    ++loads;
    on_load();
    if (is_broken) return absl::InternalError("the GPU fell off the bus");
    return gpu_->Load(buffer);
  }
  absl::StatusOr<std::shared_ptr<DeviceBuffer>> Allocate(size_t bytes) override {
    ++buffers;
    if (is_full) return absl::ResourceExhaustedError("the GPU is full");
    return gpu_->Allocate(bytes);
  }
  DeviceKernels& kernels() override { return gpu_->kernels(); }

 private:
  const std::unique_ptr<Device> gpu_ = EmulatedGpu(ThreadOrder::kForward);
};

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_SERVICE_UNSTEADY_GPU_H_
