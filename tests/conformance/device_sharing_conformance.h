// What every DeviceSharing promises, run on each implementation. The parameter opens it, and the
// Device of the same GPU; UNAVAILABLE skips visibly.
#ifndef KVSTOW_TESTS_CONFORMANCE_DEVICE_SHARING_CONFORMANCE_H_
#define KVSTOW_TESTS_CONFORMANCE_DEVICE_SHARING_CONFORMANCE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <thread>
#include <vector>

#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/device/device_kernels.h"
#include "kernels/device/device_pages.h"
#include "kernels/device/device_sharing.h"
#include "tests/conformance/device_factory.h"
#include "tests/kernels/pages.h"

namespace kvstow::testing {

struct OpenedSharing {
  std::shared_ptr<Device> device;
  std::shared_ptr<DeviceSharing> sharing;
};
struct SharingFactory {
  const char* name;
  absl::StatusOr<OpenedSharing> (*open)();
};
inline void PrintTo(const SharingFactory& factory, std::ostream* out) { *out << factory.name; }

class DeviceSharingConformance : public ::testing::TestWithParam<SharingFactory> {
 protected:
  void SetUp() override {
    auto opened = GetParam().open();
    if (absl::IsUnavailable(opened.status())) GTEST_SKIP() << opened.status().message();
    ASSERT_TRUE(opened.ok()) << opened.status();
    device_ = opened->device;
    sharing_ = opened->sharing;
  }

  std::shared_ptr<SharedDeviceMemory> Made(size_t bytes) {
    auto made = sharing_->Make(bytes);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }
  std::vector<uint8_t> Read(std::span<const uint8_t> from) {
    std::vector<uint8_t> out(from.size());
    EXPECT_TRUE(sharing_->ToHost(from, out.data()).ok());
    return out;
  }

  std::shared_ptr<Device> device_;
  std::shared_ptr<DeviceSharing> sharing_;
};

TEST_P(DeviceSharingConformance, BothSidesSeeTheSameBytes) {
  const auto made = Made(3 << 20);
  const auto mapped = sharing_->Map(dup(made->descriptor()), made->bytes().size());
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_EQ((*mapped)->bytes().size(), made->bytes().size());
  EXPECT_EQ((*mapped)->descriptor(), -1);
  const auto bytes = PatternBytes((2 << 20) + 77, 1);
  ASSERT_TRUE(sharing_->ToDevice(bytes, made->bytes().data() + 4096).ok());
  EXPECT_EQ(Read((*mapped)->bytes().subspan(4096, bytes.size())), bytes);
  // And back, from where the other memory of a worker's would be.
  const auto other = Made(3 << 20);
  ASSERT_TRUE(
      sharing_->Copy(made->bytes().subspan(4096, bytes.size()), other->bytes().data()).ok());
  ASSERT_TRUE(
      sharing_->Copy(other->bytes().first(bytes.size()), (*mapped)->bytes().data() + 100).ok());
  EXPECT_EQ(Read(made->bytes().subspan(100, bytes.size())), bytes);
}

TEST_P(DeviceSharingConformance, MemoryBeginsAsZeros) {
  for (const size_t bytes : {size_t{1}, size_t{5000}, size_t{2} << 20}) {
    const auto made = Made(bytes);
    ASSERT_GE(made->bytes().size(), bytes);
    EXPECT_THAT(Read(made->bytes()), ::testing::Each(0));
    ASSERT_TRUE(sharing_->ToDevice(PatternBytes(bytes, 1), made->bytes().data()).ok());
  }
}

TEST_P(DeviceSharingConformance, LivesAsLongAsEitherSide) {
  auto made = Made(1 << 20);
  auto mapped = sharing_->Map(dup(made->descriptor()), made->bytes().size());
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  const auto bytes = PatternBytes(1 << 20, 2);
  ASSERT_TRUE(sharing_->ToDevice(bytes, made->bytes().data()).ok());
  made.reset();
  const auto view = (*mapped)->View(16, 1000);
  ASSERT_TRUE(view.ok()) << view.status();
  mapped->reset();
  const auto loaded = device_->Load(*view);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE(std::ranges::equal(loaded->span(), std::span(bytes).subspan(16, 1000)));
}

TEST_P(DeviceSharingConformance, ViewsAreBuffersThatCodecsWorkIn) {
  const KvSpec spec = SpecOf(DType::kF16, 4, 2, 64, 64, 64);
  const std::vector<uint8_t> raw = GaussianPage(spec, spec.page_tokens);
  const auto memory = Made(2 * raw.size() + 4096);
  ASSERT_TRUE(sharing_->ToDevice(raw, memory->bytes().data()).ok());
  const auto from = memory->View(0, raw.size());
  const auto to = memory->View((raw.size() + 15) / 16 * 16, raw.size());
  ASSERT_TRUE(from.ok() && to.ok());
  for (const char* text : {"int8", "kivi4", "rotated8"}) {
    SCOPED_TRACE(text);
    const auto recipe = ParseRecipe(text);
    const auto codec = MakeCodec(*recipe, spec);
    const auto on_device = device_->kernels().NewCodec(*recipe, spec);
    ASSERT_TRUE(codec.ok() && on_device.ok()) << on_device.status();
    const CodecOnDevice on{*device_, **on_device};
    const PageToEncode page{.raw = raw,
                            .tokens = spec.page_tokens,
                            .first_position = 7,
                            .key = "key",
                            .raw_digest = Xxh3_128(raw)};
    const auto wanted = (*codec)->Encode(page), coded = EncodeOnDevice(on, **codec, page, **from);
    ASSERT_TRUE(wanted.ok() && coded.ok()) << coded.status();
    EXPECT_EQ(coded->header, wanted->header);
    EXPECT_TRUE(std::ranges::equal(coded->header_bytes.span(), wanted->header_bytes.span()));
    ASSERT_EQ(coded->segments.size(), wanted->segments.size());
    const std::vector<std::optional<SharedBytes>> all(coded->segments.begin(),
                                                      coded->segments.end());
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_TRUE(std::ranges::equal(coded->segments[i].span(), wanted->segments[i].span()));
    }
    for (uint32_t levels = 1; levels <= (*codec)->levels(); ++levels) {
      const auto some = std::span(all).first(all.size() / (*codec)->levels() * levels);
      std::vector<uint8_t> decoded(raw.size());
      ASSERT_TRUE(DecodePage(wanted->header, some, {}, decoded).ok());
      const absl::Status status = DecodeOnDevice(on, wanted->header, some, {}, **to);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(Read(memory->bytes().subspan((raw.size() + 15) / 16 * 16, raw.size())), decoded);
    }
  }
}

