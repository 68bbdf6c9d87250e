// The encoder of calibrated pages of every device foretells the attention of their tokens as the
// CPU's does, but for rounding.
#ifndef KVSTOW_TESTS_CONFORMANCE_DEVICE_ASKING_CONFORMANCE_H_
#define KVSTOW_TESTS_CONFORMANCE_DEVICE_ASKING_CONFORMANCE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/device/device_kernels.h"
#include "kernels/device/joint_on_device.h"
#include "kernels/importance/foretold_attention.h"
#include "kernels/importance/token_steps.h"
#include "tests/conformance/joint_on_every_device.h"
#include "tests/kernels/random_query_means.h"

namespace kvstow::testing {

class DeviceAskingConformance : public JointOnEveryDevice {
 protected:
  struct Model {
    const char* name = "";
    KvSpec spec;
    std::vector<uint32_t> asking;  // layers
    uint32_t query_heads = 0;
    uint32_t run = 0;       // layers
    CalibrationStore has;   // a calibration with queries
    CalibrationStore none;  // the same without
    std::shared_ptr<const Calibration> with;
  };
  // Queries of all layers and of some, query heads alone and in groups, K with RoPE and without,
  // both layouts, in part and scaled, every dtype, more channels than a slice has, and no V.
  static void SetUpTestSuite() {
    models_ = new std::vector<std::unique_ptr<Model>>;
    Add("usual", CorrelatedSpec(), {0, 1, 2}, 4, 1);
    Add("between", CorrelatedSpec(7), {1, 5}, 6, 3);
    Add("bf16", Bf16Spec(), {1}, 2, 2);
    KvSpec f32 = F32Spec();
    f32.kv_heads = 3;
    Add("f32", f32, {0}, 9, 1);
    KvSpec before = CorrelatedSpec(3, 80, 8);
    before.rope.k_after_rope = false;
    Add("K before RoPE", before, {0, 2}, 2, 2);
    KvSpec interleaved = before;
    interleaved.head_dim_k = 16;
    interleaved.rope.layout = RopeSpec::Layout::kInterleaved;
    Add("K before RoPE, interleaved", interleaved, {2}, 4, 3);
    KvSpec two = CorrelatedSpec();
    two.other_rope = {{.layout = RopeSpec::Layout::kInterleaved, .rotary_dims = 8, .theta = 50},
                      {1}};
    Add("two kinds of RoPE", two, {0, 1, 2}, 4, 1);
    KvSpec plain = CorrelatedSpec(3, 12, 0);
    plain.rope = {};
    Add("no RoPE, no V", plain, {0, 1}, 4, 1);
  }
  static void TearDownTestSuite() { delete models_; }
  static void Add(const char* name, const KvSpec& spec, const std::vector<uint32_t>& asking,
                  uint32_t query_heads, uint32_t run) {
    auto model = std::make_unique<Model>();
    model->name = name, model->spec = spec, model->asking = asking;
    model->query_heads = query_heads, model->run = run;
    const auto blob = FitCorrelated(spec, run, {}, /*with_sensitivity=*/true);
    ASSERT_TRUE(blob.ok()) << blob.status();
    ASSERT_TRUE(model->none.Add(AsBytes(*blob)).ok());
    const QueryMeans queries = RandomMeans(spec, asking, query_heads);
    auto with = model->has.Add(AsBytes(WithMeans(spec, *blob, queries)));
    ASSERT_TRUE(with.ok()) << with.status();
    model->with = *with;
    models_->push_back(std::move(model));
  }
  // The CPU chooses how it keeps first tokens (codec/key_groups.h) unless the recipe says it.
  static std::string RecipeOf(const Model& model, absl::string_view more = "") {
    return absl::StrCat("joint(run=", model.run, ",step=1,firstbits=5,adapt=1", more, ")");
  }

