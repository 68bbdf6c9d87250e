// The plane coder's loops, in symbols a second, and htscodecs' 32-way rANS on the same symbols: the
// magnitudes of one row of tables with their signs, a byte each.
#include <benchmark/benchmark.h>
#include <htscodecs/rANS_static4x16.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include "kernels/entropy/plane_loops.h"

namespace kvstow {
namespace {

constexpr uint32_t kStreams = 2, kTokens = 128, kWidth = 1024;  // tokens of a stream
constexpr uint32_t kSymbols = kStreams * kTokens * kWidth;

struct Symbols {
  std::vector<int16_t> rows;
  std::vector<int32_t> q;
  std::vector<uint8_t> bytes;

  PlaneStream Stream(uint32_t levels) const {
    return {.rows = rows,
            .tables = &UniversalPlaneTables(),
            .lookups = &PlaneLookups::Universal(),
            .levels = levels,
            .tokens = kTokens,
            .stride = kStreams * kTokens};
  }
};

// Gaussian, of `sigma` base steps.
Symbols MakeSymbols(double sigma, uint32_t levels) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  Symbols s;
  s.rows.assign(kWidth, static_cast<int16_t>(kPlaneUnitRow + std::lround(4 * std::log2(sigma))));
  for (uint32_t k = 0; k < kSymbols; ++k) {
    s.q.push_back(static_cast<int32_t>(normal(random) * sigma * (1 << (levels - 1))));
    s.bytes.push_back(static_cast<uint8_t>(128 + std::clamp(s.q.back(), -128, 127)));
  }
  return s;
}

void Report(benchmark::State& state, uint32_t levels, size_t bytes) {
  state.SetItemsProcessed(state.iterations() * kSymbols * levels);
  state.counters["bits"] = 8.0 * static_cast<double>(bytes) / kSymbols;
}

using Words = std::vector<std::vector<uint16_t>>;  // of a stream's levels

// The two streams side by side, as the coder does.
std::array<Words, kStreams> Encoded(const Symbols& s, uint32_t levels) {
  std::array<std::vector<RansEncoder>, kStreams> encoders;
  for (auto& of_levels : encoders) of_levels.resize(levels);
  const PlaneEncoding other{s.Stream(levels), s.q.data() + kTokens, encoders[1]};
  PlaneEncodeLoops::Best().encode({s.Stream(levels), s.q.data(), encoders[0]}, &other);
  std::array<Words, kStreams> words;
  for (size_t w = 0; w < kStreams; ++w) {
    words[w].resize(levels);
    for (uint32_t level = 0; level < levels; ++level) encoders[w][level].Finish(words[w][level]);
  }
  return words;
}

size_t Bytes(const std::array<Words, kStreams>& words) {
  size_t bytes = 0;
  for (const Words& stream : words) {
    for (const auto& level : stream) bytes += 2 * level.size();
  }
  return bytes;
}

void BM_PlanesEncode(benchmark::State& state) {
  const auto levels = static_cast<uint32_t>(state.range(1));
  const Symbols s = MakeSymbols(static_cast<double>(state.range(0)) / 100, levels);
  size_t bytes = 0;
  for (auto _ : state) bytes = Bytes(Encoded(s, levels));
  Report(state, levels, bytes);
}

void BM_PlanesDecode(benchmark::State& state) {
  const auto levels = static_cast<uint32_t>(state.range(1));
  const Symbols s = MakeSymbols(static_cast<double>(state.range(0)) / 100, levels);
  const std::array<Words, kStreams> words = Encoded(s, levels);
  std::vector<int32_t> got(s.q.size());
  for (auto _ : state) {
    std::array<std::vector<RansDecoder>, kStreams> decoders;
    for (size_t w = 0; w < kStreams; ++w) {
      for (const auto& level : words[w])
        decoders[w].emplace_back(
            std::span(reinterpret_cast<const uint8_t*>(level.data()), 2 * level.size()));
    }
    const PlaneDecoding other{s.Stream(levels), decoders[1], got.data() + kTokens};
    if (!PlaneDecodeLoops::Best().decode({s.Stream(levels), decoders[0], got.data()}, &other))
      state.SkipWithError("does not decode");
  }
  if (got != s.q) state.SkipWithError("decodes to something else");
  Report(state, levels, Bytes(words));
}

void BM_HtscodecsEncode(benchmark::State& state) {
  Symbols s = MakeSymbols(static_cast<double>(state.range(0)) / 100, 1);
  const auto size = static_cast<unsigned>(s.bytes.size());
  std::vector<uint8_t> out(rans_compress_bound_4x16(size, RANS_ORDER_X32));
  unsigned bytes = 0;
  for (auto _ : state) {
    bytes = static_cast<unsigned>(out.size());
    rans_compress_to_4x16(s.bytes.data(), size, out.data(), &bytes, RANS_ORDER_X32);
  }
  Report(state, 1, bytes);
}

void BM_HtscodecsDecode(benchmark::State& state) {
  Symbols s = MakeSymbols(static_cast<double>(state.range(0)) / 100, 1);
  const auto size = static_cast<unsigned>(s.bytes.size());
  std::vector<uint8_t> out(rans_compress_bound_4x16(size, RANS_ORDER_X32)), got(size);
  auto bytes = static_cast<unsigned>(out.size());
  rans_compress_to_4x16(s.bytes.data(), size, out.data(), &bytes, RANS_ORDER_X32);
  for (auto _ : state) {
    unsigned count = size;
    rans_uncompress_to_4x16(out.data(), bytes, got.data(), &count);
  }
  if (got != s.bytes) state.SkipWithError("decodes to something else");
  Report(state, 1, bytes);
}

// Spread in hundredths of a base step, levels.
BENCHMARK(BM_PlanesEncode)->Args({25, 1})->Args({100, 1})->Args({300, 1})->Args({50, 3});
BENCHMARK(BM_PlanesDecode)->Args({25, 1})->Args({100, 1})->Args({300, 1})->Args({50, 3});
BENCHMARK(BM_HtscodecsEncode)->Arg(25)->Arg(100)->Arg(300);
BENCHMARK(BM_HtscodecsDecode)->Arg(25)->Arg(100)->Arg(300);

}  // namespace
}  // namespace kvstow
