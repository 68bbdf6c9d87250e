// What this machine's memory and digests can do: the figures that every other one is read against.
#include <benchmark/benchmark.h>

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

}  // namespace
}  // namespace kvstow
