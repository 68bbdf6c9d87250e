// The product of a page's vectors with a calibration's matrix, in 10^9 multiplications a second.
// `of_vectors` is the rate over that of F32 vectors (MultiplyRows), taken in turns with it. Both
// are times of this thread's processor.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "kernels/transform/dense_product.h"
#include "kernels/transform/tile_product.h"
#include "tests/bench/small_model_page.h"

namespace kvstow {
namespace {

void BM_TileProduct(benchmark::State& state) {
  constexpr size_t kRows = 256;
  const auto width = static_cast<size_t>(state.range(0)),
             rank = static_cast<size_t>(state.range(1));
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(kRows * width), row(rank), y(kRows * rank);
  for (float& v : x) v = normal(random);
  PackedMatrix m(width, rank);
  for (size_t i = 0; i < width; ++i) {
    for (float& v : row) v = normal(random);
    m.SetRow(i, row);
  }
  double tiles = 0, vectors = 0;
  for (auto _ : state) {
    const double begin = ThreadSeconds();
    MultiplyRowsInTiles(x.data(), kRows, width, m, {0, rank}, y.data(), rank);
    const double middle = ThreadSeconds();
    MultiplyRows(x.data(), kRows, m, {0, rank}, y.data(), rank);
    vectors += ThreadSeconds() - middle;
    tiles += middle - begin;
    state.SetIterationTime(middle - begin);
  }
  const double products =
      static_cast<double>(state.iterations()) * 1e-9 * kRows * static_cast<double>(width * rank);
  state.counters["products"] = products / tiles;
  state.counters["of_vectors"] = vectors / tiles;
  if (!HasTiles()) state.SetLabel("no AMX here: vectors twice");
}
// SmolLM2-135M, runs of 1 layer and of 10.
BENCHMARK(BM_TileProduct)->Args({384, 384})->Args({3840, 1920})->UseManualTime();

}  // namespace
}  // namespace kvstow
