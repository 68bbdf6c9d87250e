// The codecs of every Device pass these tests. Above all, they make the bytes and gains of the
// CPU's codec.
//
//   INSTANTIATE_TEST_SUITE_P(Host, DeviceCodecConformance, testing::Values(DeviceFactory{...}));
//
// The parameter opens the device (device_factory.h).
#ifndef KVSTOW_TESTS_CONFORMANCE_DEVICE_CODEC_CONFORMANCE_H_
#define KVSTOW_TESTS_CONFORMANCE_DEVICE_CODEC_CONFORMANCE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/device/device_kernels.h"
#include "tests/conformance/device_factory.h"
#include "tests/kernels/pages.h"

namespace kvstow::testing {

class DeviceCodecConformance : public OnEveryDevice {
 protected:
  struct Shape {
    uint32_t layers, heads, dim_k, dim_v, tokens;
  };
  // Whole tiles and parts of them, vectors that tiles cut, blocks of a Hadamard transform of all
  // sizes, one token, MLA, V of another size than K.
  static constexpr Shape kShapes[] = {
      {3, 3, 64, 64, 40}, {2, 2, 128, 64, 37}, {2, 5, 80, 96, 33},   {1, 3, 112, 104, 41},
      {2, 1, 64, 64, 1},  {2, 1, 576, 0, 9},   {1, 2, 192, 128, 23}, {1, 2, 256, 256, 19},
      {1, 1, 16, 24, 3},  {1, 1, 1016, 0, 5},  {1, 1, 1024, 72, 7},
  };
  static constexpr const char* kRecipes[] = {
      "raw",
      "affine(bits=8,group=64,k=token)",
      "int4",
      "int4-token",
      "run(2)|affine(bits=3,group=24)",
      "affine(bits=4,group=32,k=channel,v=channel)",
      "kivi4",
      "quarot",
      "turboquant2",
      "turboquant3",
      "turboquant4",
      "codebook(bits=1)",
      "rotated8",
      "run(1)|hadamard|levels(1,2)",
      "levels(5,1,1)",
      "fp8",
      "hadamard|minifloat",
  };

  static KvSpec SpecFor(const Shape& s, DType dtype) {
    return SpecOf(dtype, s.layers, s.heads, s.dim_k, s.dim_v, s.tokens);
  }
  static KvSpec UsualSpec() { return SpecFor(kShapes[0], DType::kF16); }

  std::unique_ptr<DeviceCodec> Make(const std::string& recipe, const KvSpec& spec) {
    auto codec = device_->kernels().NewCodec(*ParseRecipe(recipe), spec);
    EXPECT_TRUE(codec.ok()) << codec.status();
    return codec.ok() ? *std::move(codec) : nullptr;
  }

  static std::vector<uint8_t> Joined(const EncodedPage& page) {
    std::vector<uint8_t> all;
    for (const SharedBytes& s : page.segments) {
      all.insert(all.end(), s.span().begin(), s.span().end());
    }
    return all;
  }

  // One page through the device and the CPU: the same bytes and gains, and back for each level.
  void ExpectAsTheCpu(const std::string& recipe, const KvSpec& spec,
                      const std::vector<uint8_t>& raw, uint32_t tokens) {
    SCOPED_TRACE(absl::StrCat(recipe, ", ", DTypeName(spec.dtype), " ", spec.layers, " x ",
                              spec.kv_heads, " x ", spec.head_dim_k, "/", spec.head_dim_v, " x ",
                              tokens));
    const auto cpu = *MakeCodec(*ParseRecipe(recipe), spec);
    const EncodedPage expected = *cpu->Encode({.raw = raw, .tokens = tokens});
    const auto codec = Make(recipe, spec);
    ASSERT_NE(codec, nullptr);
    const auto on_device = Put(raw);
    const auto coded = Room(codec->CodedBytes(tokens));
    const EncodeJob encode{tokens, on_device.get(), coded.get()};
    const auto codings = codec->Encode({&encode, 1}, true);
    ASSERT_TRUE(codings.ok()) << codings.status();
    ASSERT_EQ(codings->size(), 1u);
    ASSERT_EQ((*codings)[0].coded, !expected.header.fell_back);
    if (expected.header.fell_back) return;
    ExpectSegments(*codec, tokens, expected, (*codings)[0].gains);
    EXPECT_TRUE(Get(coded) == Joined(expected)) << "coded bytes differ";
    for (uint32_t levels = 1; levels <= codec->levels(); ++levels) {
      ExpectDecodesAsTheCpu(*codec, expected, coded, levels);
    }
  }

