// Calibrated pages within a GPU's memory, in GB/s of raw bytes: 64 pages in a call, coded bytes on
// the host, so copies and the host's part count. `of_copy` is that rate over the rate at which the
// GPU copies the same bytes, taken in turns with it; `ratio` is raw bytes over coded ones. Without
// a GPU each row says why there is no figure. /threads: so many threads call at once. /knows: what
// the calibration has (Knows in calibrated_page.h): 0 a transform, 1 mean queries too, 2 also a
// vocabulary.
#include <benchmark/benchmark.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/device/device_joint_codec.h"
#include "kernels/device/device_kernels.h"
#include "tests/bench/calibrated_page.h"

namespace kvstow {
namespace {

constexpr uint32_t kPages = 64, kTexts = 4, kLayersPerRun = 10;

double Seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

// A GPU, a codec and its pages, made once.
struct Setup {
  std::unique_ptr<Device> gpu;
  KvSpec spec = CalibratedSpec();
  CalibrationStore store;
  std::unique_ptr<DeviceJointCodec> codec;
  std::unique_ptr<DeviceCodec> copier;
  std::vector<std::shared_ptr<const DeviceBuffer>> from;
  std::vector<JointEncodeJob> encode;
  std::vector<JointPage> coded;
  double ratio = 0;

  absl::Status Open(int64_t stream, Knows knows) {
    auto device = OpenCudaDevice(0);
    if (!device.ok()) return device.status();
    gpu = *std::move(device);
    if (auto added = store.Add(AsBytes(CalibrationOf(kLayersPerRun, knows))); !added.ok())
      return added.status();
    const auto recipe = ParseRecipe(absl::StrCat("kvstow-cal(run=10,step=4,stream=", stream, ")"));
    auto made = MakeDeviceJointCodec(*gpu, *recipe, spec, store);
    if (!made.ok()) return made.status();
    codec = *std::move(made);
    copier = *gpu->kernels().NewCodec(*ParseRecipe("raw"), spec);
    std::vector<SharedBytes> texts;
    for (uint64_t i = 0; i < kTexts; ++i)
      texts.push_back(SharedBytes::Take(CalibratedPage(kLayersPerRun, knows, (i + 1) * kTokens)));
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

absl::StatusOr<Setup*> Ready(int64_t stream, Knows knows) {
  static auto* const setups = new std::map<std::pair<int64_t, Knows>, std::unique_ptr<Setup>>;
  std::unique_ptr<Setup>& setup = (*setups)[{stream, knows}];
  if (setup != nullptr) return setup.get();
  setups->clear();  // one fits
  auto opened = std::make_unique<Setup>();
  if (const absl::Status status = opened->Open(stream, knows); !status.ok()) return status;
  return ((*setups)[{stream, knows}] = std::move(opened)).get();
}

// The buffers that one thread writes.
struct Room {
  std::vector<std::shared_ptr<DeviceBuffer>> to;
  std::vector<JointDecodeJob> decode;
  std::vector<EncodeJob> copy;

  explicit Room(const Setup& setup) {
    for (uint32_t i = 0; i < kPages; ++i) {
      to.push_back(*setup.gpu->Allocate(setup.from[i]->size()));
      decode.push_back({kTokens, setup.encode[i].first_position, setup.coded[i].bodies, to[i].get(),
                        setup.coded[i].token_ids});
      copy.push_back({kTokens, setup.from[i].get(), to[i].get()});
    }
  }
};

void BM_DeviceJoint(benchmark::State& state, bool decode) {
  const absl::StatusOr<Setup*> ready =
      Ready(state.range(0), Knows{static_cast<int>(state.range(2))});
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

void Register(bool decode, int64_t stream, int64_t threads, Knows knows) {
  benchmark::RegisterBenchmark(decode ? "BM_DeviceJoint/decode" : "BM_DeviceJoint/encode",
                               BM_DeviceJoint, decode)
      ->ArgNames({"stream", "threads", "knows"})
      ->Args({stream, threads, static_cast<int64_t>(knows)})
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

const int kRegistered = [] {
  for (const int64_t stream : {256, 64}) {
    for (const bool decode : {false, true}) {
      for (const int64_t threads : {1, 4}) Register(decode, stream, threads, Knows::kTransform);
    }
  }
  for (const int64_t threads : {1, 4}) {
    Register(false, 256, threads, Knows::kQueries);
    for (const bool decode : {false, true}) Register(decode, 256, threads, Knows::kTokens);
  }
  return 0;
}();

}  // namespace
}  // namespace kvstow