  // Whole and odd lengths, one token, first tokens of a text that ask and that do not.
  static std::vector<PageIn> Pages(const KvSpec& spec) {
    const std::pair<uint32_t, uint64_t> shapes[] = {{128, 0}, {128, 128}, {128, 7777}, {97, 0},
                                                    {65, 2},  {1, 0},     {1, 9},      {31, 5},
                                                    {8, 40},  {3, 1}};
    return PagesOf(spec, shapes, 50);
  }
  static JointCoder CoderOf(const KvSpec& spec, std::shared_ptr<const Calibration> calibration,
                            const std::string& recipe) {
    const Recipe parsed = *ParseRecipe(recipe);
    return *JointCoder::Make(OpArguments(parsed.ops()[0]), spec, std::move(calibration), false);
  }
  // The step classes of the tokens of a page, run after run.
  static std::vector<int> ClassesOf(const JointCoder& coder, const PageIn& page,
                                    std::span<const SharedBytes> bodies) {
    std::vector<int> out;
    const auto& runs = coder.calibration().runs();
    for (size_t r = 0; r < runs.size(); ++r) {
      const kvstow::Run run{
          {runs[r].first_layer, runs[r].layer_count}, page.tokens, page.first_position};
      const auto parts = coder.Read(runs[r], run, bodies.subspan(r, 1));
      EXPECT_TRUE(parts.ok()) << parts.status();
      out.insert(out.end(), parts->classes.begin(), parts->classes.end());
    }
    return out;
  }
  static double RawError(const Model& model, PageHeader header, const PageIn& page,
                         const std::vector<SegmentInfo>& segments,
                         std::span<const SharedBytes> bodies) {
    header.segments = segments;
    return RelativeError(model.spec.dtype, page.raw,
                         DecodeOnTheCpu(model.has, header, bodies, page));
  }
  static double Same(const std::vector<int>& a, const std::vector<int>& b) {
    EXPECT_EQ(a.size(), b.size());
    size_t same = 0;
    for (size_t i = 0; i < a.size(); ++i) same += a[i] == b[i];
    return static_cast<double>(same) / static_cast<double>(a.size());
  }
  static std::string Join(const JointPage& page) {
    std::string out;
    for (const SharedBytes& body : page.bodies) absl::StrAppend(&out, AsString(body.span()));
    return out;
  }

