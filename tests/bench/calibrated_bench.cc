// Encoding and decoding calibrated pages by the processor: BM_Calibrated/WHAT/LAYERS PER RUN/WHAT
// THE CALIBRATION KNOWS (calibrated_page.h). `of_memcpy` is as in codec_bench.cc; `ratio` is raw
// bytes over stored ones.
#include <benchmark/benchmark.h>

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "tests/bench/calibrated_page.h"

namespace kvstow {
namespace {

constexpr uint64_t kPages = 8;

void BM_Calibrated(benchmark::State& state, bool decode, uint32_t layers_per_run, Knows knows) {
  CalibrationStore store;
  if (!store.Add(AsBytes(CalibrationOf(layers_per_run, knows))).ok()) {
    return state.SkipWithError("the calibration is refused");
  }
  const auto recipe =
      ParseRecipe(layers_per_run == 1 ? "kvstow-cal(run=1,step=3)" : "kvstow-cal(run=10,step=4)");
  const auto codec = *MakeCodec(*recipe, CalibratedSpec(), store);
  std::vector<std::vector<uint8_t>> raw;
  std::vector<EncodedPage> coded;
  for (uint64_t i = 1; i <= kPages; ++i) {
    raw.push_back(CalibratedPage(layers_per_run, knows, i * kTokens));
    coded.push_back(
        *codec->Encode({.raw = raw.back(), .tokens = kTokens, .first_position = i * kTokens}));
  }
  std::vector<uint8_t> to(raw[0].size());
  double working = 0, copying = 0;
  uint64_t i = 0;
  for (auto _ : state) {
    const uint64_t page = ++i % kPages;
    const double begin = ThreadSeconds();
    if (decode) {
      if (!DecodePage(coded[page].header, coded[page].segments, to, store).ok())
        state.SkipWithError("does not decode");
    } else {
      benchmark::DoNotOptimize(codec->Encode(
          {.raw = raw[page], .tokens = kTokens, .first_position = (page + 1) * kTokens}));
    }
    const double middle = ThreadSeconds();
    std::memcpy(to.data(), raw[(page + kPages / 2) % kPages].data(), to.size());
    benchmark::ClobberMemory();
    copying += ThreadSeconds() - middle;
    working += middle - begin;
    state.SetIterationTime(middle - begin);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(to.size()));
  state.counters["of_memcpy"] = copying / working;
  state.counters["ratio"] =
      static_cast<double>(to.size()) / static_cast<double>(coded[0].StoredBytes());
}

const int kRegistered = [] {
  const std::pair<Knows, const char*> kinds[] = {
      {Knows::kTransform, "transform"}, {Knows::kQueries, "queries"}, {Knows::kTokens, "tokens"}};
  for (const uint32_t run : {1, 10}) {
    for (const auto& [knows, name] : kinds) {
      for (const bool decode : {false, true}) {
        benchmark::RegisterBenchmark(
            absl::StrCat("BM_Calibrated/", decode ? "decode" : "encode", "/run:", run, "/", name)
                .c_str(),
            BM_Calibrated, decode, run, knows)
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
  return 0;
}();

}  // namespace
}  // namespace kvstow
