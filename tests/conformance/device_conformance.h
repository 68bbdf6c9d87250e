// What every Device promises, run on each implementation:
//
//   INSTANTIATE_TEST_SUITE_P(Host, DeviceConformance, testing::Values(DeviceFactory{"cpu", Open}));
//
// The parameter opens the device (device_factory.h).
#ifndef KVSTOW_TESTS_CONFORMANCE_DEVICE_CONFORMANCE_H_
#define KVSTOW_TESTS_CONFORMANCE_DEVICE_CONFORMANCE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/device/device.h"
#include "tests/conformance/device_factory.h"

namespace kvstow {

class DeviceConformance : public OnEveryDevice {
 protected:
  // Stores and loads `bytes`, and compares.
  void RoundTrip(const std::vector<uint8_t>& bytes) {
    const auto buffer = device_->Store(SharedBytes::CopyOf(bytes));
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ((*buffer)->size(), bytes.size());
    const auto loaded = device_->Load(*buffer);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    ASSERT_EQ(loaded->size(), bytes.size());
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), loaded->data())) << "bytes differ";
  }
};

TEST_P(DeviceConformance, GivesBackTheBytesOfEverySize) {
  // Around 1 MiB: the piece in which a GPU's copies are cut.
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4095}, (size_t{1} << 20) - 1,
                            size_t{1} << 20, (size_t{1} << 20) + 1, (size_t{5} << 20) + 17}) {
    SCOPED_TRACE(size);
    RoundTrip(PatternBytes(size, static_cast<uint32_t>(size)));
  }
}

TEST_P(DeviceConformance, BuffersDoNotShareBytes) {
  std::vector<std::shared_ptr<const DeviceBuffer>> buffers;
  for (uint32_t i = 0; i < 64; ++i) {
    const auto buffer = device_->Store(SharedBytes::CopyOf(PatternBytes(1000 + i, i)));
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    buffers.push_back(*buffer);
  }
  for (uint32_t i = 0; i < 64; i += 2) buffers[i].reset();  // what is left must not move
  for (uint32_t i = 1; i < 64; i += 2) {
    const auto loaded = device_->Load(buffers[i]);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_THAT(loaded->span(), testing::ElementsAreArray(PatternBytes(1000 + i, i)));
  }
}

TEST_P(DeviceConformance, LoadedBytesOutliveTheBuffer) {
  const std::vector<uint8_t> bytes = PatternBytes(4096, 7);
  auto buffer = device_->Store(SharedBytes::CopyOf(bytes));
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  const auto loaded = device_->Load(*buffer);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  buffer->reset();
  RoundTrip(PatternBytes(4096, 8));  // may take the freed memory
  EXPECT_THAT(loaded->span(), testing::ElementsAreArray(bytes));
}

TEST_P(DeviceConformance, FreedMemoryComesBack) {
  const auto memory = device_->Memory();
  ASSERT_TRUE(memory.ok()) << memory.status();
  const SharedBytes bytes = SharedBytes::CopyOf(PatternBytes(size_t{64} << 20, 3));
  // Altogether more than the device has: it fits only when buffers are freed.
  for (uint64_t stored = 0; stored <= memory->total_bytes; stored += bytes.size()) {
    const auto buffer = device_->Store(bytes);
    ASSERT_TRUE(buffer.ok()) << "after " << stored << " bytes: " << buffer.status();
  }
}

TEST_P(DeviceConformance, SaysWhatItIs) {
  EXPECT_FALSE(device_->name().empty());
  const auto memory = device_->Memory();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_GT(memory->total_bytes, uint64_t{64} << 20);
  EXPECT_GT(memory->free_bytes, 0u);
  EXPECT_LE(memory->free_bytes, memory->total_bytes);
}

TEST_P(DeviceConformance, RefusesABufferOfAnotherDevice) {
  class Foreign final : public DeviceBuffer {
   public:
    size_t size() const override { return 16; }
  };
  EXPECT_EQ(device_->Load(std::make_shared<const Foreign>()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device_->Load(nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(DeviceConformance, ManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 8; ++t) {
    threads.emplace_back([this, t] {
      for (uint32_t i = 0; i < 16; ++i) RoundTrip(PatternBytes(100'000 + i * 37'000, t * 100 + i));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace kvstow

#endif  // KVSTOW_TESTS_CONFORMANCE_DEVICE_CONFORMANCE_H_
