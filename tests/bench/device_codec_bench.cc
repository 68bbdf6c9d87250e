// Codecs within a GPU's memory: 64 pages in a call, in GB/s of raw bytes. `of_copy` is that rate
// over the rate at which the GPU copies the same pages one by one (the recipe `raw`), `of_memcpy`
// over that of one copy of as many bytes, which is the most that the GPU's memory gives. All three
// are taken in turns. Without a GPU each row says why there is no figure.
//
// Pages of 64 tokens of a model with 32 layers and 8 KV heads of 128 (8 MiB each); with gains as a
// put needs them, and without.
#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/codec/parse_recipe.h"
#include "kernels/device/device_kernels.h"
#include "kernels/page/convert.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {
namespace {

constexpr uint32_t kTokens = 64, kPages = 64;

KvSpec Spec(uint32_t page_tokens = kTokens) {
  KvSpec spec;
  spec.layers = 32;
  spec.kv_heads = 8;
  spec.head_dim_k = spec.head_dim_v = 128;
  spec.page_tokens = page_tokens;
  return spec;
}

const absl::StatusOr<std::unique_ptr<Device>>& Gpu() {
  static const auto* const gpu = new absl::StatusOr<std::unique_ptr<Device>>(OpenCudaDevice(0));
  return *gpu;
}

std::vector<uint8_t> GaussianPage() {
  std::vector<float> values(PageBytes(Spec(), kTokens) / 2);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
  std::vector<uint8_t> raw(2 * values.size());
  StoreFloats(DType::kF16, values.data(), values.size(), raw.data());
  return raw;
}

// The pages of a call and the buffers of both forms.
struct Pages {
  std::vector<std::shared_ptr<const DeviceBuffer>> raw;
  std::vector<std::shared_ptr<DeviceBuffer>> coded, back;
  std::vector<EncodeJob> encode;
  std::vector<DecodeJob> decode;

  Pages(Device& gpu, const DeviceCodec& codec) {
    const SharedBytes bytes = SharedBytes::Take(GaussianPage());
    for (uint32_t i = 0; i < kPages; ++i) {
      raw.push_back(*gpu.Store(bytes));
      coded.push_back(*gpu.Allocate(codec.CodedBytes(kTokens)));
      back.push_back(*gpu.Allocate(bytes.size()));
      encode.push_back({kTokens, raw[i].get(), coded[i].get()});
      decode.push_back({kTokens, codec.levels(), coded[i].get(), back[i].get()});
    }
  }
};

// One page with the bytes of all pages of a call: the recipe `raw` codes it by one copy.
struct BigCopy {
  std::unique_ptr<DeviceCodec> codec;
  std::shared_ptr<DeviceBuffer> from, to;
  EncodeJob job;

  explicit BigCopy(Device& gpu) {
    constexpr uint32_t kAllTokens = kTokens * kPages;
    codec = *gpu.kernels().NewCodec(*ParseRecipe("raw"), Spec(kAllTokens));
    from = *gpu.Allocate(codec->CodedBytes(kAllTokens));
    to = *gpu.Allocate(codec->CodedBytes(kAllTokens));
    job = {kAllTokens, from.get(), to.get()};
  }
  absl::Status Do() const { return codec->Encode({&job, 1}, false).status(); }
};

double Seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

enum class Work { kEncode, kEncodeWithGains, kDecode };

absl::Status Do(Work work, DeviceCodec& codec, const Pages& pages) {
  if (work == Work::kDecode) return codec.Decode(pages.decode);
  return codec.Encode(pages.encode, work == Work::kEncodeWithGains).status();
}

void BM_Device(benchmark::State& state, const std::string& recipe, Work work) {
  if (!Gpu().ok()) return state.SkipWithError(std::string(Gpu().status().message()).c_str());
  Device& gpu = **Gpu();
  const auto codec = *gpu.kernels().NewCodec(*ParseRecipe(recipe), Spec());
  const auto copier = *gpu.kernels().NewCodec(*ParseRecipe("raw"), Spec());
  const Pages pages(gpu, *codec), copies(gpu, *copier);
  const BigCopy big(gpu);
  // Something to decode, and every kernel loaded.
  absl::Status status = Do(Work::kEncode, *codec, pages);
  status.Update(big.Do());
  status.Update(Do(work, *codec, pages));
  double working = 0, copying = 0, memcpying = 0;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    status.Update(Do(work, *codec, pages));
    const auto middle = std::chrono::steady_clock::now();
    status.Update(Do(Work::kEncode, *copier, copies));
    const auto copied = std::chrono::steady_clock::now();
    status.Update(big.Do());
    memcpying += Seconds(std::chrono::steady_clock::now() - copied);
    copying += Seconds(copied - middle);
    working += Seconds(middle - begin);
    state.SetIterationTime(Seconds(middle - begin));
  }
  if (!status.ok()) return state.SkipWithError(std::string(status.message()).c_str());
  state.SetBytesProcessed(state.iterations() *
                          static_cast<int64_t>(kPages * PageBytes(Spec(), kTokens)));
  state.counters["of_copy"] = copying / working;
  state.counters["of_memcpy"] = memcpying / working;
}

const int kRegistered = [] {
  for (const std::string recipe :
       {"int8", "int4", "quarot", "turboquant4", "rotated8", "kivi4", "fp8"}) {
    const std::pair<const char*, Work> rows[] = {{"BM_DeviceEncode/", Work::kEncode},
                                                 {"BM_DeviceEncodeGains/", Work::kEncodeWithGains},
                                                 {"BM_DeviceDecode/", Work::kDecode}};
    for (const auto& [name, work] : rows) {
      benchmark::RegisterBenchmark((name + recipe).c_str(), BM_Device, recipe, work)
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
  return 0;
}();

}  // namespace
}  // namespace kvstow
