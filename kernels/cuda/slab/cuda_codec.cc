#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/cuda_buffer.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_scratch.h"
#include "kernels/cuda/slab/launch.h"
#include "kernels/device/batches.h"
#include "kernels/device/device_layout.h"

namespace kvstow {
namespace {

using gpu::Batch;
using gpu::Launch;

uint8_t* DataOf(const DeviceBuffer* buffer) {
  return static_cast<const CudaBuffer*>(buffer)->data();
}

// The part that both kinds of codec share.
class CudaCodec : public DeviceCodec {
 public:
  CudaCodec(DeviceLayout layout, const CudaContext& context)
      : layout_(std::move(layout)), context_(context) {}

  const std::string& pipeline() const override { return layout_.pipeline(); }
  uint32_t levels() const override { return layout_.levels(); }
  std::vector<SegmentInfo> Segments(uint32_t tokens) const override {
    return layout_.Segments(tokens);
  }

 protected:
  template <typename Job>
  absl::Status Check(std::span<const Job> pages) const {
    return layout_.Check(pages, [&](const DeviceBuffer& buffer) {
      const auto* cuda = dynamic_cast<const CudaBuffer*>(&buffer);
      return cuda != nullptr && cuda->ordinal() == context_.gpu.ordinal();
    });
  }

  const DeviceLayout layout_;
  const CudaContext context_;
};

// `raw`: copies within the GPU.
class CudaRawCodec final : public CudaCodec {
 public:
  using CudaCodec::CudaCodec;

  absl::StatusOr<std::vector<PageCoding>> Encode(std::span<const EncodeJob> pages,
                                                 bool want_gains) override {
    KVSTOW_RETURN_IF_ERROR(Check(pages));
    const OnGpu current(context_.gpu);
    KVSTOW_RETURN_IF_ERROR(current.status());
    KVSTOW_RETURN_IF_ERROR(CopyAll(pages, [](const EncodeJob& page) {
      return std::pair(DataOf(page.raw), DataOf(page.coded));
    }));
    std::vector<PageCoding> codings;
    const KvSpec& spec = layout_.spec();
    for (const EncodeJob& page : pages) {
      PageCoding& coding = codings.emplace_back(PageCoding{.coded = true});
      if (!want_gains) continue;
      const std::vector<double> gains(spec.layers * (spec.head_dim_v > 0 ? 2 : 1), page.tokens);
      coding.gains = layout_.GainsOfSegments(page.tokens, gains);
    }
    return codings;
  }

  absl::Status Decode(std::span<const DecodeJob> pages) override {
    KVSTOW_RETURN_IF_ERROR(Check(pages));
    const OnGpu current(context_.gpu);
    KVSTOW_RETURN_IF_ERROR(current.status());
    return CopyAll(pages, [](const DecodeJob& page) {
      return std::pair(DataOf(page.coded), DataOf(page.raw));
    });
  }

 private:
  template <typename Job, typename F>
  absl::Status CopyAll(std::span<const Job> pages, F from_to) const {
    const Lanes::Hold lane(context_.lanes);
    cudaError_t code = cudaSuccess;
    for (const Job& page : pages) {
      const auto [from, to] = from_to(page);
      code = cudaMemcpyAsync(to, from, PageBytes(layout_.spec(), page.tokens),
                             cudaMemcpyDeviceToDevice, lane->stream());
      if (code != cudaSuccess) break;
    }
    return lane->Drain(code, "copying within the GPU");
  }
};

class CudaSlabCodec final : public CudaCodec {
 public:
  using CudaCodec::CudaCodec;

  absl::StatusOr<std::vector<PageCoding>> Encode(std::span<const EncodeJob> pages,
                                                 bool want_gains) override {
    KVSTOW_RETURN_IF_ERROR(Check(pages));
    const OnGpu current(context_.gpu);
    KVSTOW_RETURN_IF_ERROR(current.status());
    const Lanes::Hold lane(context_.lanes);
    std::vector<PageCoding> codings(pages.size());
    for (const Batch& batch : gpu::BatchesOf(pages)) {
      KVSTOW_RETURN_IF_ERROR(EncodeBatch(pages, batch, want_gains, *lane, codings));
    }
    return codings;
  }

  absl::Status Decode(std::span<const DecodeJob> pages) override {
    KVSTOW_RETURN_IF_ERROR(Check(pages));
    const OnGpu current(context_.gpu);
    KVSTOW_RETURN_IF_ERROR(current.status());
    const Lanes::Hold lane(context_.lanes);
    for (const Batch& batch : gpu::BatchesOf(pages)) {
      KVSTOW_RETURN_IF_ERROR(DecodeBatch(pages, batch, *lane));
    }
    return absl::OkStatus();
  }

