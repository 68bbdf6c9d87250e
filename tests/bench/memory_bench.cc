// The rates of this machine's memory and digests. Every other figure is read against them.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <vector>

#include "base/digest.h"

namespace kvstow {
namespace {

// Bytes that are read and written once: from L2 cache, and from memory.
constexpr int64_t kInCache = 256 << 10;
constexpr int64_t kInMemory = 256 << 20;

void CountBytes(benchmark::State& state) {
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void BM_Memcpy(benchmark::State& state) {
  const std::vector<uint8_t> from(state.range(0), 1);
  std::vector<uint8_t> to(state.range(0), 2);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::ClobberMemory();
  }
  CountBytes(state);
}
BENCHMARK(BM_Memcpy)->Arg(kInCache)->Arg(kInMemory);

void BM_Xxh3(benchmark::State& state) {
  const std::vector<uint8_t> bytes(state.range(0), 1);
  for (auto _ : state) benchmark::DoNotOptimize(Xxh3(bytes));
  CountBytes(state);
}
BENCHMARK(BM_Xxh3)->Arg(kInCache)->Arg(kInMemory);

void BM_Xxh3Of128Bits(benchmark::State& state) {
  const std::vector<uint8_t> bytes(state.range(0), 1);
  for (auto _ : state) benchmark::DoNotOptimize(Xxh3_128(bytes));
  CountBytes(state);
}
BENCHMARK(BM_Xxh3Of128Bits)->Arg(kInCache)->Arg(kInMemory);

void BM_Sha256(benchmark::State& state) {
  const std::vector<uint8_t> bytes(state.range(0), 1);
  for (auto _ : state) benchmark::DoNotOptimize(Sha256(bytes));
  CountBytes(state);
}
BENCHMARK(BM_Sha256)->Arg(kInCache);

// The cost of checking a body's digest before its bytes go out in a get. The digest reads them from
// memory, so that the copy that follows finds them in a cache: `verify_us` a body is how much
// longer the two take than the copy alone, in turns.
void BM_Verify(benchmark::State& state) {
  using Clock = std::chrono::steady_clock;
  const size_t size = state.range(0), bodies = size_t{512 << 20} / size;
  const std::vector<uint8_t> bytes(bodies * size, 1);
  std::vector<uint8_t> to(size, 2);
  Clock::duration copied{}, verified{};
  int64_t pairs = 0;
  for (auto _ : state) {
    for (size_t i = 0; i + 1 < bodies; i += 2, ++pairs) {
      const uint8_t* const one = &bytes[i * size];
      const auto start = Clock::now();
      std::memcpy(to.data(), one, size);
      benchmark::ClobberMemory();
      const auto middle = Clock::now();
      benchmark::DoNotOptimize(Xxh3({one + size, size}));
      std::memcpy(to.data(), one + size, size);
      benchmark::ClobberMemory();
      copied += middle - start;
      verified += Clock::now() - middle;
    }
  }
  const auto micros = [&](Clock::duration sum) {
    return std::chrono::duration<double, std::micro>(sum).count() / static_cast<double>(pairs);
  };
  state.counters["copy_us"] = micros(copied);
  state.counters["verify_us"] = micros(verified - copied);
}
BENCHMARK(BM_Verify)->Arg(256 << 10)->Arg(1 << 20)->Arg(2 << 20)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvstow
