#include "tests/kernels/device/emulated_codec.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "kernels/cuda/slab/decode_strip.cuh"
#include "kernels/cuda/slab/decode_tile.cuh"
#include "kernels/cuda/slab/encode_strip.cuh"
#include "kernels/cuda/slab/encode_tile.cuh"
#include "kernels/device/batches.h"
#include "kernels/device/device_layout.h"
#include "kernels/device/host_buffer.h"
#include "tests/kernels/device/emulated_block.h"
#include "tests/kernels/device/emulated_joint.h"
#include "tests/kernels/device/emulated_scorer.h"
#include "tests/kernels/device/host_as_gpu.h"

namespace kvstow::testing {
namespace {

using gpu::Batch;
using gpu::Launch;
using gpu::SlabPart;

bool IsHosts(const DeviceBuffer& buffer) {
  return dynamic_cast<const HostBuffer*>(&buffer) != nullptr;
}
// Kernels take one pointer for both ways, and read only where they should.
uint8_t* DataOf(const DeviceBuffer* buffer) {
  return const_cast<uint8_t*>(static_cast<const HostBuffer*>(buffer)->bytes().data());
}

class EmulatedCodec final : public DeviceCodec {
 public:
  EmulatedCodec(DeviceLayout layout, ThreadOrder order)
      : layout_(std::move(layout)), plan_(*layout_.plan()), order_(order) {}

  const std::string& pipeline() const override { return layout_.pipeline(); }
  uint32_t levels() const override { return layout_.levels(); }
  std::vector<SegmentInfo> Segments(uint32_t tokens) const override {
    return layout_.Segments(tokens);
  }

  absl::StatusOr<std::vector<PageCoding>> Encode(std::span<const EncodeJob> pages,
                                                 bool want_gains) override {
    KVSTOW_RETURN_IF_ERROR(layout_.Check(pages, IsHosts));
    std::vector<PageCoding> codings(pages.size());
    for (const Batch& batch : gpu::BatchesOf(pages)) EncodeBatch(pages, batch, want_gains, codings);
    return codings;
  }

  absl::Status Decode(std::span<const DecodeJob> pages) override {
    KVSTOW_RETURN_IF_ERROR(layout_.Check(pages, IsHosts));
    for (const Batch& batch : gpu::BatchesOf(pages)) {
      Launch launch = LaunchOf(pages, batch);
      std::vector<uint32_t> refused(batch.size());
      launch.refused = refused.data();
      launch.levels = pages[batch[0]].levels;
      gpu::WithKind(plan_.ops().kind, [&](auto kind) { RunDecode<kind()>(launch); });
      if (std::ranges::count(refused, 1u) > 0) return absl::DataLossError("a page is damaged");
    }
    return absl::OkStatus();
  }

 private:
  template <typename Job>
  Launch LaunchOf(std::span<const Job> pages, const Batch& batch) const {
    Launch launch;
    launch.ops = plan_.ops();
    launch.layout = plan_.LayoutOf(pages[batch[0]].tokens);
    for (const size_t i : batch) {
      launch.page[launch.pages++] = {DataOf(pages[i].raw), DataOf(pages[i].coded)};
    }
    return launch;
  }

  void EncodeBatch(std::span<const EncodeJob> pages, const Batch& batch, bool want_gains,
                   std::vector<PageCoding>& codings) const {
    Launch launch = LaunchOf(pages, batch);
    std::vector<uint32_t> refused(batch.size());
    launch.refused = refused.data();
    const size_t page_totals = launch.layout.slabs() * (levels() + 1);
    std::vector<float> partials(batch.size() * launch.layout.layers *
                                launch.layout.layer_partials(levels()));
    std::vector<double> totals(batch.size() * page_totals);
    if (want_gains) {
      launch.partials = partials.data();
      launch.totals = totals.data();
    }
    gpu::WithKind(plan_.ops().kind, [&](auto kind) { RunEncode<kind()>(launch); });
    for (size_t i = 0; i < batch.size(); ++i) {
      PageCoding& coding = codings[batch[i]];
      coding.coded = refused[i] == 0;
      if (!want_gains || !coding.coded) continue;
      const std::vector<double> gains = gpu::GainsOf(
          &totals[i * page_totals], launch.layout.slabs(), levels(), launch.layout.tokens);
      coding.gains = layout_.GainsOfSegments(launch.layout.tokens, gains);
    }
  }

