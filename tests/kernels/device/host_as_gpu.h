// The host's memory as that of a GPU: a test's device says where it differs.
#ifndef KVSTOW_TESTS_KERNELS_DEVICE_HOST_AS_GPU_H_
#define KVSTOW_TESTS_KERNELS_DEVICE_HOST_AS_GPU_H_

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/device_kernels.h"

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
  DeviceKernels& kernels() override { return HostDevice().kernels(); }
};

// One whose codecs count what they coded, and fail when they are told to.
class FailingGpu final : public HostAsGpu, public DeviceKernels {
 public:
  std::atomic<int> encoded = 0, decoded = 0;
  std::atomic<bool> fails = false;

  DeviceKernels& kernels() override { return *this; }
  absl::StatusOr<std::unique_ptr<DeviceCodec>> NewCodec(const Recipe& recipe,
                                                        const KvSpec& spec) override {
    auto codec = HostAsGpu::kernels().NewCodec(recipe, spec);
    if (!codec.ok()) return codec.status();
    return std::make_unique<FailingCodec>(*std::move(codec), *this);
  }

 private:
  class FailingCodec final : public DeviceCodec {
   public:
    FailingCodec(std::unique_ptr<DeviceCodec> codec, FailingGpu& gpu)
        : codec_(std::move(codec)), gpu_(gpu) {}
    const std::string& pipeline() const override { return codec_->pipeline(); }
    uint32_t levels() const override { return codec_->levels(); }
    std::vector<SegmentInfo> Segments(uint32_t tokens) const override {
      return codec_->Segments(tokens);
    }
    absl::StatusOr<std::vector<PageCoding>> Encode(std::span<const EncodeJob> pages,
                                                   bool want_gains) override {
      if (gpu_.fails) return absl::InternalError("the GPU fell off the bus");
      auto coding = codec_->Encode(pages, want_gains);
      if (coding.ok()) gpu_.encoded += std::ranges::count_if(*coding, &PageCoding::coded);
      return coding;
    }
    // The worst that it can say of a good page.
    absl::Status Decode(std::span<const DecodeJob> pages) override {
      if (gpu_.fails) return absl::DataLossError("the page is damaged");
      gpu_.decoded += static_cast<int>(pages.size());
      return codec_->Decode(pages);
    }

   private:
    const std::unique_ptr<DeviceCodec> codec_;
    FailingGpu& gpu_;
  };
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_KERNELS_DEVICE_HOST_AS_GPU_H_