  static void ExpectSegments(const DeviceCodec& codec, uint32_t tokens, const EncodedPage& expected,
                             const std::vector<float>& gains) {
    std::vector<SegmentInfo> segments = codec.Segments(tokens);
    ASSERT_EQ(segments.size(), gains.size());
    ASSERT_EQ(segments.size(), expected.segments.size());
    for (size_t i = 0; i < segments.size(); ++i) {
      segments[i].gain = gains[i];
      segments[i].digest = expected.header.segments[i].digest;
      EXPECT_EQ(segments[i], expected.header.segments[i]) << "segment " << i;
      EXPECT_EQ(gains[i], expected.header.segments[i].gain);
    }
  }

  void ExpectDecodesAsTheCpu(DeviceCodec& codec, const EncodedPage& page,
                             const std::shared_ptr<const DeviceBuffer>& coded, uint32_t levels) {
    const uint32_t tokens = page.header.tokens;
    std::vector<uint8_t> expected(PageBytes(page.header.Geometry(), tokens));
    const size_t segments = SegmentsForLevels(page.header, levels);
    ASSERT_TRUE(DecodePage(page.header, std::span(page.segments).first(segments), expected).ok());
    const auto raw = Room(expected.size());
    const DecodeJob decode{tokens, levels, coded.get(), raw.get()};
    const absl::Status status = codec.Decode({&decode, 1});
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(Get(raw) == expected) << "decoded bytes differ at " << levels << " levels";
  }
};

TEST_P(DeviceCodecConformance, EveryRecipeAndShapeGivesTheBytesOfTheCpu) {
  uint64_t seed = 0;
  for (const char* recipe : kRecipes) {
    for (const Shape& shape : kShapes) {
      for (const DType dtype : {DType::kF16, DType::kBF16}) {
        const KvSpec spec = SpecFor(shape, dtype);
        ExpectAsTheCpu(recipe, spec, GaussianPage(spec, shape.tokens, ++seed), shape.tokens);
      }
    }
  }
}

TEST_P(DeviceCodecConformance, ZerosConstantsDenormalsAndTheLargestValuesAsTheCpu) {
  Gaussian gaussian;
  int turn = 0;
  const std::function<float()> pages[] = {
      [] { return 0.0f; },
      [] { return -0.0f; },
      [&] { return ++turn % 3 == 0 ? 0.0f : -0.0f; },
      [] { return 1.5f; },
      [] { return -37.25f; },
      [&] { return gaussian() * 0x1p-20f; },
      [&] { return gaussian() * 0x1p-26f; },
      [&] { return gaussian() * 0x1p-130f; },
      [&] { return ++turn % 2 == 0 ? 65504.0f : -65504.0f; },
      [&] { return ++turn % 64 == 0 ? 60000.0f : 0.01f; },
      [&] { return std::ldexp(gaussian(), ++turn % 40 - 26); },
      [&] { return std::round(gaussian() * 4) / 4; },  // ties
      [&] { return gaussian() * 1e30f; },              // beyond fp16 where the dtype holds it
  };
  const KvSpec f16 = SpecOf(DType::kF16, 2, 2, 80, 64, 40);
  KvSpec bf16 = f16;
  bf16.dtype = DType::kBF16;
  for (const char* recipe : kRecipes) {
    for (size_t i = 0; i < std::size(pages); ++i) {
      SCOPED_TRACE(absl::StrCat("page ", i));
      ExpectAsTheCpu(recipe, f16, MakePage(f16, 40, pages[i]), 40);
      ExpectAsTheCpu(recipe, bf16, MakePage(bf16, 40, pages[i]), 40);
    }
  }
}

// Sums of such values overflow, and differences of these are NaN: all that is coded may be.
TEST_P(DeviceCodecConformance, ValuesThatOverflowOnTheirWayAreLeftToTheCpu) {
  for (const uint32_t tokens : {1u, 40u}) {
    const KvSpec spec = SpecOf(DType::kBF16, 2, 1, 128, 64, tokens);
    Gaussian gaussian;
    const auto raw = MakePage(spec, tokens, [&] { return std::copysign(3e38f, gaussian()); });
    for (const char* recipe : kRecipes) ExpectAsTheCpu(recipe, spec, raw, tokens);
  }
}

TEST_P(DeviceCodecConformance, NanAndInfAnywhereAreLeftToTheCpu) {
  const KvSpec spec = UsualSpec();
  for (const char* recipe : {"int8", "kivi4", "turboquant4", "rotated8", "fp8"}) {
    for (const uint16_t odd : {0x7c00, 0xfc00, 0x7e01}) {
      auto raw = GaussianPage(spec, 40);
      for (const size_t at : {size_t{0}, raw.size() / 2, raw.size() - 2}) {
        auto damaged = raw;
        std::memcpy(&damaged[at], &odd, 2);
        ExpectAsTheCpu(recipe, spec, damaged, 40);
      }
    }
  }
}

TEST_P(DeviceCodecConformance, PagesOfACallDoNotMixWhateverTheirLengths) {
  const KvSpec spec = UsualSpec();
  for (const char* recipe : {"raw", "int8", "rotated8", "kivi4"}) {
    SCOPED_TRACE(recipe);
    const auto cpu = *MakeCodec(*ParseRecipe(recipe), spec);
    const auto codec = Make(recipe, spec);
    std::vector<EncodedPage> expected;
    std::vector<std::shared_ptr<const DeviceBuffer>> raws;
    std::vector<std::shared_ptr<DeviceBuffer>> coded, back;
    std::vector<EncodeJob> encode;
    std::vector<DecodeJob> decode;
    for (uint32_t i = 0; i < 150; ++i) {  // more than a launch takes
      const uint32_t tokens = i % 8 == 7 ? 1 + i % 40 : 40;
      auto raw = GaussianPage(spec, tokens, i + 1);
      if (i == 20) raw[1] = 0x7c;  // Inf or NaN: one page that is refused among others
      expected.push_back(*cpu->Encode({.raw = raw, .tokens = tokens}));
      raws.push_back(Put(raw));
      coded.push_back(Room(codec->CodedBytes(tokens)));
      back.push_back(Room(raw.size()));
      encode.push_back({tokens, raws[i].get(), coded[i].get()});
      if (!expected[i].header.fell_back) {
        decode.push_back({tokens, codec->levels(), coded[i].get(), back[i].get()});
      }
    }
    const auto codings = codec->Encode(encode, false);
    ASSERT_TRUE(codings.ok()) << codings.status();
    const absl::Status decoded = codec->Decode(decode);
    ASSERT_TRUE(decoded.ok()) << decoded;
    for (uint32_t i = 0; i < 150; ++i) {
      SCOPED_TRACE(i);
      EXPECT_TRUE((*codings)[i].gains.empty());
      ASSERT_EQ((*codings)[i].coded, !expected[i].header.fell_back);
      if (!(*codings)[i].coded) continue;
      EXPECT_TRUE(Get(coded[i]) == Joined(expected[i])) << "coded bytes differ";
      std::vector<uint8_t> out(raws[i]->size());
      ASSERT_TRUE(DecodePage(expected[i].header, expected[i].segments, out).ok());
      EXPECT_TRUE(Get(back[i]) == out) << "decoded bytes differ";
    }
  }
}

TEST_P(DeviceCodecConformance, DamagedScalesAndCodesAreDataLoss) {
  const KvSpec spec = UsualSpec();
  for (const char* recipe : {"int8", "kivi4", "quarot", "turboquant4", "rotated8", "fp8"}) {
    SCOPED_TRACE(recipe);
    const auto codec = Make(recipe, spec);
    const auto raw = Room(PageBytes(spec, 40));
    // All bits set: scales are NaN.
    const auto coded = Put(std::vector<uint8_t>(codec->CodedBytes(40), 0xff));
    const DecodeJob damaged{40, codec->levels(), coded.get(), raw.get()};
    EXPECT_TRUE(absl::IsDataLoss(codec->Decode({&damaged, 1})));
    const auto zeros = Put(std::vector<uint8_t>(codec->CodedBytes(40), 0));
    const DecodeJob sound{40, codec->levels(), zeros.get(), raw.get()};
    EXPECT_TRUE(codec->Decode({&sound, 1}).ok());
  }
}

TEST_P(DeviceCodecConformance, JobsThatDoNotFitAreRefusedByName) {
  const KvSpec spec = UsualSpec();
  const auto codec = Make("rotated8", spec);
  const auto raw = Room(PageBytes(spec, 40));
  const auto coded = Room(codec->CodedBytes(40));
  const auto small = Room(16);
  class Foreign final : public DeviceBuffer {
   public:
    size_t size() const override { return size_t{1} << 30; }
  };
  Foreign foreign;
  const EncodeJob good{40, raw.get(), coded.get()};
  for (const EncodeJob& wrong :
       {EncodeJob{0, raw.get(), coded.get()}, EncodeJob{41, raw.get(), coded.get()},
        EncodeJob{40, small.get(), coded.get()}, EncodeJob{40, raw.get(), small.get()},
        EncodeJob{40, nullptr, coded.get()}, EncodeJob{40, raw.get(), nullptr},
        EncodeJob{40, &foreign, coded.get()}, EncodeJob{40, raw.get(), &foreign}}) {
    const EncodeJob jobs[] = {good, wrong};
    const absl::Status status = codec->Encode(jobs, false).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("page 1 of the call"));
  }
  for (const DecodeJob& wrong :
       {DecodeJob{40, 0, coded.get(), raw.get()}, DecodeJob{40, 4, coded.get(), raw.get()},
        DecodeJob{40, 3, small.get(), raw.get()}, DecodeJob{40, 3, coded.get(), small.get()}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(codec->Decode({&wrong, 1})));
  }
  EXPECT_TRUE(codec->Encode({}, true)->empty());
  EXPECT_TRUE(codec->Decode({}).ok());
}

