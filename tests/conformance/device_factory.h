// The suites that run on every device share these: the parameter, the fixture, and bytes.
//
// UNAVAILABLE skips a test visibly (no such hardware here); any other error fails it.
#ifndef KVSTOW_TESTS_CONFORMANCE_DEVICE_FACTORY_H_
#define KVSTOW_TESTS_CONFORMANCE_DEVICE_FACTORY_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"

namespace kvstow {

using OpenedDevice = absl::StatusOr<std::shared_ptr<Device>>;
struct DeviceFactory {
  const char* name;  // in the names of the tests
  OpenedDevice (*open)();
};
inline void PrintTo(const DeviceFactory& factory, std::ostream* out) { *out << factory.name; }

inline OpenedDevice OpenHost() {
  return std::shared_ptr<Device>(&HostDevice(), [](Device*) {});
}
inline OpenedDevice OpenFirstGpu() {
  auto device = OpenCudaDevice(0);
  if (!device.ok()) return device.status();
  return std::shared_ptr<Device>(*std::move(device));
}

class OnEveryDevice : public ::testing::TestWithParam<DeviceFactory> {
 protected:
  void SetUp() override {
    auto device = GetParam().open();
    if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status().message();
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  std::shared_ptr<const DeviceBuffer> Put(const std::vector<uint8_t>& bytes) {
    auto buffer = device_->Store(SharedBytes::CopyOf(bytes));
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *buffer;
  }
  std::shared_ptr<DeviceBuffer> Room(size_t bytes) {
    auto buffer = device_->Allocate(bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *buffer;
  }
  std::vector<uint8_t> Get(const std::shared_ptr<const DeviceBuffer>& buffer) {
    const auto bytes = device_->Load(buffer);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return {bytes->span().begin(), bytes->span().end()};
  }

  std::shared_ptr<Device> device_;
};

// Bytes that differ from one seed and one place to another.
inline std::vector<uint8_t> PatternBytes(size_t size, uint32_t seed) {
  std::vector<uint8_t> bytes(size);
  uint32_t x = seed * 2654435761u + 1;
  for (uint8_t& b : bytes) {
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    b = static_cast<uint8_t>(x >> 8);
  }
  return bytes;
}

}  // namespace kvstow

#endif  // KVSTOW_TESTS_CONFORMANCE_DEVICE_FACTORY_H_
