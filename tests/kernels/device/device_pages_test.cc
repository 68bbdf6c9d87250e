// Pages coded by a device are those of the CPU's codec, or none.
#include "kernels/device/device_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/device/device_kernels.h"
#include "kernels/page/page_to_encode.h"
#include "tests/kernels/pages.h"

namespace kvstow::testing {
namespace {

class DevicePagesTest : public ::testing::Test {
 protected:
  struct Codecs {
    std::shared_ptr<const Codec> cpu;
    std::unique_ptr<DeviceCodec> device;
    CodecOnDevice on() const { return {HostDevice(), *device}; }
  };
  Codecs For(const char* text) const {
    const auto recipe = ParseRecipe(text);
    auto cpu = MakeCodec(*recipe, spec_);
    auto device = HostDevice().kernels().NewCodec(*recipe, spec_);
    EXPECT_TRUE(cpu.ok() && device.ok()) << text << device.status();
    return {*std::move(cpu), *std::move(device)};
  }
  static PageToEncode PageOf(const std::vector<uint8_t>& raw, uint32_t tokens) {
    return {.raw = raw, .tokens = tokens, .key = "k", .raw_digest = Xxh3_128(raw)};
  }
  static std::shared_ptr<const DeviceBuffer> OnDevice(const std::vector<uint8_t>& raw) {
    return *HostDevice().Store(SharedBytes::CopyOf(raw));
  }
  absl::Status Decode(const Codecs& codecs, const PageHeader& header,
                      std::span<const std::optional<SharedBytes>> segments, PageRange wanted = {}) {
    auto to = *HostDevice().Allocate(PageBytes(spec_, spec_.page_tokens));
    return DecodeOnDevice(codecs.on(), header, segments, wanted, *to);
  }

