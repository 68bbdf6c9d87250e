#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/device/device.h"
#include "kernels/device/device_kernels.h"
#include "kernels/device/host_buffer.h"
#include "kernels/device/host_kernels.h"

namespace kvstow {
namespace {

// MemAvailable counts page cache that the kernel would give up; free pages alone would not.
uint64_t AvailableBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string name;
  uint64_t kib = 0;
  for (std::string unit; meminfo >> name >> kib; std::getline(meminfo, unit)) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return static_cast<uint64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

class HostKernels final : public DeviceKernels {
 public:
  absl::StatusOr<std::unique_ptr<DeviceCodec>> NewCodec(const Recipe& recipe,
                                                        const KvSpec& spec) override {
    return MakeHostCodec(recipe, spec);
  }
  absl::StatusOr<std::unique_ptr<DeviceScorer>> NewScorer(const Recipe& recipe,
                                                          const KvSpec& spec) override {
    return MakeHostScorer(recipe, spec);
  }
};

// Host memory is where segments come from, so a stored buffer is a reference, not a copy.
class Host final : public Device {
 public:
  std::string name() const override { return "cpu"; }

  absl::StatusOr<DeviceMemory> Memory() const override {
    const auto total = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
    return DeviceMemory{.total_bytes = total, .free_bytes = std::min(total, AvailableBytes())};
  }

  absl::StatusOr<std::shared_ptr<const DeviceBuffer>> Store(const SharedBytes& bytes) override {
    return std::make_shared<const HostBuffer>(bytes);
  }

  absl::StatusOr<SharedBytes> Load(const std::shared_ptr<const DeviceBuffer>& buffer) override {
    const auto* host = dynamic_cast<const HostBuffer*>(buffer.get());
    if (host == nullptr) {
      return absl::InvalidArgumentError(
          "the buffer is not the host's: load it from its own device");
    }
    return host->bytes();
  }

  absl::StatusOr<std::shared_ptr<DeviceBuffer>> Allocate(size_t bytes) override {
    return std::make_shared<HostBuffer>(ByteBlock(bytes));
  }

  DeviceKernels& kernels() override { return kernels_; }

 private:
  HostKernels kernels_;
};

}  // namespace

Device& HostDevice() {
  static Host* const host = new Host;
  return *host;
}

}  // namespace kvstow
