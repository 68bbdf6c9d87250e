#include "storage/disk/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "storage/disk/segment_format.h"

namespace kvstow {
namespace {

constexpr size_t kSizes[] = {0, 1, kDiskBlock, (1 << 20) + kDiskBlock, 9 << 20};

struct Block {
  std::shared_ptr<uint8_t[]> memory;
  size_t bytes = 0;
  uint8_t mark = 0;
  bool HasItsMark() const {
    const uint8_t* const all = memory.get();
    return bytes == 0 || (all[0] == mark && std::memcmp(all, all + 1, bytes - 1) == 0);
  }
};

// Takes and gives back blocks at random, each with a mark in all of its bytes. Those that are left.
std::vector<Block> TakeAndGive(BlockPool& pool, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Block> blocks;
  for (int i = 0; i < 300; ++i) {
    if (blocks.size() > 8) {
      const size_t gone = random() % blocks.size();
      EXPECT_TRUE(blocks[gone].HasItsMark());
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(gone));
    }
    const size_t bytes = kSizes[random() % std::size(kSizes)];
    Block block{pool.Take(bytes), bytes, static_cast<uint8_t>(random())};
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.memory.get()) % kDiskBlock, 0u) << bytes;
    std::fill_n(block.memory.get(), bytes, block.mark);
    blocks.push_back(std::move(block));
  }
  return blocks;
}

TEST(BlockPool, BlocksDoNotOverlapWhoeverTakesThem) {
  BlockPool pool(16 << 20);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (const Block& block : TakeAndGive(pool, t)) EXPECT_TRUE(block.HasItsMark());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(BlockPool, BlocksOutliveThePool) {
  std::vector<Block> blocks;
  {
    BlockPool pool(0);
    blocks = TakeAndGive(pool, 1);
  }
  for (const Block& block : blocks) EXPECT_TRUE(block.HasItsMark());
}

TEST(BlockPool, WhatWasGivenBackIsTakenAgain) {
  BlockPool pool(32 << 20);
  const uint8_t* const first = pool.Take(1 << 20).get();
  EXPECT_EQ(pool.Take(1 << 20).get(), first);
}

TEST(BlockPool, ARenewedPoolHoldsNothingOfBefore) {
  constexpr size_t kBytes = 1 << 20;
  BlockPool pool(32 << 20);
  const Block used{pool.Take(kBytes), kBytes, 0x5a};
  std::memset(used.memory.get(), used.mark, kBytes);
  for (int i = 0; i < 20; ++i) std::memset(pool.Take(kBytes).get(), 0x77, kBytes);
  pool.Renew();
  std::vector<Block> blocks;
  for (int i = 0; i < 20; ++i) {
    blocks.push_back({pool.Take(kBytes), kBytes, 0});
    EXPECT_TRUE(blocks.back().HasItsMark());
  }
  EXPECT_TRUE(used.HasItsMark());
}

}  // namespace
}  // namespace kvstow
