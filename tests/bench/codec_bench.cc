// Encoding and decoding one page of SmolLM2-135M (30 layers, 3 KV heads of 64, 256 tokens, F16) in
// GB/s of raw bytes. `of_memcpy` is that rate over the rate of a memcpy of the same bytes, taken in
// turns with it: the figure to compare across machines.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/codec.h"
#include "kernels/convert.h"

namespace kvstow {
namespace {

constexpr uint32_t kTokens = 256;

KvSpec Spec(DType dtype) {
  KvSpec spec;
  spec.dtype = dtype;
  spec.layers = 30;
  spec.kv_heads = 3;
  spec.head_dim_k = spec.head_dim_v = 64;
  spec.page_tokens = kTokens;
  return spec;
}

std::vector<uint8_t> GaussianPage(DType dtype) {
  std::vector<uint8_t> raw(PageBytes(Spec(dtype), kTokens));
  std::vector<float> values(raw.size() / DTypeBytes(dtype));
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
  StoreFloats(dtype, values.data(), values.size(), raw.data());
  return raw;
}

double Seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

// Times `work` on `raw`, and a memcpy of it in between.
template <typename F>
void AgainstMemcpy(benchmark::State& state, const std::vector<uint8_t>& raw, F work) {
  std::vector<uint8_t> copy(raw.size());
  double working = 0, copying = 0;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const auto middle = std::chrono::steady_clock::now();
    std::memcpy(copy.data(), raw.data(), raw.size());
    benchmark::ClobberMemory();
    copying += Seconds(std::chrono::steady_clock::now() - middle);
    working += Seconds(middle - begin);
    state.SetIterationTime(Seconds(middle - begin));
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(raw.size()));
  state.counters["of_memcpy"] = copying / working;
}

void BM_Encode(benchmark::State& state, absl::string_view recipe, DType dtype) {
  const auto codec = *MakeCodec(*Recipe::Parse(recipe), Spec(dtype));
  const std::vector<uint8_t> raw = GaussianPage(dtype);
  uint64_t stored = 0;
  AgainstMemcpy(state, raw,
                [&] { stored = codec->Encode({.raw = raw, .tokens = kTokens})->StoredBytes(); });
  state.counters["ratio"] = static_cast<double>(raw.size()) / static_cast<double>(stored);
}

void BM_Decode(benchmark::State& state, absl::string_view recipe, DType dtype) {
  const auto codec = *MakeCodec(*Recipe::Parse(recipe), Spec(dtype));
  const std::vector<uint8_t> raw = GaussianPage(dtype);
  const EncodedPage page = *codec->Encode({.raw = raw, .tokens = kTokens});
  std::vector<uint8_t> out(raw.size());
  AgainstMemcpy(state, raw, [&] {
    if (!DecodePage(page.header, page.segments, out).ok()) state.SkipWithError("does not decode");
  });
}

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

const int kRegistered = [] {
  for (const Preset& preset : Presets()) {
    if (preset.needs == "calibration") continue;  // none is at hand
    Register(preset.name, DType::kF16, "");
  }
  Register("lossless", DType::kBF16, "/bf16");
  return 0;
}();

}  // namespace
}  // namespace kvstow