  std::unique_ptr<JointOnDevice> Open(const KvSpec& spec,
                                      std::shared_ptr<const Calibration> calibration,
                                      const std::string& recipe) {
    auto engine = device_->kernels().NewJointEngine();
    EXPECT_TRUE(engine.ok()) << engine.status();
    auto on = std::make_unique<JointOnDevice>(*device_, *std::move(engine),
                                              CoderOf(spec, std::move(calibration), recipe));
    EXPECT_TRUE(on->Open().ok());
    return on;
  }
  // The steps that the device makes of a page's attention, [runs, tokens].
  std::vector<float> LogStepsOf(const JointOnDevice& on, const PageIn& page) {
    const auto raw = Put(page.raw);
    const JointEncodeJob job{page.tokens, page.first_position, raw.get()};
    const size_t index = 0;
    std::vector<gpu::AskLaunch> asks = {on.query_means().LaunchOf({&job, 1}, {&index, 1})};
    const auto scratch = on.query_means().ShareScratch(asks);
    EXPECT_TRUE(scratch.ok()) << scratch.status();
    const auto steps = Room(on.run_count() * page.tokens * sizeof(float)), answer = Room(16);
    asks[0].log_steps = on.At<float>(steps), asks[0].run_stride = page.tokens;
    gpu::PlaneEncodeLaunch planes;
    planes.answer = on.At<uint8_t>(answer), planes.answer_bytes = 16;
    const absl::Status status = on.engine().Encode({}, asks, {}, planes);
    EXPECT_TRUE(status.ok()) << status;
    const std::vector<uint8_t> bytes = Get(steps);
    std::vector<float> out(bytes.size() / sizeof(float));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

  static inline std::vector<std::unique_ptr<Model>>* models_ = nullptr;
};

TEST_P(DeviceAskingConformance, StepsAreThoseOfTheCpu) {
  for (const auto& model : *models_) {
    const auto on = Open(model->spec, model->with, RecipeOf(*model));
    ASSERT_TRUE(on->query_means().on());
    for (const PageIn& page : Pages(model->spec)) {
      SCOPED_TRACE(absl::StrCat(model->name, ", ", page.tokens, " tokens from ",
                                page.first_position, " on"));
      const ScoreMap scores =
          *ForetoldAttention(*QueryMeansOf(*model->with), {.spec = model->spec,
                                                           .raw = page.raw,
                                                           .tokens = page.tokens,
                                                           .first_position = page.first_position});
      const std::vector<float> steps = LogStepsOf(*on, page);
      for (size_t r = 0; r < on->run_count(); ++r) {
        const CalibratedRun& run = on->run(r);
        const auto expected =
            LogSteps(scores, {run.first_layer, run.layer_count}, kForetoldPower, Protection{}, {});
        float most = 0;
        for (uint32_t t = 0; t < page.tokens; ++t) {
          EXPECT_NEAR(steps[r * page.tokens + t], expected[t], 0.05) << "run " << r << ", " << t;
          most = std::max(most, std::abs(expected[t]));
        }
        EXPECT_GT(most, page.tokens > 8 ? 0.3 : -1) << "there is something to foretell";
      }
    }
  }
}

TEST_P(DeviceAskingConformance, PagesAreTheCpusButForRounding) {
  for (const auto& model : *models_) {
    const std::string recipe = RecipeOf(*model);
    const auto codec = Make(model->spec, model->has, recipe);
    ASSERT_NE(codec, nullptr);
    const JointCoder coder = CoderOf(model->spec, model->with, recipe);
    const std::vector<PageIn> pages = Pages(model->spec);
    const std::vector<JointPage> coded = Encode(*codec, pages);
    std::vector<int> ours, theirs, without;
    for (size_t i = 0; i < pages.size(); ++i) {
      SCOPED_TRACE(absl::StrCat(model->name, ", page ", i));
      ASSERT_TRUE(coded[i].coded);
      const EncodedPage cpu = OfTheCpu(model->spec, model->has, *ParseRecipe(recipe), pages[i]);
      const EncodedPage plain = OfTheCpu(model->spec, model->none, *ParseRecipe(recipe), pages[i]);
      const auto add = [&](std::vector<int>& to, std::span<const SharedBytes> bodies) {
        const auto classes = ClassesOf(coder, pages[i], bodies);
        to.insert(to.end(), classes.begin(), classes.end());
      };
      add(ours, coded[i].bodies), add(theirs, cpu.segments), add(without, plain.segments);
      size_t bytes = 0, cpu_bytes = 0;
      for (size_t s = 0; s < cpu.segments.size(); ++s)
        bytes += coded[i].bodies[s].size(), cpu_bytes += cpu.segments[s].size();
      EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(cpu_bytes),
                  0.02 * static_cast<double>(cpu_bytes) + 16.0 * cpu.segments.size());
      const double lost = RawError(*model, cpu.header, pages[i], cpu.header.segments, cpu.segments);
      EXPECT_NEAR(RawError(*model, cpu.header, pages[i], coded[i].segments, coded[i].bodies), lost,
                  0.05 * lost + kJointDeviceError);
    }
    EXPECT_GE(Same(ours, theirs), 0.97) << model->name;
    EXPECT_LT(Same(theirs, without), 0.8) << model->name << ": attention changes classes";
  }
}

// More pages than one launch asks for. A GPU may sum in another order when there are other pages.
TEST_P(DeviceAskingConformance, EveryPageAsksForItself) {
  const Model& model = *(*models_)[1];
  const std::string recipe = RecipeOf(model);
  const auto codec = Make(model.spec, model.has, recipe);
  const JointCoder coder = CoderOf(model.spec, model.with, recipe);
  std::vector<PageIn> pages;
  for (uint64_t i = 0; i < kMostRows / 128 + 5; ++i)
    pages.push_back({128, 128 * (i + 1), CorrelatedPage(model.spec, 128, 90 + i, 128 * (i + 1))});
  const std::vector<JointPage> together = Encode(*codec, pages);
  for (const size_t i : {size_t{0}, size_t{1}, pages.size() / 2, pages.size() - 2}) {
    const JointPage alone = Encode(*codec, {pages[i]})[0];
    EXPECT_GE(Same(ClassesOf(coder, pages[i], alone.bodies),
                   ClassesOf(coder, pages[i], together[i].bodies)),
              0.97)
        << i;
  }
}

TEST_P(DeviceAskingConformance, PagesOfNoNumbersAreTheCpusAndOthersAreNot) {
  const Model& model = *models_->front();
  const std::string recipe = RecipeOf(model);
  const auto codec = Make(model.spec, model.has, recipe);
  const JointCoder coder = CoderOf(model.spec, model.with, recipe);
  const PageIn good = Pages(model.spec)[0];
  std::vector<PageIn> pages = {good, good, good, good};
  pages[0].raw.back() = 0x7e;                   // NaN
  pages[1].raw[0] = 0, pages[1].raw[1] = 0x7c;  // Inf, of a first token
  for (size_t i = 1; i < pages[3].raw.size(); i += 2) pages[3].raw[i] = 0x7b;  // far outside
  const std::vector<JointPage> coded = Encode(*codec, pages);
  for (const size_t i : {0, 1, 3}) EXPECT_FALSE(coded[i].coded) << i;
  ASSERT_TRUE(coded[2].coded);
  const JointPage alone = Encode(*codec, {good})[0];
  EXPECT_GE(Same(ClassesOf(coder, good, coded[2].bodies), ClassesOf(coder, good, alone.bodies)),
            0.97);
}

// One query sees all tokens, and likes them all the same.
TEST_P(DeviceAskingConformance, FlatAttentionChangesNothing) {
  const Model& model = *models_->front();
  QueryMeans queries = RandomMeans(model.spec, model.asking, model.query_heads);
  for (QueryMeans::Layer& layer : queries.layers) std::ranges::fill(layer.means, 0);
  CalibrationStore store;
  const auto blob = FitCorrelated(model.spec, model.run, {}, true);
  ASSERT_TRUE(store.Add(AsBytes(WithMeans(model.spec, *blob, queries))).ok());
  const std::string recipe = RecipeOf(model);
  const std::vector<PageIn> pages = {{8, 40, CorrelatedPage(model.spec, 8, 7, 40)}};
  const std::string flat = Join(Encode(*Make(model.spec, store, recipe), pages)[0]);
  EXPECT_EQ(flat, Join(Encode(*Make(model.spec, model.none, recipe), pages)[0]));
  EXPECT_NE(flat, Join(Encode(*Make(model.spec, model.has, recipe), pages)[0]));
}

// A body has classes where the calibration knows sensitivities and the recipe asks for them.
// Queries do not change that: the CPU's decoder would not find classes.
TEST_P(DeviceAskingConformance, PagesWithoutClassesDoNotAsk) {
  const Model& model = *models_->front();
  const std::vector<PageIn> pages = Pages(model.spec);
  const auto blob = FitCorrelated(model.spec, model.run, AlikeStats(model.spec));
  const QueryMeans queries = RandomMeans(model.spec, model.asking, model.query_heads);
  CalibrationStore has, none;
  ASSERT_TRUE(none.Add(AsBytes(*blob)).ok());
  ASSERT_TRUE(has.Add(AsBytes(WithMeans(model.spec, *blob, queries))).ok());
  const auto expect_same = [&](const CalibrationStore& a, const CalibrationStore& b,
                               const std::string& recipe) {
    const auto with = Encode(*Make(model.spec, a, recipe), pages);
    const auto without = Encode(*Make(model.spec, b, recipe), pages);
    for (size_t i = 0; i < pages.size(); ++i) {
      EXPECT_EQ(Join(with[i]), Join(without[i])) << recipe << ", page " << i;
      std::vector<uint8_t> out(pages[i].raw.size());
      PageHeader header = OfTheCpu(model.spec, a, *ParseRecipe(recipe), pages[i]).header;
      header.segments = with[i].segments;
      EXPECT_TRUE(DecodePage(header, with[i].bodies, out, a).ok());
      EXPECT_LT(RelativeError(model.spec.dtype, pages[i].raw, out), 0.02) << i;
    }
  };
  expect_same(has, none, RecipeOf(model));
  const std::string unfocused = RecipeOf(model, ",focus=0");
  expect_same(model.has, model.none, unfocused);
  EXPECT_FALSE(Open(model.spec, model.with, unfocused)->query_means().on());
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_CONFORMANCE_DEVICE_ASKING_CONFORMANCE_H_
