// What every Tier promises, run on each implementation:
//
//   INSTANTIATE_TEST_SUITE_P(Memory, TierConformance, testing::Values(TierCase{"memory", Open}));
//
// `open` is given an empty folder that lives as long as the tier.
#ifndef KVSTOW_TESTS_CONFORMANCE_TIER_CONFORMANCE_H_
#define KVSTOW_TESTS_CONFORMANCE_TIER_CONFORMANCE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "storage/tier.h"
#include "tests/storage/prf_page.h"
#include "tests/storage/temp_dir.h"

namespace kvstow {

struct TierCase {
  std::string name;
  std::function<absl::StatusOr<std::unique_ptr<Tier>>(const std::string& folder)> open;
  bool threads = true;  // false: a library that the sanitizer cannot see into
  friend std::ostream& operator<<(std::ostream& out, const TierCase& c) { return out << c.name; }
};

class TierConformance : public testing::TestWithParam<TierCase> {
 protected:
  void SetUp() override {
    auto tier = GetParam().open(folder_.path());
    ASSERT_TRUE(tier.ok()) << tier.status();
    tier_ = *std::move(tier);
    ASSERT_FALSE(tier_->name().empty());
  }

  static std::vector<SegmentBody> BodiesOf(const PrfPage& page) {
    std::vector<SegmentBody> out;
    for (size_t i = 0; i < page.sizes.size(); ++i) {
      out.push_back({{page.key, static_cast<uint16_t>(i)}, SharedBytes::Take(page.Body(i))});
    }
    return out;
  }
  static std::vector<SegmentId> IdsOf(const PrfPage& page) {
    std::vector<SegmentId> out;
    for (size_t i = 0; i < page.sizes.size(); ++i) {
      out.push_back({page.key, static_cast<uint16_t>(i)});
    }
    return out;
  }
  static std::vector<ExpectedSegment> ExpectedOf(const PrfPage& page) {
    std::vector<ExpectedSegment> out;
    for (const SegmentBody& body : BodiesOf(page)) {
      out.push_back({body.id, 0, {page.sizes[body.id.index], 1, Xxh3(body.bytes.span())}});
    }
    return out;
  }
  // True when the tier holds nothing by nature, which is then all that there is to check.
  bool HoldsNothing() {
    if (tier_->holds_bytes()) return false;
    const PrfPage page{.key = 1};
    EXPECT_EQ(tier_->Write(BodiesOf(page)).code(), absl::StatusCode::kResourceExhausted);
    for (const auto& body : tier_->Read(ExpectedOf(page))) {
      EXPECT_EQ(body.status().code(), absl::StatusCode::kNotFound);
    }
    EXPECT_TRUE(tier_->Erase(IdsOf(page)).ok());
    return true;
  }
  void ExpectThere(const PrfPage& page) {
    const auto bodies = tier_->Read(ExpectedOf(page));
    ASSERT_EQ(bodies.size(), page.sizes.size());
    for (size_t i = 0; i < bodies.size(); ++i) {
      ASSERT_TRUE(bodies[i].ok()) << bodies[i].status();
      EXPECT_EQ(page.WhatIs(i, bodies[i]->span()), "");
    }
  }

