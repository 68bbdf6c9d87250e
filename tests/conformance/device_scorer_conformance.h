// The scorers of every Device pass these tests. Above all, they have the scores of the CPU's
// policy, bit for bit, and choose the same tokens.
//
//   INSTANTIATE_TEST_SUITE_P(Host, DeviceScorerConformance, testing::Values(DeviceFactory{...}));
//
// The parameter opens the device (device_factory.h).
#ifndef KVSTOW_TESTS_CONFORMANCE_DEVICE_SCORER_CONFORMANCE_H_
#define KVSTOW_TESTS_CONFORMANCE_DEVICE_SCORER_CONFORMANCE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/device/device_kernels.h"
#include "kernels/importance/policy.h"
#include "tests/conformance/device_factory.h"
#include "tests/kernels/pages.h"

namespace kvstow::testing {

class DeviceScorerConformance : public OnEveryDevice {
 protected:
  struct Shape {
    uint32_t layers, heads, dim_k, dim_v, tokens;
  };
  // One token; fewer and more vectors than a block takes; head_dims that are no multiple of 16;
  // MLA; V of another size than K; more tokens than a block has threads.
  static constexpr Shape kShapes[] = {
      {3, 2, 64, 64, 40}, {2, 3, 80, 96, 70},  {1, 1, 128, 128, 1}, {2, 5, 20, 7, 33},
      {2, 1, 576, 0, 21}, {1, 2, 16, 24, 300}, {4, 1, 1, 1, 2},
  };
  // Every op that is on devices, alone and on others' results.
  static constexpr const char* kPolicies[] = {
      "position|budget(keep=0.5)",
      "random(seed=11)|protect(first=1,last=2)|budget(keep=0.3)",
      "key_norm|protect(first=4,last=8)|budget(keep=0.5)",
      "value_norm|budget(keep=0.25)",
      "key_diversity|protect(first=2)|budget(keep=0.5)",
      "lag(size=8)|budget(keep=0.5)",
      "lag(size=1)|budget(keep=0.5)",
      "lag(size=128)|protect(first=4)|budget(keep=0.5)",
      "column(name=attn_sum)|budget(keep=0.5)",
      "column(name=attn_sum,seen=4)|budget(keep=0.5)",
      "column(name=attn_window)|pool(kind=mean,width=5)|budget(keep=0.5)",
      "key_norm|pool(kind=max,width=63)|budget(keep=0.5)",
      "value_norm|pool(kind=max,width=1)|pool(kind=mean,width=1023)|budget(keep=0.5)",
      "column(name=attn_window)|chunk(size=20)|budget(keep=0.5)",
      "key_norm|norm(kind=standard)|budget(keep=0.5)",
      "value_norm|norm(kind=softmax)|budget(keep=0.5)",
      "column(name=attn_sum)|norm(kind=rank)|budget(keep=0.5)",
      "key_norm|norm(kind=max)|budget(keep=0.5)",
      "value_norm|norm(kind=sum)|budget(keep=0.5)",
      "key_diversity|heads(kind=mean)|budget(keep=0.5)",
      "value_norm|heads(kind=max)|budget(keep=0.5)",
      "value_norm|decay(half=7)|budget(keep=0.5)",
      "column(name=attn_sum)|shift(by=0.0001)|value_norm|times|budget(keep=0.5)",
      "key_norm|position|norm(kind=max)|random|plus(weight=0.3)|plus(weight=2)|budget(keep=0.5)",
      // Zeros of both signs, where keys are zeros.
      "key_norm|random|norm(kind=standard)|plus(weight=0)|budget(keep=0.5)",
      // Budgets.
      "random|budget(count=0)",
      "random|protect(first=3,last=2)|budget(count=0)",
      "random|budget(count=4096)",
      "random|protect(first=4096)|budget(keep=0.1)",
      "random|budget(keep=0)",
      "random|budget(keep=1)",
      "random|budget(count=3)",
      "random|budget(threshold=0.7)",
      "key_norm|budget(threshold=-3.5,scope=token)",
      "random|protect(first=2,last=1)|budget(keep=0.3,scope=layer)",
      "random|protect(last=3)|budget(keep=0.4,scope=layer,floor=0.5)",
      "key_norm|protect(first=1)|budget(keep=0.35,scope=page)",
      "value_norm|protect(first=2,last=2)|budget(keep=0.5,scope=token)",
      "random|position|budget(keep=0.5,split=0.5)",
      "random|value_norm|budget(keep=0.5,split=0.3,scope=token)",
      "random|value_norm|budget(keep=0.5,split=0.3,scope=page)",
      "random|value_norm|protect(last=1)|budget(keep=0.5,split=0.7,scope=layer,floor=0.3)",
      "random|budget(keep=0.4,profile=pyramid)",
      "random|budget(keep=0.4,profile=decay,decay=0.6,scope=layer)",
      "random|budget(keep=0.4,profile=variance,scope=page)",
      "random|budget(keep=0.5,merge=1)",
  };