TEST_P(DeviceSharingConformance, RefusesWhatIsNoMemory) {
  EXPECT_TRUE(absl::IsInvalidArgument(sharing_->Make(0).status()));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_FALSE(sharing_->Map(ends[0], 4096).ok());
  EXPECT_NE(close(ends[0]), 0) << "it took the descriptor over";
  close(ends[1]);
  const auto made = Made(1 << 20);
  const size_t size = made->bytes().size();
  EXPECT_FALSE(sharing_->Map(dup(made->descriptor()), 2 * size).ok());
  EXPECT_FALSE(made->View(size, 1).ok());
  EXPECT_FALSE(made->View(0, size + 1).ok());
  EXPECT_FALSE(made->View(~size_t{0} - 15, 32).ok());
  EXPECT_FALSE(made->View(8, 16).ok());
  EXPECT_FALSE(made->View(0, 0).ok());
  EXPECT_TRUE(made->View(size - 16, 16).ok());
}

TEST_P(DeviceSharingConformance, SaysWhichGpuItIs) {
  EXPECT_EQ(sharing_->uuid().size(), 16u);
  EXPECT_EQ(GetParam().open()->sharing->uuid(), sharing_->uuid());
  const auto passed = sharing_->Passed(nullptr);
  EXPECT_TRUE(passed.ok() && *passed);
}

TEST_P(DeviceSharingConformance, ManyThreadsAtOnce) {
  const auto memory = Made(8 << 20);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      const auto part = memory->bytes().subspan(t << 20, 1 << 20);
      for (uint32_t i = 0; i < 16; ++i) {
        const auto bytes = PatternBytes(100'000 + i * 1000, t * 100 + i);
        EXPECT_TRUE(sharing_->ToDevice(bytes, part.data()).ok());
        EXPECT_TRUE(sharing_->Copy(part.first(bytes.size()), part.data() + (1 << 19)).ok());
        EXPECT_EQ(Read(part.subspan(1 << 19, bytes.size())), bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_CONFORMANCE_DEVICE_SHARING_CONFORMANCE_H_
