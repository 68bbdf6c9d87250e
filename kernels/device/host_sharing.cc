#include "kernels/device/host_sharing.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/shared_memory.h"
#include "base/status_macros.h"
#include "kernels/device/host_buffer.h"

namespace kvstow {
namespace {

constexpr uintptr_t kMark = uintptr_t{1} << 62;

template <typename Byte>
Byte* Turned(Byte* address) {
  return reinterpret_cast<Byte*>(reinterpret_cast<uintptr_t>(address) ^ kMark);
}

class HostShared final : public SharedDeviceMemory {
 public:
  HostShared(SharedMemory memory, bool made)
      : memory_(std::make_shared<const SharedMemory>(std::move(memory))), made_(made) {}

  std::span<uint8_t> bytes() const override { return AsDeviceBytes(memory_->bytes()); }
  int descriptor() const override { return made_ ? memory_->descriptor() : -1; }
  absl::StatusOr<std::shared_ptr<DeviceBuffer>> View(size_t offset, size_t bytes) override {
    KVSTOW_RETURN_IF_ERROR(CheckView(*this, offset, bytes));
    return std::make_shared<HostBuffer>(memory_, memory_->bytes().subspan(offset, bytes));
  }

 private:
  const std::shared_ptr<const SharedMemory> memory_;
  const bool made_;
};

class HostSharing final : public DeviceSharing {
 public:
  explicit HostSharing(std::string uuid) : uuid_(std::move(uuid)) {}

  std::string uuid() const override { return uuid_; }
  absl::StatusOr<std::shared_ptr<SharedDeviceMemory>> Make(size_t bytes) override {
    if (bytes == 0) return absl::InvalidArgumentError("shared memory has at least 1 byte");
    KVSTOW_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Create(bytes));
    return std::make_shared<HostShared>(std::move(memory), /*made=*/true);
  }
  absl::StatusOr<std::shared_ptr<SharedDeviceMemory>> Map(int descriptor, size_t bytes) override {
    auto memory = SharedMemory::Map(descriptor);
    if (!memory.ok() || memory->bytes().size() != bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("what came is no shared memory of ", bytes, " bytes"));
    }
    return std::make_shared<HostShared>(*std::move(memory), /*made=*/false);
  }
  absl::StatusOr<bool> Passed(void* event) override {
    return event == nullptr || static_cast<HostEvent*>(event)->load();
  }
  absl::Status Copy(std::span<const uint8_t> from, uint8_t* to) override {
    std::memcpy(Turned(to), Turned(from.data()), from.size());
    return absl::OkStatus();
  }
  absl::Status ToHost(std::span<const uint8_t> from, uint8_t* to) override {
    std::memcpy(to, Turned(from.data()), from.size());
    return absl::OkStatus();
  }
  absl::Status ToDevice(std::span<const uint8_t> from, uint8_t* to) override {
    std::memcpy(Turned(to), from.data(), from.size());
    return absl::OkStatus();
  }

 private:
  const std::string uuid_;
};

}  // namespace

absl::Status CheckView(const SharedDeviceMemory& memory, size_t offset, size_t bytes) {
  const size_t all = memory.bytes().size();
  if (bytes > 0 && offset <= all && bytes <= all - offset && offset % kViewAlignment == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(bytes, " bytes at ", offset,
                                                 " are no part of shared memory of ", all,
                                                 " that begins at a multiple of ", kViewAlignment));
}

std::span<uint8_t> AsDeviceBytes(std::span<uint8_t> host) {
  return {Turned(host.data()), host.size()};
}

std::unique_ptr<DeviceSharing> MakeHostSharing(std::string uuid) {
  return std::make_unique<HostSharing>(std::move(uuid));
}

}  // namespace kvstow
