// What KV events cost a put: two stores in turn, one that publishes and one that does not. Pages
// are small, and the stores are full, so every put evicts a page.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/digest.h"
#include "kernels/device/device.h"
#include "service/events/event_publisher.h"
#include "storage/store/tiered_store.h"
#include "storage/tiers/memory_tier.h"

namespace kvstow {
namespace {

constexpr uint64_t kPageBytes = 4096, kBudget = uint64_t{32} << 20;
constexpr int kPuts = 2000;

std::unique_ptr<TieredStore> MakeStore(StoreObserver& observer) {
  TieredStoreOptions options;
  options.budget_bytes = {0, kBudget, 0};
  options.background = false;
  options.observer = &observer;
  TieredStoreParts parts;
  parts.tiers[1] = MakeMemoryTier(HostDevice());
  auto store = TieredStore::Open(options, std::move(parts));
  if (!store.ok()) std::abort();
  return *std::move(store);
}

// Returns the seconds of a put.
double PutMany(TieredStore& store, uint64_t& next, const SharedBytes& body) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kPuts; ++i) {
    const std::string key = "a block hash of 32 bytes " + std::to_string(++next);
    PageToStore page{.name = {.space = 1, .key = key},
                     .header = body.Slice(0, 64),
                     .raw_digest = Xxh3_128(AsBytes(key)),
                     .raw_bytes = kPageBytes,
                     .tokens = 64,
                     .whole = true,
                     .facts = {{.bytes = kPageBytes, .gain = 1, .digest = 1}},
                     .bodies = {body}};
    if (!store.Put(std::move(page)).ok()) std::abort();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / kPuts;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void PutBesideEvents(benchmark::State& state) {
  EventQueue queue;
  const auto plain = MakeStore(NoStoreObserver());
  const auto told = MakeStore(queue);
  auto publisher = EventPublisher::Start(
      {.listen = "127.0.0.1:0", .log = {.name = "bench"}}, queue,
      [](SpaceId) { return EventLog::Label{.model = "model"}; },
      [&] { told->residency().TellPages(queue); });
  if (!publisher.ok()) std::abort();
  const SharedBytes body = SharedBytes::Take(std::string(kPageBytes, 'x'));
  uint64_t next_plain = 0, next_told = 0;
  while (next_told < kBudget / kPageBytes) {
    PutMany(*plain, next_plain, body);
    PutMany(*told, next_told, body);
  }
  std::vector<double> without, with, ratios;
  for (auto _ : state) {
    without.push_back(PutMany(*plain, next_plain, body));
    with.push_back(PutMany(*told, next_told, body));
    ratios.push_back(with.back() / without.back());
  }
  state.counters["us_without"] = Median(without) * 1e6;
  state.counters["us_with"] = Median(with) * 1e6;
  state.counters["ratio"] = Median(ratios);
  state.counters["lost"] = static_cast<double>(queue.lost());
}
BENCHMARK(PutBesideEvents)->Iterations(200)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvstow
