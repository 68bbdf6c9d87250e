// Encoding and decoding, in GB/s of raw bytes. `of_memcpy` is that rate over the rate of a memcpy
// of the same number of bytes, taken in turns with it: the figure to compare across machines. Both
// are times of this thread's processor, so that a busy machine changes little.
//
// Pages are of SmolLM2-135M (30 layers, 3 KV heads of 64, 256 tokens, F16: 5.6 MiB). Unless a row
// says `cached`, they come from memory: the working set is 512 MiB, and each page is long gone from
// the caches when its turn comes again.
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
#include "kernels/codec/presets.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/methods/run_codec.h"
#include "kernels/quantize/loops.h"
#include "tests/bench/calibrated_page.h"
#include "tests/bench/small_model_page.h"

namespace kvstow {
namespace {

constexpr size_t kPages = (256 << 20) / (30 * 2 * kTokens * 3 * 64 * 2);

// Pages in memory to read from and to write to. All have the same content.
struct Memory {
  explicit Memory(const std::vector<uint8_t>& page) : from(kPages, page), to(kPages, page) {}
  std::vector<std::vector<uint8_t>> from, to;
};

// Times work(from, to) on page after page, and a memcpy of other pages in between. Where `cached`,
// it is always the same page, and many times at once.
template <typename F>
void AgainstMemcpy(benchmark::State& state, Memory& memory, bool cached, F work) {
  const size_t pages = cached ? 1 : kPages, times = cached ? 100 : 1;
  const size_t bytes = memory.from[0].size();
  double working = 0, copying = 0;
  size_t i = 0;
  for (auto _ : state) {
    ++i;
    const double begin = ThreadSeconds();
    for (size_t n = 0; n < times; ++n) work(memory.from[i % pages], memory.to[i % pages]);
    const double middle = ThreadSeconds();
    const size_t other = (i + kPages / 2) % pages;
    for (size_t n = 0; n < times; ++n) {
      std::memcpy(memory.to[other].data(), memory.from[other].data(), bytes);
      benchmark::ClobberMemory();
    }
    copying += ThreadSeconds() - middle;
    working += middle - begin;
    state.SetIterationTime(middle - begin);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * times * bytes));
  state.counters["of_memcpy"] = copying / working;
}

// A copy for each page, with bytes of its own: encoded pages are as cold as raw ones.
std::vector<std::vector<SharedBytes>> ColdCopies(const std::vector<SharedBytes>& segments) {
  std::vector<std::vector<SharedBytes>> copies(kPages);
  for (auto& copy : copies) {
    for (const SharedBytes& segment : segments) copy.push_back(SharedBytes::CopyOf(segment.span()));
  }
  return copies;
}

// A page of kTokens, and where it begins.
struct BenchPage {
  std::vector<uint8_t> raw;
  uint64_t first_position = 0;
};

// The whole of a codec: with digests, header, gains.
void TimeEncode(benchmark::State& state, const Codec& codec, const BenchPage& page) {
  Memory memory(page.raw);
  uint64_t stored = 0;
  AgainstMemcpy(state, memory, false, [&](const auto& from, const auto&) {
    stored = codec.Encode({.raw = from, .tokens = kTokens, .first_position = page.first_position})
                 ->StoredBytes();
  });
  state.counters["ratio"] = static_cast<double>(page.raw.size()) / static_cast<double>(stored);
}

void TimeDecode(benchmark::State& state, const Codec& codec, const BenchPage& page,
                const CalibrationStore& calibrations = NoCalibrations()) {
  Memory memory(page.raw);
  const EncodedPage coded =
      *codec.Encode({.raw = page.raw, .tokens = kTokens, .first_position = page.first_position});
  const auto copies = ColdCopies(coded.segments);
  size_t i = 0;
  AgainstMemcpy(state, memory, false, [&](const auto&, auto& to) {
    if (!DecodePage(coded.header, copies[++i % kPages], to, calibrations).ok())
      state.SkipWithError("does not decode");
  });
}

void BM_Encode(benchmark::State& state, absl::string_view recipe, DType dtype) {
  const KvSpec spec = SmallModelSpec(dtype);
  TimeEncode(state, **MakeCodec(*ParseRecipe(recipe), spec), {GaussianPage(spec)});
}

void BM_Decode(benchmark::State& state, absl::string_view recipe, DType dtype) {
  const KvSpec spec = SmallModelSpec(dtype);
  TimeDecode(state, **MakeCodec(*ParseRecipe(recipe), spec), {GaussianPage(spec)});
}

// Calibrated pages: BM_Calibrated/WHAT/LAYERS OF A RUN/WHAT THE CALIBRATION KNOWS.
void BM_Calibrated(benchmark::State& state, bool decode, uint32_t layers_per_run, Knows knows) {
  CalibrationStore store;
  if (!store.Add(AsBytes(CalibrationOf(layers_per_run, knows))).ok()) {
    return state.SkipWithError("the calibration is refused");
  }
  const auto recipe =
      ParseRecipe(layers_per_run == 1 ? "kvstow-cal(run=1,step=3)" : "kvstow-cal(run=10,step=4)");
  const auto codec = *MakeCodec(*recipe, CalibratedSpec(), store);
  const BenchPage page{CalibratedPage(layers_per_run, knows, kTokens), kTokens};
  decode ? TimeDecode(state, *codec, page, store) : TimeEncode(state, *codec, page);
}

// A run codec on all layers of a page: with gains, without digests and header. Decoding writes past
// the caches.
void BM_EncodeRun(benchmark::State& state, absl::string_view recipe) {
  const KvSpec spec = SmallModelSpec(DType::kF16);
  const auto codec = *MakeRunCodec(*ParseRecipe(recipe), spec, nullptr);
  Memory memory(GaussianPage(spec));
  AgainstMemcpy(state, memory, false, [&](const auto& from, const auto&) {
    if (!codec->Encode({{0, spec.layers}, kTokens}, from).ok()) state.SkipWithError("is not coded");
  });
}
BENCHMARK_CAPTURE(BM_EncodeRun, int8, "int8")->UseManualTime();
BENCHMARK_CAPTURE(BM_EncodeRun, hadamard4, "hadamard|affine(bits=4,group=64)")->UseManualTime();

void BM_DecodeRun(benchmark::State& state, absl::string_view recipe) {
  const KvSpec spec = SmallModelSpec(DType::kF16);
  const auto codec = *MakeRunCodec(*ParseRecipe(recipe), spec, nullptr);
  Memory memory(GaussianPage(spec));
  const Run run{{0, spec.layers}, kTokens};
  const std::vector<EncodedLevel> coded = *codec->Encode(run, memory.from[0]);
  std::vector<SharedBytes> levels;
  for (const EncodedLevel& level : coded) levels.push_back(level.body);
  const auto bodies = ColdCopies(levels);
  size_t i = 0;
  AgainstMemcpy(state, memory, false, [&](const auto&, auto& to) {
    if (!codec->Decode(run, bodies[++i % kPages], run.layers, to).ok()) {
      state.SkipWithError("does not decode");
    }
  });
}
BENCHMARK_CAPTURE(BM_DecodeRun, int8, "int8")->UseManualTime();
BENCHMARK_CAPTURE(BM_DecodeRun, hadamard4, "hadamard|affine(bits=4,group=64)")->UseManualTime();

// The kernel alone: values to scales and codes, in groups of 64. `cached`: 256 KiB of values.
void BM_QuantizeInt8(benchmark::State& state, bool cached) {
  KvSpec spec = SmallModelSpec(DType::kF16);
  if (cached) spec.layers = 1, spec.kv_heads = 4;
  Memory memory(GaussianPage(spec));
  const size_t values = memory.from[0].size() / 2;
  const AffineRaw groups{DType::kF16, values / 64, 64, 8};
  AgainstMemcpy(state, memory, cached, [&](const auto& from, auto& to) {
    uint8_t *const steps = to.data(), *const minima = steps + 2 * groups.groups;
    if (!AffineRawLoops::Best().encode(groups, from.data(), steps, minima,
                                       minima + 2 * groups.groups)) {
      state.SkipWithError("is not coded");
    }
  });
}
BENCHMARK_CAPTURE(BM_QuantizeInt8, memory, false)->UseManualTime();
BENCHMARK_CAPTURE(BM_QuantizeInt8, cached, true)->UseManualTime();

void Register(absl::string_view recipe, DType dtype, absl::string_view suffix) {
  const auto one = [&](absl::string_view what, auto function) {
    benchmark::RegisterBenchmark(absl::StrCat(what, "/", recipe, suffix).c_str(), function, recipe,
                                 dtype)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  };
  one("BM_Encode", BM_Encode);
  one("BM_Decode", BM_Decode);
}

void RegisterCalibrated(uint32_t layers_per_run, Knows knows, absl::string_view name) {
  for (const bool decode : {false, true}) {
    benchmark::RegisterBenchmark(absl::StrCat("BM_Calibrated/", decode ? "decode" : "encode",
                                              "/run:", layers_per_run, "/", name)
                                     .c_str(),
                                 BM_Calibrated, decode, layers_per_run, knows)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
}

const int kRegistered = [] {
  for (const Preset& preset : CodecPresets()) {
    if (preset.needs == "calibration") continue;  // BM_Calibrated
    Register(preset.name, DType::kF16, "");
  }
  Register("lossless", DType::kBF16, "/bf16");
  for (const uint32_t run : {1, 10}) {
    RegisterCalibrated(run, Knows::kTransform, "transform");
    RegisterCalibrated(run, Knows::kQueries, "queries");
    RegisterCalibrated(run, Knows::kTokens, "tokens");
  }
  return 0;
}();

}  // namespace
}  // namespace kvstow
