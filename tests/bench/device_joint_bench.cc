// Calibrated pages within a GPU's memory, in GB/s of raw bytes: 64 pages in a call, coded bytes on
// the host, so copies and the host's part count. `of_copy` is that rate over the rate at which the
// GPU copies the same bytes, taken in turns with it; `ratio` is raw bytes over coded ones. Without
// a GPU each row says why there is no figure. /threads: so many threads call at once. /asks: pages
// ask (importance/foretold_attention.h) and have step classes.
//
// Pages have the shape of SmolLM2-135M, and coefficients that are Gaussian with the spreads that
// its calibrations of ten layers have, so that the entropy coder has as much to do as on text.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "kernels/calibration/calibration.h"
#include "kernels/calibration/query_means.h"
#include "kernels/codec/calibrate.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/device/device_joint_codec.h"
#include "kernels/device/device_kernels.h"
#include "kernels/methods/joint_vectors.h"
#include "kernels/page/half.h"
#include "tests/bench/small_model_page.h"

namespace kvstow {
namespace {

constexpr uint32_t kPages = 64, kTexts = 4, kLayersPerRun = 10, kRank = 2800;

KvSpec Spec() {
  KvSpec spec = SmallModelSpec(DType::kF16);
  spec.rope.layout = RopeSpec::Layout::kHalf;
  return spec;
}

float Spread(size_t coefficient) {
  const auto i = static_cast<float>(coefficient);
  return 90 / std::sqrt(1 + i) * std::exp(-i / 1350);
}

// Mean queries of two heads a KV head in every third layer.
std::string WithQueries(const KvSpec& spec, const std::string& blob) {
  QueryMeans queries;
  queries.heads = 2 * spec.kv_heads;
  for (uint32_t layer = 1; layer < spec.layers; layer += 3) {
    std::vector<float> means = GaussianValues(size_t{queries.heads} * spec.head_dim_k);
    for (float& x : means) x *= 1e-2f;
    queries.layers.push_back({layer, std::move(means)});
  }
  return *WithSection(AsBytes(blob), *QueryMeansSection(ShapeFor(spec, kLayersPerRun), queries));
}

// Coefficient i is value i of a vector. Step classes are all the usual one unless attention makes
// others.
std::string Calibrate(const KvSpec& spec, bool asks) {
  CalibrationData data{.shape = ShapeFor(spec, kLayersPerRun), .tables = UniversalPlaneTables()};
  for (uint32_t r = 0; r < data.shape.runs(); ++r) {
    const size_t width = data.shape.WidthOfRun(r);
    CalibratedRunData& run = data.runs.emplace_back();
    run.mean.resize(width);
    run.encode_scales.assign(kRank, 1), run.decode_scales.assign(kRank, 1);
    run.encode_halves.resize(kRank * width);
    for (size_t i = 0; i < kRank; ++i) {
      run.sigma.push_back(Spread(i));
      run.encode_halves[i * width + i] = FloatToHalf(1);
    }
    run.decode_halves = run.encode_halves;
    if (asks) run.importance.weights.resize(ImportanceWeights(kRank));
  }
  const std::string blob = SerializeCalibration(data);
  return asks ? WithQueries(spec, blob) : blob;
}

std::vector<uint8_t> Page(const KvSpec& spec, uint64_t first_position) {
  std::vector<uint8_t> raw;
  std::vector<float> values = GaussianValues(PageBytes(spec, kTokens) / 2 + first_position);
  values.erase(values.begin(), values.begin() + static_cast<ptrdiff_t>(first_position));
  const float* next = values.data();
  raw.resize(PageBytes(spec, kTokens));
  for (uint32_t first = 0; first < spec.layers; first += kLayersPerRun) {
    const JointVectors vectors(spec, {{first, kLayersPerRun}, kTokens, first_position});
    std::vector<float> x(next, next + kTokens * vectors.width());
    next += x.size();
    for (size_t i = 0; i < x.size(); ++i) x[i] *= Spread(i % vectors.width());
    const size_t layer = LayerBytes(spec, kTokens);
    vectors.Scatter(x.data(), {0, kTokens},
                    std::span(raw).subspan(first * layer, kLayersPerRun * layer));
  }
  return raw;
}

double Seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

// A GPU, a codec and its pages, made once.
struct Setup {
  std::unique_ptr<Device> gpu;
  KvSpec spec = Spec();
  CalibrationStore store;
  std::unique_ptr<DeviceJointCodec> codec;
  std::unique_ptr<DeviceCodec> copier;
  std::vector<std::shared_ptr<const DeviceBuffer>> from;
  std::vector<JointEncodeJob> encode;
  std::vector<JointPage> coded;
  double ratio = 0;

