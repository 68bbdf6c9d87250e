#include "storage/trace/live_reuse.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "storage/trace/trace_reader.h"
#include "tests/paths.h"

namespace kvstow {
namespace {

constexpr uint32_t kPageBytes = 64 << 20;  // 512 tokens of Llama-3.1-8B
constexpr uint64_t kMaxState = 16 << 20;

// splitmix64: uniform bits from small numbers.
uint64_t Hash(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

Time At(double seconds) {
  return Time(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
}

void Replay(const Trace& trace, LiveReuse& reuse) {
  std::vector<uint64_t> pages;
  for (const TraceRequest& request : trace.requests) {
    pages.clear();
    for (const uint64_t block : request.blocks) pages.push_back(Hash(block));
    reuse.Record(pages, kPageBytes, At(request.time_s));
  }
}

// Exact hit rate of an LRU of `capacity` blocks, from stack distances of all blocks.
double ExactHitRate(const Trace& trace, uint64_t capacity) {
  LruStack stack;
  uint64_t hits = 0;
  for (const TraceRequest& request : trace.requests) {
    for (const uint64_t block : request.blocks) {
      const auto item = static_cast<uint32_t>(block);
      if (!stack.Contains(item) || stack.Distance(item) > capacity) break;
      ++hits;
    }
    for (const uint64_t block : request.blocks) stack.Touch(static_cast<uint32_t>(block), 1);
  }
  return static_cast<double>(hits) / static_cast<double>(trace.references);
}

void ExpectWithinTwoPoints(const Trace& trace, uint32_t max_samples, uint64_t present_blocks) {
  LiveReuse reuse({.max_samples = max_samples});
  Replay(trace, reuse);
  const ReuseEstimate estimate = reuse.Estimate();
  EXPECT_EQ(estimate.references, trace.references);
  EXPECT_NEAR(estimate.distinct_pages / static_cast<double>(trace.parents.size()), 1, 0.03);
  for (const double factor : {0.5, 1.0, 2.0, 4.0}) {
    const auto blocks = static_cast<uint64_t>(factor * static_cast<double>(present_blocks));
    EXPECT_NEAR(estimate.HitRate(blocks * kPageBytes), ExactHitRate(trace, blocks), 0.02)
        << factor << " of " << present_blocks << ", sampled " << estimate.sampled;
  }
  EXPECT_NEAR(estimate.infinite_hit_rate, ExactHitRate(trace, UINT64_MAX), 0.02);
  EXPECT_LE(reuse.memory_bytes(), kMaxState);
}

TEST(LiveReuse, IsWithinTwoPointsOfTheExactRate) {
  const auto trace = LoadTrace(TestsPath("data/mooncake_conversation_1000.jsonl.gz"));
  ASSERT_TRUE(trace.ok()) << trace.status();
  for (const uint64_t blocks : {1000, 2000, 4000}) {
    ExpectWithinTwoPoints(*trace, 1 << 16, blocks);  // all pages are in the sample
    ExpectWithinTwoPoints(*trace, 1 << 13, blocks);  // some
  }
}

TEST(LiveReuse, IsWithinTwoPointsOnThePublishedTraces) {
  const char* const folder = std::getenv("KVSTOW_TRACES");
  if (folder == nullptr) GTEST_SKIP() << "KVSTOW_TRACES names no folder with the Mooncake traces";
  for (const char* name :
       {"/mooncake_conversation_trace.jsonl", "/mooncake_synthetic_trace.jsonl"}) {
    const std::string path = std::string(folder) + name;
    if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
    const auto trace = LoadTrace(path);
    ASSERT_TRUE(trace.ok()) << trace.status();
    for (const uint64_t blocks : {2048, 4096, 8192, 16384}) {
      for (const uint32_t samples : {1 << 16, 1 << 14}) {
        SCOPED_TRACE(path);
        ExpectWithinTwoPoints(*trace, samples, blocks);
      }
    }
  }
}

TEST(LiveReuse, StateIsBoundedHoweverManyPages) {
  LiveReuse reuse;
  std::vector<uint64_t> pages(64);
  uint64_t next = 0;
  for (int request = 0; request < 40000; ++request) {
    for (uint64_t& page : pages) page = Hash(next++);
    reuse.Record(pages, kPageBytes, At(request));
  }
  EXPECT_LE(reuse.memory_bytes(), kMaxState);
  const ReuseEstimate estimate = reuse.Estimate();
  EXPECT_LT(estimate.sampled, 0.05);
  EXPECT_NEAR(estimate.infinite_hit_rate, 0, 0.03);
  EXPECT_NEAR(estimate.HitRate(UINT64_MAX), 0, 0.02);
}

TEST(LiveReuse, APrefixWithAHoleIsNoHit) {
  LiveReuse reuse;
  const std::vector<uint64_t> ab = {Hash(1), Hash(2)}, cb = {Hash(3), Hash(2)};
  reuse.Record(ab, kPageBytes, At(0));
  reuse.Record(cb, kPageBytes, At(1));
  EXPECT_EQ(reuse.Estimate().HitRate(UINT64_MAX), 0);
  reuse.Record(ab, kPageBytes, At(2));
  const ReuseEstimate estimate = reuse.Estimate();
  EXPECT_DOUBLE_EQ(estimate.HitRate(UINT64_MAX), 2.0 / 6);
  EXPECT_EQ(estimate.HitRate(2 * uint64_t{kPageBytes}), 0) << "the first was three pages deep";
  EXPECT_DOUBLE_EQ(estimate.HitRate(4 * uint64_t{kPageBytes}), 2.0 / 6);
}

TEST(LiveReuse, WindowsForget) {
  LiveReuse reuse({.max_samples = 1000, .window = std::chrono::seconds(10)});
  const std::vector<uint64_t> a = {Hash(1)}, b = {Hash(2)};
  EXPECT_EQ(reuse.Estimate().references, 0u);
  EXPECT_EQ(reuse.Estimate().HitRate(UINT64_MAX), 0);
  reuse.Record(a, kPageBytes, At(5));
  reuse.Record(a, kPageBytes, At(16));
  EXPECT_EQ(reuse.Estimate().references, 2u) << "this window and the one before";
  EXPECT_DOUBLE_EQ(reuse.Estimate().HitRate(UINT64_MAX), 0.5) << "reuse across windows counts";
  reuse.Record(b, kPageBytes, At(26));
  EXPECT_EQ(reuse.Estimate().references, 2u);
  reuse.Record(b, kPageBytes, At(100));
  const ReuseEstimate late = reuse.Estimate();
  EXPECT_EQ(late.references, 1u);
  EXPECT_EQ(late.HitRate(UINT64_MAX), 0) << "it was forgotten";
  EXPECT_NEAR(late.distinct_pages, 1, 0.01);
}

TEST(HyperLogLog, CountsWithinThreePercent) {
  HyperLogLog a, b;
  EXPECT_EQ(a.Count(), 0);
  uint64_t added = 0;
  for (const uint64_t count : {10u, 1000u, 30000u, 50000u, 400000u}) {
    for (; added < count; ++added) {
      (added % 2 == 0 ? a : b).Add(Hash(added));
      a.Add(Hash(added / 2));
    }
    EXPECT_NEAR(a.CountWith(b) / static_cast<double>(count), 1, 0.03) << count;
  }
}

}  // namespace
}  // namespace kvstow