  const KvSpec spec_ = SpecOf(DType::kF16, 4, 2, 64, 64, 64);
};

TEST_F(DevicePagesTest, AreTheSameAsTheCpus) {
  for (const char* text : {"raw", "int8", "int4-token", "turboquant3", "rotated8", "fp8"}) {
    SCOPED_TRACE(text);
    const Codecs codecs = For(text);
    for (const uint32_t tokens : {64u, 1u}) {
      const auto raw = GaussianPage(spec_, tokens);
      const PageToEncode page = PageOf(raw, tokens);
      const auto cpu = codecs.cpu->Encode(page);
      const auto device = EncodeOnDevice(codecs.on(), *codecs.cpu, page, *OnDevice(raw));
      ASSERT_TRUE(cpu.ok() && device.ok()) << device.status();
      EXPECT_TRUE(std::ranges::equal(cpu->header_bytes.span(), device->header_bytes.span()));
      ASSERT_EQ(cpu->segments.size(), device->segments.size());
      for (size_t i = 0; i < cpu->segments.size(); ++i) {
        EXPECT_TRUE(std::ranges::equal(cpu->segments[i].span(), device->segments[i].span()));
      }
    }
  }
}

TEST_F(DevicePagesTest, PagesThatMustBeKeptExactlyAreTheCpus) {
  const Codecs codecs = For("int8");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto raw = MakePage(spec_, 2, [nan] { return nan; });
  EXPECT_TRUE(absl::IsUnimplemented(
      EncodeOnDevice(codecs.on(), *codecs.cpu, PageOf(raw, 2), *OnDevice(raw)).status()));
  // And what the CPU made of one.
  const auto page = codecs.cpu->Encode(PageOf(raw, 2));
  ASSERT_TRUE(page->header.fell_back);
  const std::vector<std::optional<SharedBytes>> all(page->segments.begin(), page->segments.end());
  EXPECT_TRUE(absl::IsUnimplemented(Decode(codecs, page->header, all)));
}

TEST_F(DevicePagesTest, KeysWithLargeMeansAreTheCpus) {
  const Codecs codecs = For("int8");
  Gaussian next;
  size_t i = 0;
  const auto raw = MakePage(spec_, 64, [&] { return next() + (i++ % 16 == 3 ? 30.0f : 0.0f); });
  EXPECT_TRUE(absl::IsUnimplemented(
      EncodeOnDevice(codecs.on(), *codecs.cpu, PageOf(raw, 64), *OnDevice(raw)).status()));
  // And what the CPU made of them, though its segments have the sizes of this codec's.
  const auto page = codecs.cpu->Encode(PageOf(raw, 64));
  ASSERT_TRUE(page.ok());
  const std::vector<std::optional<SharedBytes>> all(page->segments.begin(), page->segments.end());
  EXPECT_TRUE(absl::IsUnimplemented(Decode(codecs, page->header, all)));
  EXPECT_TRUE(Decode(For("affine(bits=8,group=64,k=channel)"), page->header, all).ok());
}

// Wherever the line between the two is.
TEST_F(DevicePagesTest, NoPageIsOtherThanTheCpus) {
  const Codecs codecs = For("int8");
  int by_token = 0, by_channel = 0;
  for (int step = 0; step <= 60; ++step) {
    SCOPED_TRACE(step);
    Gaussian next;
    size_t i = 0;
    const auto mean = static_cast<float>(step) / 2;
    const auto raw = MakePage(spec_, 64, [&] { return next() + (i++ % 16 == 3 ? mean : 0.0f); });
    const PageToEncode page = PageOf(raw, 64);
    const auto cpu = codecs.cpu->Encode(page);
    ASSERT_TRUE(cpu.ok());
    const auto device = EncodeOnDevice(codecs.on(), *codecs.cpu, page, *OnDevice(raw));
    if (device.ok()) {
      ++by_token;
      EXPECT_EQ(cpu->header, device->header);
    } else {
      ++by_channel;
      EXPECT_TRUE(absl::IsUnimplemented(device.status())) << device.status();
      EXPECT_NE(cpu->header.pipeline, codecs.device->pipeline());
    }
  }
  EXPECT_GT(by_token, 0);
  EXPECT_GT(by_channel, 0);
}

TEST_F(DevicePagesTest, OnlyWholePagesOfTheSameCodecAreDecoded) {
  const Codecs codecs = For("rotated8");
  ASSERT_GT(codecs.cpu->levels(), 1u);
  const auto raw = GaussianPage(spec_, 64);
  const auto page = codecs.cpu->Encode(PageOf(raw, 64));
  ASSERT_TRUE(page.ok());
  std::vector<std::optional<SharedBytes>> all(page->segments.begin(), page->segments.end());
  EXPECT_TRUE(Decode(codecs, page->header, all).ok());
  EXPECT_TRUE(Decode(codecs, page->header, all, {{0, 4}, {0, 64}}).ok());

  const auto is_the_cpus = [](const absl::Status& status) {
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  };
  is_the_cpus(Decode(codecs, page->header, all, {{1, 3}, {}}));
  is_the_cpus(Decode(codecs, page->header, all, {{0, 2}, {}}));
  is_the_cpus(Decode(codecs, page->header, all, {{}, {0, 63}}));
  is_the_cpus(Decode(codecs, page->header, all, {{}, {1, 0}}));
  is_the_cpus(Decode(codecs, page->header, {}));
  is_the_cpus(Decode(For("int8"), page->header, all));
  is_the_cpus(Decode(For("turboquant3"), page->header, all));
  const size_t runs = all.size() / codecs.cpu->levels();
  if (runs > 1) is_the_cpus(Decode(codecs, page->header, std::span(all).first(runs + 1)));
  auto exact = page->header;
  exact.exact = true;
  is_the_cpus(Decode(codecs, exact, all));
  all.back() = std::nullopt;
  is_the_cpus(Decode(codecs, page->header, all));
  all.back() = page->segments.back().Slice(0, 1);
  is_the_cpus(Decode(codecs, page->header, all));
}

}  // namespace
}  // namespace kvstow::testing
