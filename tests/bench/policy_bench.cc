// The cost of a decision, and the memory that is kept to take it.
//
//   BM_Evict/POLICY  evictions a second with 1 M segments: a victim loses one, and a page that lost
//                    all of its four is away until it is put again. `bytes_per_item` is what the
//                    policy allocated for each page that it holds, ghosts included.
//   BM_Index/N       pages of N segments into the store's index and out again. `bytes_per_page` is
//                    what it allocated for each, its policy's share included, but not ghosts.
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/digest.h"
#include "storage/policies/eviction_policy.h"
#include "storage/store/residency/page_index.h"

namespace kvstow {
namespace {

constexpr uint64_t kLevels = 4, kPages = 250'000, kChain = 16;

size_t Allocated() {
  const struct mallinfo2 heap = mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

// Half of the uses are of 20,000 pages, the others go round all of them.
void BM_Evict(benchmark::State& state, const PolicyInfo* info) {
  std::vector<uint8_t> levels(16 * kPages);
  const size_t before = Allocated();
  const auto policy = info->make(kPages * kLevels);
  uint64_t used = 0, next = 0, random = 1, held = 0, evictions = 0;
  const auto put = [&](uint64_t page) {
    levels[page] = kLevels;
    used += kLevels;
    ++held;
    policy->Insert(page, {.bytes = kLevels,
                          .worth = 0.05,
                          .parent = page % kChain == 0 ? PolicyItem::kNoParent : page - 1});
  };
  const auto evict = [&] {
    const uint64_t page = *policy->Victim([](uint64_t) { return true; });
    --used;
    ++evictions;
    if (--levels[page] == 0) {
      --held;
      return policy->Remove(page, true);
    }
    policy->Resize(page, levels[page], levels[page] == 1 ? 8 : levels[page] == 2 ? 0.6 : 0.1);
  };
  const auto step = [&] {
    if (used + kLevels > kPages * kLevels) return evict();
    random = random * 6364136223846793005u + 1442695040888963407u;
    const uint64_t page = (random >> 63) != 0 ? next++ % levels.size() : (random >> 20) % 20'000;
    levels[page] > 0 ? policy->Touch(page) : put(page);
  };
  while (evictions < 4 * kPages * kLevels) step();  // until ghosts are as many as they get
  state.counters["bytes_per_item"] = static_cast<double>(Allocated() - before) / held;
  const uint64_t warm = evictions;
  for (auto _ : state) {
    for (const uint64_t until = evictions + 1; evictions < until;) step();
  }
  state.SetItemsProcessed(static_cast<int64_t>(evictions - warm));
}

// Keys are as long as a client's.
PageName Name(PageNumber number) {
  const std::array<uint64_t, 4> key = {number, ~number, 2 * number, 3 * number};
  return {.space = 1, .key = std::string(reinterpret_cast<const char*>(key.data()), sizeof(key))};
}

std::unique_ptr<PageEntry> Entry(PageNumber number, size_t segments) {
  TierSet host;
  host.Add(TierId::kHost);
  return PageEntry::Make({.number = number,
                          .name = Name(number),
                          .raw_bytes = 1 << 20,
                          .first_position = 16 * number,
                          .tokens = 16,
                          .facts = std::vector<SegmentFacts>(segments, {.bytes = 1000, .gain = 1})},
                         host);
}

void BM_Index(benchmark::State& state) {
  constexpr uint64_t kBudget = uint64_t{1} << 40;
  constexpr PageNumber kIndexed = 1'000'000;
  const auto segments = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    const size_t before = Allocated();
    PageIndex index(EvictionPolicies().front(), {kBudget, kBudget, kBudget});
    for (PageNumber n = 1; n <= kIndexed; ++n) index.Insert(Entry(n, segments));
    state.counters["bytes_per_page"] = static_cast<double>(Allocated() - before) / kIndexed;
    for (PageNumber n = 1; n <= kIndexed; ++n) index.Remove(index.Find(Name(n)));
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kIndexed));
}
BENCHMARK(BM_Index)->Arg(1)->Arg(9);

const bool registered = [] {
  for (const PolicyInfo& info : EvictionPolicies()) {
    benchmark::RegisterBenchmark(("BM_Evict/" + std::string(info.name)).c_str(), BM_Evict, &info);
  }
  return true;
}();

}  // namespace
}  // namespace kvstow
