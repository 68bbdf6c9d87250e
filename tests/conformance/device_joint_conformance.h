// The codec of calibrated pages of every device passes these tests. Its pages are the CPU codec's
// but for rounding, and each of the two decodes the other's pages.
#ifndef KVSTOW_TESTS_CONFORMANCE_DEVICE_JOINT_CONFORMANCE_H_
#define KVSTOW_TESTS_CONFORMANCE_DEVICE_JOINT_CONFORMANCE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/conformance/joint_on_every_device.h"

namespace kvstow::testing {

class DeviceJointConformance : public JointOnEveryDevice {
 protected:
  // Run lengths that do and do not divide the layers, V of its own width or none, both layouts of
  // RoPE, also in one page, in part and scaled, every dtype.
  static void SetUpTestSuite() {
    models_ = new std::vector<std::unique_ptr<RunsOfModel>>;
    KvSpec usual = CorrelatedSpec();
    Add("usual", usual);
    Add("bf16", Bf16Spec());
    Add("f32", F32Spec());
    KvSpec two = CorrelatedSpec();
    two.other_rope = {{.layout = RopeSpec::Layout::kInterleaved, .rotary_dims = 8, .theta = 50},
                      {1}};
    Add("two kinds of RoPE", two);
    KvSpec plain = CorrelatedSpec(3, 12, 0);
    plain.rope = {};
    Add("no RoPE, no V", plain);
  }
  static void TearDownTestSuite() { delete models_; }
  static void Add(const char* name, const KvSpec& spec) {
    models_->push_back(FitRuns(name, spec, [](const KvSpec& of, uint32_t run, bool felt) {
      const bool guesses = felt || of.head_dim_v == 0;  // latents foretell nothing
      return FitCorrelated(of, run, guesses ? ModelStats{} : AlikeStats(of), felt);
    }));
  }

  static std::vector<PageIn> Pages(const KvSpec& spec) {
    const std::pair<uint32_t, uint64_t> shapes[] = {{128, 0}, {128, 128}, {128, 7777}, {40, 0},
                                                    {65, 2},  {1, 0},     {1, 9},      {3, 1}};
    return PagesOf(spec, shapes, 0);
  }
  static inline std::vector<std::unique_ptr<RunsOfModel>>* models_ = nullptr;
};

TEST_P(DeviceJointConformance, PagesAreTheCpusButForRounding) {
  for (const auto& model : *models_) {
    for (const char* recipe : {"kvstow-cal(run=1,step=0.25)", "kvstow-cal(run=2,step=0.5,levels=3)",
                               "kvstow-cal(run=2,step=1,stream=32,first=4,focus=0)"}) {
      SCOPED_TRACE(absl::StrCat(model->name, ", ", recipe));
      const auto codec = Make(model->spec, model->store, recipe);
      ASSERT_NE(codec, nullptr);
      const std::vector<PageIn> pages = Pages(model->spec);
      const std::vector<JointPage> coded = Encode(*codec, pages);
      for (size_t i = 0; i < pages.size(); ++i) {
        SCOPED_TRACE(absl::StrCat("page ", i));
        const PageIn& page = pages[i];
        ASSERT_TRUE(coded[i].coded);
        const EncodedPage cpu = OfTheCpu(model->spec, model->store, codec->recipe(), page);
        ASSERT_EQ(coded[i].segments.size(), cpu.header.segments.size());
        size_t bytes = 0, cpu_bytes = 0;
        double gain = 0, cpu_gain = 0;
        for (size_t s = 0; s < cpu.segments.size(); ++s) {
          EXPECT_EQ(coded[i].segments[s].digest, Xxh3(coded[i].bodies[s].span()));
          bytes += coded[i].segments[s].bytes, cpu_bytes += cpu.header.segments[s].bytes;
          gain += coded[i].segments[s].gain, cpu_gain += cpu.header.segments[s].gain;
        }
        EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(cpu_bytes),
                    0.02 * static_cast<double>(cpu_bytes) + 16.0 * cpu.segments.size());
        EXPECT_NEAR(gain, cpu_gain, 1e-3 * cpu_gain);
        // All four ways: who encoded, who decodes.
        const DType dtype = model->spec.dtype;
        PageHeader header = cpu.header;
        const auto theirs = DecodeOnTheCpu(model->store, header, cpu.segments, page);
        header.segments = coded[i].segments;
        const auto ours = DecodeOnTheCpu(model->store, header, coded[i].bodies, page);
        const double lost = RelativeError(dtype, page.raw, theirs);
        EXPECT_LT(RelativeError(dtype, page.raw, ours), 1.02 * lost + kJointDeviceError);
        EXPECT_LT(RelativeError(dtype, ours, Decode(*codec, page, coded[i].bodies)),
                  kJointDeviceError);
        EXPECT_LT(RelativeError(dtype, theirs, Decode(*codec, page, cpu.segments)),
                  kJointDeviceError);
      }
    }
  }
}

TEST_P(DeviceJointConformance, LeadingLevelsDecodeAlone) {
  const RunsOfModel& model = *models_->front();
  const auto codec = Make(model.spec, model.store, "kvstow-cal(run=2,step=0.5,levels=3)");
  const PageIn page = Pages(model.spec)[0];
  const EncodedPage cpu = OfTheCpu(model.spec, model.store, codec->recipe(), page);
  for (uint32_t levels = 1; levels <= 3; ++levels) {
    const auto bodies = std::span(cpu.segments).first(SegmentsForLevels(cpu.header, levels));
    std::vector<uint8_t> expected(page.raw.size());
    ASSERT_TRUE(DecodePage(cpu.header, bodies, expected, model.store).ok());
    EXPECT_LT(RelativeError(DType::kF16, expected, Decode(*codec, page, bodies)),
              kJointDeviceError);
  }
}

