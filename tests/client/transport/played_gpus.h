// A GPU that the host plays, as the worker's process has it and as the server's does.
//
// Thread-safe.
#ifndef KVSTOW_TESTS_CLIENT_TRANSPORT_PLAYED_GPUS_H_
#define KVSTOW_TESTS_CLIENT_TRANSPORT_PLAYED_GPUS_H_

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "kernels/device/host_sharing.h"

namespace kvstow {

inline constexpr char kUuid[] = "the test's GPU 0";  // 16 bytes

// The worker's GPU: counts, and fails when it is told to.
class WorkersGpu final : public DeviceSharing {
 public:
  std::atomic<int> within = 0, to_host = 0, to_device = 0;
  std::atomic<bool> cannot_copy = false, cannot_map = false, cannot_at_all = false;

  std::string uuid() const override { return host_->uuid(); }
  absl::StatusOr<std::shared_ptr<SharedDeviceMemory>> Make(size_t bytes) override {
    return host_->Make(bytes);
  }
  absl::StatusOr<std::shared_ptr<SharedDeviceMemory>> Map(int descriptor, size_t bytes) override {
    return host_->Map(descriptor, cannot_map ? bytes + 1 : bytes);
  }
  absl::StatusOr<bool> Passed(void* event) override { return host_->Passed(event); }
  absl::Status Copy(std::span<const uint8_t> from, uint8_t* to) override {
    if (cannot_copy) return absl::InternalError("the GPU fell off the bus");
    ++within;
    return host_->Copy(from, to);
  }
  absl::Status ToHost(std::span<const uint8_t> from, uint8_t* to) override {
    if (cannot_at_all) return absl::InternalError("the GPU fell off the bus");
    ++to_host;
    return host_->ToHost(from, to);
  }
  absl::Status ToDevice(std::span<const uint8_t> from, uint8_t* to) override {
    if (cannot_at_all) return absl::InternalError("the GPU fell off the bus");
    ++to_device;
    return host_->ToDevice(from, to);
  }

 private:
  const std::unique_ptr<DeviceSharing> host_ = MakeHostSharing(kUuid);
};

// The server's end of it, which can be held up before it hands its memory a page.
class ServersGpu final : public DeviceSharing {
 public:
  explicit ServersGpu(std::string uuid) : host_(MakeHostSharing(std::move(uuid))) {}

  void Hold() {
    MutexLock lock(mu_);
    held_ = true;
  }
  void LetGo() {
    MutexLock lock(mu_);
    held_ = false;
    changed_.NotifyAll();
  }
  bool IsHolding() {
    MutexLock lock(mu_);
    return waiting_ > 0;
  }
  void AwaitNoneHeld() {
    MutexLock lock(mu_);
    while (waiting_ > 0) changed_.Wait(mu_);
  }

  std::string uuid() const override { return host_->uuid(); }
  absl::StatusOr<std::shared_ptr<SharedDeviceMemory>> Make(size_t bytes) override {
    return host_->Make(bytes);
  }
  absl::StatusOr<std::shared_ptr<SharedDeviceMemory>> Map(int descriptor, size_t bytes) override {
    return host_->Map(descriptor, bytes);
  }
  absl::StatusOr<bool> Passed(void* event) override { return host_->Passed(event); }
  absl::Status Copy(std::span<const uint8_t> from, uint8_t* to) override {
    return host_->Copy(from, to);
  }
  absl::Status ToHost(std::span<const uint8_t> from, uint8_t* to) override {
    return host_->ToHost(from, to);
  }
  absl::Status ToDevice(std::span<const uint8_t> from, uint8_t* to) override {
    MutexLock lock(mu_);
    ++waiting_;
    changed_.NotifyAll();
    while (held_) changed_.Wait(mu_);
    const absl::Status copied = host_->ToDevice(from, to);
    --waiting_;
    changed_.NotifyAll();
    return copied;
  }

 private:
  const std::unique_ptr<DeviceSharing> host_;
  Mutex mu_;
  CondVar changed_;
  bool held_ KVSTOW_GUARDED_BY(mu_) = false;
  int waiting_ KVSTOW_GUARDED_BY(mu_) = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_CLIENT_TRANSPORT_PLAYED_GPUS_H_