  static KvSpec SpecFor(const Shape& s, DType dtype) {
    return SpecOf(dtype, s.layers, s.heads, s.dim_k, s.dim_v, s.tokens);
  }
  static KvSpec UsualSpec() { return SpecFor(kShapes[0], DType::kF16); }

  // Columns as a worker reports them; two query heads to a KV head.
  static AttentionColumns ColumnsFor(const KvSpec& spec, uint32_t tokens, uint64_t seed) {
    AttentionColumns columns;
    for (const char* name : {"attn_sum", "attn_window", "attn_window_var", "attn_last", "attn_hits",
                             "kvzip", "kvzap"}) {
      AttentionColumn& column = columns[name];
      column.heads = 2 * spec.kv_heads;
      column.queries = tokens + 5;
      Gaussian next(++seed);
      for (size_t i = 0; i < size_t{spec.layers} * tokens * column.heads; ++i) {
        column.scores.push_back(std::abs(next()));
      }
    }
    return columns;
  }

  std::unique_ptr<DeviceScorer> Make(const std::string& policy, const KvSpec& spec) {
    auto scorer = device_->kernels().NewScorer(*ParseRecipe(policy), spec);
    EXPECT_TRUE(scorer.ok()) << scorer.status();
    return scorer.ok() ? *std::move(scorer) : nullptr;
  }

  static ::testing::AssertionResult SameBits(const ScoreMap& a, const ScoreMap& b) {
    if (a.layers != b.layers || a.tokens != b.tokens || a.heads != b.heads) {
      return ::testing::AssertionFailure() << "shapes differ";
    }
    for (size_t i = 0; i < a.values.size(); ++i) {
      if (std::bit_cast<uint32_t>(a.values[i]) == std::bit_cast<uint32_t>(b.values[i])) continue;
      return ::testing::AssertionFailure()
             << "score " << i << " is " << a.values[i] << ", the CPU's " << b.values[i];
    }
    return ::testing::AssertionSuccess();
  }