// A GPU may sum in another order when there are other pages: no bytes are promised.
TEST_P(DeviceJointConformance, APageIsAsGoodAloneAsAmongOthers) {
  const RunsOfModel& model = *models_->front();
  const auto codec = Make(model.spec, model.store, "kvstow-cal(run=2,step=0.5)");
  const std::vector<PageIn> pages = Pages(model.spec);
  const std::vector<JointPage> together = Encode(*codec, pages);
  for (size_t i = 0; i < pages.size(); ++i) {
    const JointPage alone = Encode(*codec, {pages[i]})[0];
    const auto a = Decode(*codec, pages[i], alone.bodies);
    const auto b = Decode(*codec, pages[i], together[i].bodies);
    EXPECT_NEAR(RelativeError(DType::kF16, pages[i].raw, a),
                RelativeError(DType::kF16, pages[i].raw, b), kJointDeviceError)
        << i;
  }
}

TEST_P(DeviceJointConformance, PagesForTheCpuAreNamedAndTheOthersCoded) {
  const RunsOfModel& model = *models_->front();
  const auto codec = Make(model.spec, model.store, "kvstow-cal(run=2,step=0.5)");
  const KvSpec& spec = model.spec;
  std::vector<PageIn> pages = {Pages(spec)[1], Pages(spec)[1], Pages(spec)[0], Pages(spec)[1]};
  const size_t last = pages[0].raw.size() - 1;
  pages[0].raw[last] = 0x7e;                    // NaN
  pages[2].raw[1] = 0x7c, pages[2].raw[0] = 0;  // Inf, of a first token
  for (size_t i = 1; i < pages[3].raw.size(); i += 2) pages[3].raw[i] = 0x7b;  // far outside
  const std::vector<JointPage> coded = Encode(*codec, pages);
  EXPECT_FALSE(coded[0].coded);
  EXPECT_TRUE(coded[1].coded);
  EXPECT_FALSE(coded[2].coded);
  EXPECT_FALSE(coded[3].coded);
  EXPECT_TRUE(coded[0].bodies.empty());
  EXPECT_LT(RelativeError(DType::kF16, pages[1].raw, Decode(*codec, pages[1], coded[1].bodies)),
            2e-3);
}

TEST_P(DeviceJointConformance, ThreadsShareACodec) {
  const RunsOfModel& model = *models_->front();
  const auto codec = Make(model.spec, model.store, "kvstow-cal(run=2,step=0.5)");
  const std::vector<PageIn> pages = Pages(model.spec);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const JointPage coded = Encode(*codec, {pages[i]})[0];
      ASSERT_TRUE(coded.coded);
      EXPECT_LT(RelativeError(DType::kF16, pages[i].raw, Decode(*codec, pages[i], coded.bodies)),
                2e-3);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(DeviceJointConformance, DamageAndWrongJobsAreNamed) {
  const RunsOfModel& model = *models_->front();
  const auto codec = Make(model.spec, model.store, "kvstow-cal(run=2,step=0.5)");
  const PageIn page = Pages(model.spec)[1];
  const JointPage good = Encode(*codec, {page})[0];
  const auto room = Room(page.raw.size());
  const auto decode = [&](std::vector<SharedBytes> bodies, uint32_t tokens = 128) {
    const JointDecodeJob job{tokens, page.first_position, bodies, room.get()};
    return codec->Decode({&job, 1});
  };
  EXPECT_TRUE(decode(good.bodies).ok());
  for (const size_t bytes : {size_t{0}, size_t{3}, good.bodies[0].size() - 1}) {
    std::vector<SharedBytes> bodies = good.bodies;
    bodies[0] = bodies[0].Slice(0, bytes);
    EXPECT_TRUE(absl::IsDataLoss(decode(bodies))) << bytes;
  }
  std::vector<SharedBytes> fewer = good.bodies;
  fewer.pop_back();
  EXPECT_TRUE(absl::IsDataLoss(decode(fewer)));
  EXPECT_TRUE(absl::IsDataLoss(decode({})));
  EXPECT_TRUE(absl::IsInvalidArgument(decode(good.bodies, 129)));
  EXPECT_TRUE(absl::IsInvalidArgument(decode(good.bodies, 0)));
  const auto small = Room(page.raw.size() - 1);
  const JointEncodeJob job{128, 0, small.get()};
  EXPECT_TRUE(absl::IsInvalidArgument(codec->Encode({&job, 1}).status()));
  const JointEncodeJob none{128, 0, nullptr};
  EXPECT_TRUE(absl::IsInvalidArgument(codec->Encode({&none, 1}).status()));
  EXPECT_TRUE(codec->Encode({})->empty());
  EXPECT_TRUE(codec->Decode({}).ok());
}

TEST_P(DeviceJointConformance, OtherRecipesAreRefusedByName) {
  const RunsOfModel& model = *models_->front();
  const auto code = [&](const char* recipe) {
    return MakeDeviceJointCodec(*device_, *ParseRecipe(recipe), model.spec, model.store)
        .status()
        .code();
  };
  for (const char* recipe : {"int8", "kvstow", "kvstow-cal(run=2,ratio=8)",
                             "column(name=attn_sum)|class|kvstow-cal(run=2)", "kvtc-16"}) {
    EXPECT_EQ(code(recipe), absl::StatusCode::kUnimplemented) << recipe;
  }
  EXPECT_EQ(code("kvstow-cal(run=7)"), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code("kvstow-cal(run=2,levels=9)"), absl::StatusCode::kInvalidArgument);
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_CONFORMANCE_DEVICE_JOINT_CONFORMANCE_H_