 private:
  template <typename Job>
  Launch LaunchOf(std::span<const Job> pages, const Batch& batch) const {
    Launch launch;
    launch.ops = layout_.plan()->ops();
    launch.layout = layout_.plan()->LayoutOf(pages[batch[0]].tokens);
    for (const size_t i : batch) {
      launch.page[launch.pages++] = {DataOf(pages[i].raw), DataOf(pages[i].coded)};
    }
    return launch;
  }

  // Scratch memory: totals, one word a page that says that it was refused, partial sums. The first
  // two come back to the host.
  absl::Status EncodeBatch(std::span<const EncodeJob> pages, const Batch& batch, bool want_gains,
                           Lane& lane, std::vector<PageCoding>& codings) const {
    Launch launch = LaunchOf(pages, batch);
    const gpu::PageLayout& layout = launch.layout;
    const size_t page_totals = want_gains ? layout.slabs() * (levels() + 1) : 0;
    const size_t totals = batch.size() * page_totals;
    const size_t partials =
        want_gains ? batch.size() * layout.layers * layout.layer_partials(levels()) : 0;
    const size_t answer = totals * sizeof(double) + batch.size() * sizeof(uint32_t);
    const size_t partials_at = (answer + 15) / 16 * 16;
    Scratch scratch;
    KVSTOW_RETURN_IF_ERROR(
        scratch.Open(context_, lane.stream(), partials_at + partials * sizeof(float)));
    launch.refused = reinterpret_cast<uint32_t*>(scratch.data() + totals * sizeof(double));
    if (want_gains) {
      launch.totals = reinterpret_cast<double*>(scratch.data());
      launch.partials = reinterpret_cast<float*>(scratch.data() + partials_at);
    }
    KVSTOW_RETURN_IF_ERROR(Start(launch, lane, gpu::LaunchEncode));
    std::vector<uint8_t> bytes(answer);
    KVSTOW_RETURN_IF_ERROR(lane.ToHost(scratch.data(), bytes));
    std::vector<double> sums(totals);
    std::vector<uint32_t> refused(batch.size());
    std::memcpy(refused.data(), bytes.data() + totals * sizeof(double), refused.size() * 4);
    if (totals > 0) std::memcpy(sums.data(), bytes.data(), totals * sizeof(double));
    for (size_t i = 0; i < batch.size(); ++i) {
      PageCoding& coding = codings[batch[i]];
      coding.coded = refused[i] == 0;
      if (!want_gains || !coding.coded) continue;
      coding.gains = layout_.GainsOfSegments(
          layout.tokens,
          gpu::GainsOf(&sums[i * page_totals], layout.slabs(), levels(), layout.tokens));
    }
    return absl::OkStatus();
  }

  absl::Status DecodeBatch(std::span<const DecodeJob> pages, const Batch& batch, Lane& lane) const {
    Launch launch = LaunchOf(pages, batch);
    launch.levels = pages[batch[0]].levels;
    Scratch scratch;
    KVSTOW_RETURN_IF_ERROR(scratch.Open(context_, lane.stream(), batch.size() * sizeof(uint32_t)));
    launch.refused = reinterpret_cast<uint32_t*>(scratch.data());
    KVSTOW_RETURN_IF_ERROR(Start(launch, lane, gpu::LaunchDecode));
    std::vector<uint8_t> bytes(batch.size() * sizeof(uint32_t));
    KVSTOW_RETURN_IF_ERROR(lane.ToHost(scratch.data(), bytes));
    for (size_t i = 0; i < batch.size(); ++i) {
      if (bytes[i * sizeof(uint32_t)] == 0) continue;
      return absl::DataLossError(
          absl::StrCat("page ", batch[i],
                       " of the call: it has a scale that is not finite, or a "
                       "code that no page has"));
    }
    return absl::OkStatus();
  }

  // On an error nothing of the launch is under way any more.
  static absl::Status Start(const Launch& launch, Lane& lane,
                            cudaError_t (*start)(const Launch&, cudaStream_t)) {
    cudaError_t code =
        cudaMemsetAsync(launch.refused, 0, launch.pages * sizeof(uint32_t), lane.stream());
    if (code == cudaSuccess) code = start(launch, lane.stream());
    return code == cudaSuccess ? absl::OkStatus() : lane.Drain(code, "starting a kernel");
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceCodec>> MakeCudaCodec(const Recipe& recipe, const KvSpec& spec,
                                                           const CudaContext& context) {
  KVSTOW_ASSIGN_OR_RETURN(DeviceLayout layout, DeviceLayout::Make(recipe, spec));
  if (!layout.plan().has_value()) {
    return std::make_unique<CudaRawCodec>(std::move(layout), context);
  }
  return std::make_unique<CudaSlabCodec>(std::move(layout), context);
}

}  // namespace kvstow