  TempDir folder_;
  std::unique_ptr<Tier> tier_;
};

TEST_P(TierConformance, GivesBackTheBytesOfEverySize) {
  if (HoldsNothing()) return;
  const PrfPage page{.key = 1, .sizes = {24, 100, 4095, 4096, 4097, 65536, (1 << 20) + 1}};
  ASSERT_TRUE(tier_->Write(BodiesOf(page)).ok());
  ExpectThere(page);
}

TEST_P(TierConformance, AnswersEachIdInItsPlace) {
  if (HoldsNothing()) return;
  const PrfPage page{.key = 7};
  ASSERT_TRUE(tier_->Write(BodiesOf(page)).ok());
  const auto all = ExpectedOf(page);
  const std::vector<ExpectedSegment> expected = {
      all[2], {.id = {8, 0}}, all[0], {.id = {7, 3}}, all[2]};
  const auto bodies = tier_->Read(expected);
  ASSERT_EQ(bodies.size(), expected.size());
  for (const size_t at : {0, 2, 4}) {
    ASSERT_TRUE(bodies[at].ok()) << at;
    EXPECT_EQ(page.WhatIs(expected[at].id.index, bodies[at]->span()), "");
  }
  for (const size_t at : {1, 3}) {
    EXPECT_EQ(bodies[at].status().code(), absl::StatusCode::kNotFound) << at;
  }
}

TEST_P(TierConformance, ErasesOnlyWhatItIsTold) {
  if (HoldsNothing()) return;
  const PrfPage page{.key = 1}, other{.key = 2};
  ASSERT_TRUE(tier_->Write(BodiesOf(page)).ok());
  ASSERT_TRUE(tier_->Write(BodiesOf(other)).ok());
  ASSERT_TRUE(tier_->Erase(IdsOf(page)).ok());
  for (const auto& body : tier_->Read(ExpectedOf(page))) {
    EXPECT_EQ(body.status().code(), absl::StatusCode::kNotFound);
  }
  ExpectThere(other);
  EXPECT_TRUE(tier_->Erase(IdsOf(page)).ok()) << "erasing what is not there is no error";
}

TEST_P(TierConformance, AReaderKeepsItsBytesThroughAnErase) {
  if (HoldsNothing()) return;
  const PrfPage page{.key = 1, .sizes = {100, 100'000}};
  ASSERT_TRUE(tier_->Write(BodiesOf(page)).ok());
  const auto held = tier_->Read(ExpectedOf(page));
  ASSERT_TRUE(tier_->Erase(IdsOf(page)).ok());
  tier_.reset();
  for (size_t i = 0; i < held.size(); ++i) {
    ASSERT_TRUE(held[i].ok());
    EXPECT_EQ(page.WhatIs(i, held[i]->span()), "");
  }
}

TEST_P(TierConformance, EmptyListsAreFine) {
  EXPECT_TRUE(tier_->Write({}).ok());
  EXPECT_TRUE(tier_->Read({}).empty());
  EXPECT_TRUE(tier_->Erase({}).ok());
}

// Only a tier that verifies looks at the facts.
TEST_P(TierConformance, ATierThatVerifiesGivesNoOtherBody) {
  if (!tier_->verifies()) GTEST_SKIP() << "its bytes do not leave the process";
  const PrfPage page{.key = 1, .sizes = {100, 9000}};
  ASSERT_TRUE(tier_->Write(BodiesOf(page)).ok());
  for (ExpectedSegment expected : ExpectedOf(page)) {
    expected.facts.digest ^= 1;
    EXPECT_EQ(tier_->Read({&expected, 1})[0].status().code(), absl::StatusCode::kDataLoss);
    expected.facts.digest ^= 1;
    ++expected.facts.bytes;
    EXPECT_EQ(tier_->Read({&expected, 1})[0].status().code(), absl::StatusCode::kDataLoss);
  }
  ExpectThere(page);
}

TEST_P(TierConformance, ManyThreadsAtOnce) {
  if (!GetParam().threads) GTEST_SKIP() << "not instrumented";
  if (HoldsNothing()) return;
  constexpr int kThreads = 4, kRounds = 25;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        const PrfPage page{.key = static_cast<uint64_t>(t * kRounds + round), .sizes = {500, 9000}};
        wrong += tier_->Write(BodiesOf(page)).ok() ? 0 : 1;
        const auto bodies = tier_->Read(ExpectedOf(page));
        for (size_t i = 0; i < bodies.size(); ++i) {
          wrong += bodies[i].ok() && page.WhatIs(i, bodies[i]->span()).empty() ? 0 : 1;
        }
        if (round % 2 == 0) wrong += tier_->Erase(IdsOf(page)).ok() ? 0 : 1;
        const bool here = tier_->Read(ExpectedOf(page))[0].ok();
        wrong += here == (round % 2 != 0) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace kvstow

#endif  // KVSTOW_TESTS_CONFORMANCE_TIER_CONFORMANCE_H_