  // One page through the device and the CPU's policy: the same scores and the same tokens.
  void ExpectAsTheCpu(const std::string& text, const PageToScore& page) {
    const KvSpec& spec = page.spec;
    SCOPED_TRACE(absl::StrCat(text, ", ", DTypeName(spec.dtype), " ", spec.layers, " x ",
                              spec.kv_heads, " x ", spec.head_dim_k, "/", spec.head_dim_v, " x ",
                              page.tokens));
    const auto scorer = Make(text, spec);
    ASSERT_NE(scorer, nullptr);
    const auto raw = Put({page.raw.begin(), page.raw.end()});
    const ScoreJob job{page.tokens, raw.get(), page.first_position, page.columns,
                       page.protected_tokens};
    const auto scores = scorer->Scores({&job, 1});
    const auto selections = scorer->Select({&job, 1});
    ASSERT_TRUE(scores.ok()) << scores.status();
    ASSERT_TRUE(selections.ok()) << selections.status();
    ASSERT_EQ(scores->size(), 1u);
    ASSERT_EQ(selections->size(), 1u);
    const auto policy = *ImportancePolicy::Make(ParseRecipe(text)->policy_ops());
    const auto expected = policy.Select(page);
    const bool scored = expected.ok();
    ASSERT_EQ((*scores)[0].has_value(), scored) << expected.status();
    ASSERT_EQ((*selections)[0].has_value(), scored) << expected.status();
    if (!scored) return;
    EXPECT_TRUE(SameBits(*(*scores)[0], *policy.Scores(page)));
    const Selection& selection = *(*selections)[0];
    EXPECT_TRUE(selection.keep == expected->keep) << "other tokens are kept";
    EXPECT_EQ(selection.layers, expected->layers);
    EXPECT_EQ(selection.tokens, expected->tokens);
    EXPECT_EQ(selection.heads, expected->heads);
    EXPECT_EQ(selection.merge, expected->merge);
  }
};

TEST_P(DeviceScorerConformance, EveryOpBudgetAndShapeChoosesAsTheCpu) {
  uint64_t seed = 0;
  for (const char* policy : kPolicies) {
    for (const Shape& shape : kShapes) {
      const DType dtype = std::array{DType::kF16, DType::kBF16, DType::kF32}[++seed % 3];
      const KvSpec spec = SpecFor(shape, dtype);
      const auto columns = ColumnsFor(spec, shape.tokens, seed);
      const auto raw = GaussianPage(spec, shape.tokens, seed);
      ExpectAsTheCpu(policy, {.spec = spec,
                              .raw = raw,
                              .tokens = shape.tokens,
                              .first_position = seed << 30,
                              .columns = &columns});
    }
  }
}

TEST_P(DeviceScorerConformance, PresetsChooseAsTheCpuOrSayWhichOpIsNotThere) {
  const KvSpec spec = SpecOf(DType::kBF16, 2, 2, 96, 96, 260);
  const auto columns = ColumnsFor(spec, 260, 3);
  const auto raw = GaussianPage(spec, 260, 4);
  std::vector<std::string> absent;
  for (const Preset& preset : PolicyPresets()) {
    std::string text(preset.pipeline);
    if (preset.name == "duoattention") text.replace(text.find("heads=0"), 7, "heads=a");
    const auto scorer = device_->kernels().NewScorer(*ParseRecipe(text), spec);
    if (!scorer.ok()) {
      EXPECT_TRUE(absl::IsUnimplemented(scorer.status())) << scorer.status();
      absent.push_back(absl::StrCat(preset.name, ": ", scorer.status().message()));
      continue;
    }
    ExpectAsTheCpu(text, {.spec = spec, .raw = raw, .tokens = 260, .columns = &columns});
  }
  using ::testing::StartsWith;
  EXPECT_THAT(absent, ::testing::ElementsAre(StartsWith("expected-attention: 'expected'"),
                                             StartsWith("compactor: 'leverage'"),
                                             StartsWith("qfilters: 'query_direction'"),
                                             StartsWith("simlayerkv: budget(profile=lazy)"),
                                             StartsWith("triattention: 'trigonometric'"),
                                             StartsWith("r-kv: 'redundancy'")));
}

TEST_P(DeviceScorerConformance, TiesZerosConstantsAndTheLargestValuesAsTheCpu) {
  Gaussian gaussian;
  int turn = 0;
  const std::function<float()> pages[] = {
      [] { return 0.0f; },
      [&] { return ++turn % 3 == 0 ? 0.0f : -0.0f; },
      [] { return -37.25f; },
      [&] { return static_cast<float>(++turn / 80 % 2) + 1; },  // two kinds of vectors
      [&] { return std::round(gaussian()); },
      [&] { return gaussian() * 0x1p-24f; },
      [&] { return ++turn % 2 == 0 ? 65504.0f : -65504.0f; },
      [&] { return std::ldexp(gaussian(), ++turn % 40 - 26); },
  };
  const KvSpec spec = SpecOf(DType::kF16, 2, 3, 80, 80, 40);
  auto columns = ColumnsFor(spec, 40, 1);
  for (auto& [name, column] : columns) {
    for (float& x : column.scores) x = std::round(2 * x);  // many are equal
  }
  for (const char* policy : kPolicies) {
    for (size_t i = 0; i < std::size(pages); ++i) {
      SCOPED_TRACE(absl::StrCat("page ", i));
      const auto raw = MakePage(spec, 40, pages[i]);
      ExpectAsTheCpu(policy, {.spec = spec, .raw = raw, .tokens = 40, .columns = &columns});
    }
  }
}

TEST_P(DeviceScorerConformance, TokensThatAreNamedStay) {
  const KvSpec spec = UsualSpec();
  const auto raw = GaussianPage(spec, 40);
  std::vector<uint8_t> named(40);
  named[7] = named[8] = named[31] = 1;
  for (const char* policy : {"random|budget(keep=0.2)", "random|budget(keep=0.2,scope=token)",
                             "random|protect(first=2)|budget(keep=0.2,scope=page)",
                             "random|budget(threshold=0.9)", "random|budget(count=1)"}) {
    const PageToScore page{.spec = spec, .raw = raw, .tokens = 40, .protected_tokens = named};
    ExpectAsTheCpu(policy, page);
  }
}

TEST_P(DeviceScorerConformance, NanAndInfAreLeftToTheCpuOnlyWhereTheyAreRead) {
  const KvSpec spec = UsualSpec();
  const auto good = GaussianPage(spec, 40);
  const size_t v = SlabOffset(spec, 1, Part::kV, 40);
  for (const char* policy : {"key_norm|budget(keep=0.5)", "value_norm|budget(keep=0.5)",
                             "key_diversity|budget(keep=0.5)", "lag(size=16)|budget(keep=0.5)",
                             "lag(size=64)|budget(keep=0.5)", "random|budget(keep=0.5)"}) {
    for (const uint16_t odd : {0x7c00, 0xfc00, 0x7e01}) {
      for (const size_t at : {size_t{0}, v - 2, v, good.size() - 2}) {
        auto raw = good;
        std::memcpy(&raw[at], &odd, 2);
        ExpectAsTheCpu(policy, {.spec = spec, .raw = raw, .tokens = 40});
      }
    }
  }
}

TEST_P(DeviceScorerConformance, ColumnsThatAreNotFiniteAreLeftToTheCpu) {
  const KvSpec spec = UsualSpec();
  const auto raw = Put(GaussianPage(spec, 40));
  for (const float odd :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (const char* policy :
         {"column(name=attn_sum)|norm(kind=rank)|budget(keep=0.5)",
          "random|budget(keep=0.5,profile=variance)", "position|budget(keep=0.5)"}) {
      auto columns = ColumnsFor(spec, 40, 1);
      columns["attn_sum"].scores[5] = columns["attn_window_var"].scores[9] = odd;
      const auto sound = ColumnsFor(spec, 40, 1);
      const auto scorer = Make(policy, spec);
      const ScoreJob jobs[] = {{40, raw.get(), 0, &columns}, {40, raw.get(), 0, &sound}};
      const auto selections = scorer->Select(jobs);
      ASSERT_TRUE(selections.ok()) << selections.status();
      EXPECT_EQ((*selections)[0].has_value(), absl::string_view(policy)[0] == 'p') << policy;
      EXPECT_TRUE((*selections)[1].has_value()) << policy;
    }
  }
}

TEST_P(DeviceScorerConformance, ScoresThatOverflowAreTheCpusOrLeftToIt) {
  const KvSpec spec = SpecOf(DType::kF32, 1, 2, 16, 16, 9);
  Gaussian gaussian;
  const auto bytes = MakePage(spec, 9, [&] { return gaussian() * 1e30f; });
  const auto raw = Put(bytes);
  const ScoreJob job{9, raw.get()};
  const auto policy = *ImportancePolicy::Make(ParseRecipe("knorm")->policy_ops());
  const auto selections = Make("knorm", spec)->Select({&job, 1});
  ASSERT_TRUE(selections.ok()) << selections.status();
  if (!(*selections)[0].has_value()) return;
  EXPECT_EQ((*selections)[0]->keep, policy.Select({.spec = spec, .raw = bytes, .tokens = 9})->keep);
}

TEST_P(DeviceScorerConformance, PagesOfACallDoNotMixWhateverTheirLengths) {
  const KvSpec spec = UsualSpec();
  for (const char* text :
       {"column(name=attn_window)|column(name=attn_window_var)|plus(weight=200)|protect(first=2)|"
        "budget(keep=0.5,profile=variance)",
        "random|lag(size=8)|plus|budget(keep=0.3,scope=layer,floor=0.2)",
        "column(name=attn_sum)|value_norm|budget(keep=0.5,split=0.5,scope=token)",
        "key_diversity|protect(last=3)|budget(keep=0.5,scope=page)"}) {
    SCOPED_TRACE(text);
    const auto policy = *ImportancePolicy::Make(ParseRecipe(text)->policy_ops());
    const auto scorer = Make(text, spec);
    std::vector<std::vector<uint8_t>> raws, named;
    std::vector<AttentionColumns> columns;
    std::vector<std::shared_ptr<const DeviceBuffer>> buffers;
    std::vector<ScoreJob> jobs;
    for (uint32_t i = 0; i < 100; ++i) {  // more than a launch takes
      const uint32_t tokens = i % 8 == 7 ? 1 + i % 40 : 40;
      raws.push_back(GaussianPage(spec, tokens, i + 1));
      if (i == 20) raws[i][1] = 0x7c;  // Inf or NaN: one page that is refused among others
      columns.push_back(ColumnsFor(spec, tokens, i));
      named.emplace_back(i % 3 == 0 ? tokens : 0, 0);
      if (!named[i].empty()) named[i][i % tokens] = 1;
      buffers.push_back(Put(raws[i]));
    }
    for (uint32_t i = 0; i < 100; ++i) {
      const auto tokens = static_cast<uint32_t>(raws[i].size() / BytesPerToken(spec));
      jobs.push_back({tokens, buffers[i].get(), 40 * i, &columns[i], named[i]});
    }
    const auto selections = scorer->Select(jobs);
    ASSERT_TRUE(selections.ok()) << selections.status();
    for (uint32_t i = 0; i < 100; ++i) {
      SCOPED_TRACE(i);
      const auto expected = policy.Select({.spec = spec,
                                           .raw = raws[i],
                                           .tokens = jobs[i].tokens,
                                           .first_position = 40 * i,
                                           .columns = &columns[i],
                                           .protected_tokens = named[i]});
      ASSERT_EQ((*selections)[i].has_value(), expected.ok());
      if (!expected.ok()) continue;
      EXPECT_TRUE((*selections)[i]->keep == expected->keep);
    }
  }
}

TEST_P(DeviceScorerConformance, JobsThatDoNotFitAreRefusedByName) {
  const KvSpec spec = UsualSpec();
  const auto raw = Put(GaussianPage(spec, 40));
  const auto small = Put(std::vector<uint8_t>(16));
  class Foreign final : public DeviceBuffer {
   public:
    size_t size() const override { return size_t{1} << 30; }
  };
  Foreign foreign;
  const auto columns = ColumnsFor(spec, 40, 1);
  const auto shorter = ColumnsFor(spec, 39, 1);
  const std::vector<uint8_t> named(39);
  const auto scorer = Make("snapkv", spec);
  const ScoreJob good{40, raw.get(), 0, &columns};
  const auto expect = [&](const ScoreJob& wrong, absl::StatusCode code) {
    const ScoreJob jobs[] = {good, wrong};
    for (const absl::Status& status :
         {scorer->Select(jobs).status(), scorer->Scores(jobs).status()}) {
      EXPECT_EQ(status.code(), code) << status;
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("page 1 of the call"));
    }
  };
  for (const ScoreJob& wrong :
       {ScoreJob{0, raw.get(), 0, &columns}, ScoreJob{41, raw.get(), 0, &columns},
        ScoreJob{40, small.get(), 0, &columns}, ScoreJob{40, nullptr, 0, &columns},
        ScoreJob{40, &foreign, 0, &columns}, ScoreJob{40, raw.get(), 0, &shorter},
        ScoreJob{40, raw.get(), 0, &columns, named}}) {
    expect(wrong, absl::StatusCode::kInvalidArgument);
  }
  expect({40, raw.get()}, absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(scorer->Select({})->empty());
  EXPECT_TRUE(scorer->Scores({})->empty());
}

TEST_P(DeviceScorerConformance, WhatIsNotThereIsUnimplementedAndWhatIsWrongIsInvalid) {
  const auto code = [&](const char* recipe, const KvSpec& spec) {
    return device_->kernels().NewScorer(*ParseRecipe(recipe), spec).status().code();
  };
  EXPECT_EQ(code("snapkv|int8", UsualSpec()), absl::StatusCode::kOk) << "the codec is not asked";
  EXPECT_EQ(code("column(name=attn_sum)|class|kvstow", UsualSpec()),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code("int8", UsualSpec()), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("plus|budget(keep=0.5)", UsualSpec()), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("random|pool(width=4)|budget", UsualSpec()), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("knorm", SpecOf(DType::kF8E4M3, 1, 1, 64, 64, 8)),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("knorm", SpecOf(DType::kF16, 0, 1, 64, 64, 8)),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(DeviceScorerConformance, ManyThreadsAtOnce) {
  const KvSpec spec = UsualSpec();
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 6; ++t) {
    threads.emplace_back([this, &spec, t] {
      for (uint32_t i = 0; i < 4; ++i) {
        const auto raw = GaussianPage(spec, 40, t * 100 + i);
        ExpectAsTheCpu(t % 2 == 0 ? "knorm" : "keydiff", {.spec = spec, .raw = raw, .tokens = 40});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace kvstow::testing

#endif  // KVSTOW_TESTS_CONFORMANCE_DEVICE_SCORER_CONFORMANCE_H_