  absl::Status Open(int64_t stream, bool asks) {
    auto device = OpenCudaDevice(0);
    if (!device.ok()) return device.status();
    gpu = *std::move(device);
    if (auto added = store.Add(AsBytes(Calibrate(spec, asks))); !added.ok()) return added.status();
    const auto recipe = ParseRecipe(absl::StrCat("kvstow-cal(run=10,step=4,stream=", stream, ")"));
    auto made = MakeDeviceJointCodec(*gpu, *recipe, spec, store);
    if (!made.ok()) return made.status();
    codec = *std::move(made);
    copier = *gpu->kernels().NewCodec(*ParseRecipe("raw"), spec);
    std::vector<SharedBytes> texts;
    for (uint64_t i = 0; i < kTexts; ++i)
      texts.push_back(SharedBytes::Take(Page(spec, (i + 1) * kTokens)));
    for (uint32_t i = 0; i < kPages; ++i) {
      auto stored = gpu->Store(texts[i % kTexts]);
      if (!stored.ok()) return stored.status();
      from.push_back(*std::move(stored));
      encode.push_back({kTokens, uint64_t{i % kTexts + 1} * kTokens, from[i].get()});
    }
    auto pages = codec->Encode(encode);
    if (!pages.ok()) return pages.status();
    coded = *std::move(pages);
    size_t bytes = 0;
    for (const JointPage& page : coded) {
      if (!page.coded) return absl::InternalError("a page was left to the CPU");
      for (const SegmentInfo& segment : page.segments) bytes += segment.bytes;
    }
    ratio = static_cast<double>(kPages * PageBytes(spec, kTokens)) / static_cast<double>(bytes);
    return absl::OkStatus();
  }
};

absl::StatusOr<Setup*> Ready(int64_t stream, bool asks) {
  static auto* const setups = new std::map<std::pair<int64_t, bool>, std::unique_ptr<Setup>>;
  std::unique_ptr<Setup>& setup = (*setups)[{stream, asks}];
  if (setup != nullptr) return setup.get();
  setups->clear();  // one fits
  auto opened = std::make_unique<Setup>();
  if (const absl::Status status = opened->Open(stream, asks); !status.ok()) return status;
  return ((*setups)[{stream, asks}] = std::move(opened)).get();
}

// The buffers that one thread writes.
struct Room {
  std::vector<std::shared_ptr<DeviceBuffer>> to;
  std::vector<JointDecodeJob> decode;
  std::vector<EncodeJob> copy;

  explicit Room(const Setup& setup) {
    for (uint32_t i = 0; i < kPages; ++i) {
      to.push_back(*setup.gpu->Allocate(setup.from[i]->size()));
      decode.push_back(
          {kTokens, setup.encode[i].first_position, setup.coded[i].bodies, to[i].get()});
      copy.push_back({kTokens, setup.from[i].get(), to[i].get()});
    }
  }
};

void BM_DeviceJoint(benchmark::State& state, bool decode) {
  const absl::StatusOr<Setup*> ready = Ready(state.range(0), state.range(2) != 0);
  if (!ready.ok()) return state.SkipWithError(std::string(ready.status().message()).c_str());
  Setup& setup = **ready;
  const auto threads = static_cast<size_t>(state.range(1));
  std::vector<Room> rooms;
  for (size_t i = 0; i < threads; ++i) rooms.emplace_back(setup);
  std::vector<absl::Status> status(threads);
  const auto work = [&](size_t i) {
    status[i].Update(decode ? setup.codec->Decode(rooms[i].decode)
                            : setup.codec->Encode(setup.encode).status());
  };
  work(0);
  double working = 0, copying = 0;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> others;
    for (size_t i = 1; i < threads; ++i) others.emplace_back(work, i);
    work(0);
    for (std::thread& other : others) other.join();
    const auto middle = std::chrono::steady_clock::now();
    status[0].Update(setup.copier->Encode(rooms[0].copy, false).status());
    copying += Seconds(std::chrono::steady_clock::now() - middle) * static_cast<double>(threads);
    working += Seconds(middle - begin);
    state.SetIterationTime(Seconds(middle - begin));
  }
  for (const absl::Status& one : status) {
    if (!one.ok()) return state.SkipWithError(std::string(one.message()).c_str());
  }
  state.SetBytesProcessed(state.iterations() *
                          static_cast<int64_t>(threads * kPages * PageBytes(setup.spec, kTokens)));
  state.counters["of_copy"] = copying / working;
  state.counters["ratio"] = setup.ratio;
}

void Register(bool decode, int64_t stream, int64_t threads, bool asks) {
  benchmark::RegisterBenchmark(decode ? "BM_DeviceJoint/decode" : "BM_DeviceJoint/encode",
                               BM_DeviceJoint, decode)
      ->ArgNames({"stream", "threads", "asks"})
      ->Args({stream, threads, asks})
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

const int kRegistered = [] {
  for (const int64_t stream : {256, 64}) {
    for (const bool decode : {false, true}) {
      for (const int64_t threads : {1, 4}) Register(decode, stream, threads, false);
    }
  }
  for (const int64_t threads : {1, 4}) Register(false, 256, threads, true);
  return 0;
}();

}  // namespace
}  // namespace kvstow