  template <gpu::Kind kind>
  void RunEncode(const Launch& launch) const {
    const gpu::PageLayout& layout = launch.layout;
    ForThreads(order_, launch.pages * layout.layers * layout.parts, [&](uint32_t slab) {
      const uint32_t layer = slab / layout.parts, part = slab % layout.parts;
      ForThreads(order_, layout.part[part].octets, [&](uint32_t item) {
        gpu::ColumnScales(launch, layer / layout.layers, layer % layout.layers, part, item);
      });
    });
    if (gpu::InStrips(layout, launch.ops)) {
      gpu::WithEncoder(launch,
                       [&](auto type) { RunStrips<typename decltype(type)::type>(launch); });
    } else {
      RunTiles<gpu::EncodeTile<kind>>(launch, std::max(gpu::EncodeSharedBytes(layout.part[0]),
                                                       gpu::EncodeSharedBytes(layout.part[1])));
    }
    if (launch.partials == nullptr) return;
    ForThreads(order_, launch.pages * layout.slabs() * (levels() + 1) + 7,
               [&](uint32_t item) { gpu::AddPartials(launch, item); });
  }

  template <gpu::Kind kind>
  void RunDecode(const Launch& launch) const {
    const SlabPart* const part = launch.layout.part;
    const bool rotated = launch.ops.rotated;
    if (gpu::InStrips(launch.layout, launch.ops)) {
      gpu::WithDecoder(launch,
                       [&](auto type) { RunStrips<typename decltype(type)::type>(launch); });
    } else {
      RunTiles<gpu::DecodeTile<kind>>(launch, std::max(gpu::DecodeSharedBytes(part[0], rotated),
                                                       gpu::DecodeSharedBytes(part[1], rotated)));
    }
  }

  template <typename Coder>
  void RunTiles(const Launch& launch, size_t bytes) const {
    const uint32_t layers = launch.layout.layers, tiles = launch.layout.layer_tiles();
    Shared shared(bytes);
    ForThreads(order_, launch.pages * layers * tiles, [&](uint32_t i) {
      const uint32_t layer = i / tiles;
      const Coder tile(launch, layer / layers, layer % layers, i % tiles, shared.Fresh());
      tile.Code([&](const auto& phase) { ForThreads(order_, gpu::kThreads, phase); });
    });
  }

  template <typename Coder>
  void RunStrips(const Launch& launch) const {
    const gpu::PageLayout& layout = launch.layout;
    Shared shared(Coder::SharedBytes());
    ForThreads(order_, launch.pages * layout.slabs(), [&](uint32_t slab) {
      const uint32_t layer = slab / layout.parts, part = slab % layout.parts;
      ForThreads(order_, layout.part[part].blocks, [&](uint32_t strip) {
        const gpu::StripPlace at{layer / layout.layers, layer % layout.layers, part, strip};
        Coder(launch, at, shared.Fresh()).Code(EmulatedWarp<typename Coder::State>(order_));
      });
    });
  }

  const DeviceLayout layout_;
  const gpu::SlabPlan& plan_;
  const ThreadOrder order_;
};

class EmulatedDevice final : public HostAsGpu, public DeviceKernels {
 public:
  explicit EmulatedDevice(ThreadOrder order) : order_(order) {}

  DeviceKernels& kernels() override { return *this; }
  absl::StatusOr<std::unique_ptr<DeviceCodec>> NewCodec(const Recipe& recipe,
                                                        const KvSpec& spec) override {
    KVSTOW_ASSIGN_OR_RETURN(DeviceLayout layout, DeviceLayout::Make(recipe, spec));
    if (!layout.plan().has_value()) return HostAsGpu::kernels().NewCodec(recipe, spec);
    return std::make_unique<EmulatedCodec>(std::move(layout), order_);
  }
  absl::StatusOr<std::unique_ptr<DeviceScorer>> NewScorer(const Recipe& recipe,
                                                          const KvSpec& spec) override {
    return MakeEmulatedScorer(recipe, spec, order_);
  }
  absl::StatusOr<std::unique_ptr<JointEngine>> NewJointEngine() override {
    return EmulatedJoint(order_);
  }

 private:
  const ThreadOrder order_;
};

}  // namespace

std::unique_ptr<Device> EmulatedGpu(ThreadOrder order) {
  return std::make_unique<EmulatedDevice>(order);
}

}  // namespace kvstow::testing
