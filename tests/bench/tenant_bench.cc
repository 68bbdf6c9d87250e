// What tenants cost a put.
//
//   BM_TenantPut/store   puts of coded pages into two full stores in turns: one has one tenant, the
//                        other 1,000 with guarantees, limits and weights. It is the store's
//                        bookkeeping alone: the host tier takes references.
//   BM_TenantPut/served/N  the same puts with what a server does before them: the page, N tokens of
//                        the small model, is copied into a block, digested and coded (`int8`).
//
// `us_one` and `us_many` are medians of the thread's time of a put, and `many_of_one` is their
// ratio. `kib_a_tenant` is what a tenant of the 1,000 takes beyond what its pages take in a store
// of one.
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/device/device.h"
#include "storage/store/tiered_store.h"
#include "storage/tiers/memory_tier.h"
#include "tests/bench/small_model_page.h"

namespace kvstow {
namespace {

constexpr uint64_t kPagesHeld = 20'000;
constexpr TenantId kMany = 1000;

size_t Allocated() {
  const struct mallinfo2 heap = mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

class Tenants {
 public:
  Tenants(TenantId tenants, uint64_t page_bytes) : tenants_(tenants) {
    TieredStoreOptions options;
    options.budget_bytes = {0, kPagesHeld * page_bytes, 0};
    options.background = false;
    options.tenant_of = [](const std::string& name) {
      TenantId id = 0;
      return absl::SimpleAtoi(name, &id) ? id : kOnlyTenant;
    };
    TieredStoreParts parts;
    parts.tiers[1] = MakeMemoryTier(HostDevice());
    store_ = *TieredStore::Open(options, std::move(parts));
    std::vector<std::pair<TenantId, TenantShare>> shares;
    for (TenantId tenant = 0; tenant < tenants; ++tenant) {
      const std::string name = tenants == 1 ? "" : absl::StrCat(tenant + 1);
      store_->SaveSpace({.id = tenant + 1, .bytes = {}, .tenant = name}).IgnoreError();
      if (tenants == 1) continue;
      const uint64_t part = options.budget_bytes[1] / tenants;
      shares.push_back({tenant + 1,
                        {.limit = {0, 4 * part, 0},
                         .guarantee = {0, part / 2, 0},
                         .weight = 1.0 + tenant % 4,
                         .pages = kPagesHeld}});
    }
    store_->cooling().SetShares(shares);
  }
  // A page of some tenant, which no page was before.
  bool Put(PageToStore page) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    page.name = {.space = static_cast<SpaceId>(1 + (random_ >> 33) % tenants_),
                 .key = absl::StrCat("a key as long as those of clients ", ++keys_)};
    const auto put = store_->Put(std::move(page));
    return put.ok() && *put == PutOutcome::kStored;
  }

 private:
  const TenantId tenants_;
  std::unique_ptr<TieredStore> store_;
  uint64_t random_ = 1, keys_ = 0;
};

PageToStore Coded(const Codec& codec, uint32_t tokens, const std::vector<uint8_t>& raw) {
  const Digest128 digest = Xxh3_128(raw);
  EncodedPage coded =
      *codec.Encode({.raw = raw, .tokens = tokens, .key = "key", .raw_digest = digest});
  PageToStore page{.raw_digest = digest, .raw_bytes = raw.size(), .tokens = tokens};
  page.header = coded.header_bytes;
  for (size_t i = 0; i < coded.segments.size(); ++i) {
    const SegmentInfo& segment = coded.header.segments[i];
    page.facts.push_back({.bytes = segment.bytes, .gain = segment.gain, .digest = segment.digest});
    page.bodies.push_back(SharedBytes::CopyOf(coded.segments[i].span()));
  }
  return page;
}

double Median(std::vector<double>& times) {
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

void BM_TenantPut(benchmark::State& state, bool served) {
  // As jemalloc in the server: large blocks are used again, and not faulted anew.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  KvSpec spec = SmallModelSpec(DType::kF16);
  const auto tokens = static_cast<uint32_t>(state.range(0));
  spec.page_tokens = tokens;
  const auto codec = *MakeCodec(*ParseRecipe("int8"), spec);
  const std::vector<uint8_t> raw = GaussianPage(spec);
  const PageToStore page = Coded(*codec, tokens, raw);
  uint64_t bytes = page.header.size();
  for (const SegmentFacts& facts : page.facts) bytes += facts.bytes;
  Tenants stores[] = {{1, bytes}, {kMany, bytes}};
  double grown[2];
  for (size_t s = 0; s < 2; ++s) {
    const size_t before = Allocated();
    for (uint64_t i = 0; i < 2 * kPagesHeld; ++i) stores[s].Put(page);
    grown[s] = static_cast<double>(Allocated() - before);
  }
  std::vector<double> times[2];
  for (auto _ : state) {
    for (size_t i = 0; i < 2; ++i) {
      const double begin = ThreadSeconds();
      if (served)
        benchmark::DoNotOptimize(Coded(*codec, tokens, std::vector<uint8_t>(raw)).raw_bytes);
      if (!stores[i].Put(page)) state.SkipWithError("is not stored");  // it shares its bytes
      times[i].push_back(ThreadSeconds() - begin);
    }
  }
  const double one = Median(times[0]), many = Median(times[1]);
  state.counters["us_one"] = one * 1e6;
  state.counters["us_many"] = many * 1e6;
  state.counters["many_of_one"] = many / one;
  state.counters["kib_a_tenant"] = (grown[1] - grown[0]) / kMany / 1024;
}
BENCHMARK_CAPTURE(BM_TenantPut, store, false)->Arg(16)->Iterations(20'000);
BENCHMARK_CAPTURE(BM_TenantPut, served, true)->Arg(16)->Arg(64)->Iterations(3'000);

}  // namespace
}  // namespace kvstow
