// Calibrated pages within a GPU's memory: 16 pages in a call, in GB/s of raw bytes, entropy coding
// on the host and the copies with it. `of_copy` is that rate over the rate at which the GPU copies
// the same bytes, taken in turns with it. Without a GPU each row says why there is no figure.
//
// Pages of SmolLM2-135M, Gaussian values, so a transform that finds nothing: 384 x 384 a layer, and
// more bytes to code than a model's pages have.
#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "kernels/calibration/calibration_fit.h"
#include "kernels/codec/calibration_store.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/device/device_joint_codec.h"
#include "kernels/device/device_kernels.h"
#include "kernels/methods/joint_fit.h"
#include "tests/bench/small_model_page.h"

namespace kvstow {
namespace {

constexpr uint32_t kPages = 16;

absl::StatusOr<std::string> Fit(const KvSpec& spec, const std::vector<uint8_t>& raw) {
  auto fit = StartJointFit(spec, {.layers_per_run = 1}, {});
  if (!fit.ok()) return fit.status();
  for (int pass = 0; pass < (*fit)->passes(); ++pass) {
    for (uint64_t page = 0; page < 4; ++page) {
      const absl::Status added =
          (*fit)->Add({.raw = raw, .tokens = kTokens, .first_position = (page + 1) * kTokens});
      if (!added.ok()) return added;
    }
    if (const absl::Status ended = (*fit)->EndPass(); !ended.ok()) return ended;
  }
  return (*fit)->Finish();
}

double Seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

absl::Status Measure(benchmark::State& state, bool decode) {
  const auto gpu = OpenCudaDevice(0);
  if (!gpu.ok()) return gpu.status();
  const KvSpec spec = SmallModelSpec(DType::kF16);
  const std::vector<uint8_t> raw = GaussianPage(spec);
  const auto blob = Fit(spec, raw);
  if (!blob.ok()) return blob.status();
  CalibrationStore store;
  if (const auto added = store.Add(AsBytes(*blob)); !added.ok()) return added.status();
  const auto codec =
      MakeDeviceJointCodec(**gpu, *ParseRecipe("kvstow-cal(run=1,step=0.5)"), spec, store);
  if (!codec.ok()) return codec.status();
  const auto copier = *(*gpu)->kernels().NewCodec(*ParseRecipe("raw"), spec);
  std::vector<std::shared_ptr<const DeviceBuffer>> from;
  std::vector<std::shared_ptr<DeviceBuffer>> to;
  std::vector<JointEncodeJob> encode;
  std::vector<EncodeJob> copy;
  for (uint32_t i = 0; i < kPages; ++i) {
    from.push_back(*(*gpu)->Store(SharedBytes::CopyOf(raw)));
    to.push_back(*(*gpu)->Allocate(raw.size()));
    encode.push_back({kTokens, uint64_t{i + 1} * kTokens, from[i].get()});
    copy.push_back({kTokens, from[i].get(), to[i].get()});
  }
  const auto coded = (*codec)->Encode(encode);
  if (!coded.ok()) return coded.status();
  std::vector<JointDecodeJob> back;
  for (uint32_t i = 0; i < kPages; ++i) {
    back.push_back({kTokens, encode[i].first_position, (*coded)[i].bodies, to[i].get()});
  }
  absl::Status status;
  double working = 0, copying = 0;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    status.Update(decode ? (*codec)->Decode(back) : (*codec)->Encode(encode).status());
    const auto middle = std::chrono::steady_clock::now();
    status.Update(copier->Encode(copy, false).status());
    copying += Seconds(std::chrono::steady_clock::now() - middle);
    working += Seconds(middle - begin);
    state.SetIterationTime(Seconds(middle - begin));
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kPages * raw.size()));
  state.counters["of_copy"] = copying / working;
  return status;
}

void BM_DeviceJoint(benchmark::State& state, bool decode) {
  const absl::Status status = Measure(state, decode);
  if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
}
BENCHMARK_CAPTURE(BM_DeviceJoint, encode, false)->UseManualTime();
BENCHMARK_CAPTURE(BM_DeviceJoint, decode, true)->UseManualTime();

}  // namespace
}  // namespace kvstow