TEST_P(DeviceCodecConformance, WhatIsNotThereIsUnimplementedAndWhatIsWrongIsInvalid) {
  const auto code = [&](const char* recipe, const KvSpec& spec) {
    return device_->kernels().NewCodec(*ParseRecipe(recipe), spec).status().code();
  };
  for (const char* recipe :
       {"kvstow", "kvstow-cal", "q4_0", "sageattention", "int8-tensor", "symmetric(bits=8)",
        "turboquant4(norm=corrected)", "hadamard|affine(k=channel)", "affine(bits=8,group=20)"}) {
    EXPECT_EQ(code(recipe, UsualSpec()), absl::StatusCode::kUnimplemented) << recipe;
  }
  EXPECT_EQ(code("int8", SpecOf(DType::kF32, 1, 1, 64, 64, 8)), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code("int8", SpecOf(DType::kF16, 1, 1, 63, 64, 8)), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code("int8", SpecOf(DType::kF8E4M3, 1, 1, 64, 64, 8)),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("raw", SpecOf(DType::kF8E4M3, 1, 1, 63, 1, 8)), absl::StatusCode::kOk);
  EXPECT_EQ(code("affine(bits=9)", UsualSpec()), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("int8", SpecOf(DType::kF16, 0, 1, 64, 64, 8)), absl::StatusCode::kInvalidArgument);
}

TEST_P(DeviceCodecConformance, ManyThreadsAtOnce) {
  const KvSpec spec = UsualSpec();
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 6; ++t) {
    threads.emplace_back([this, &spec, t] {
      for (uint32_t i = 0; i < 4; ++i) {
        ExpectAsTheCpu(t % 2 == 0 ? "turboquant4" : "int8", spec,
                       GaussianPage(spec, 40, t * 100 + i), 40);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_CONFORMANCE_DEVICE_CODEC_CONFORMANCE_H_
