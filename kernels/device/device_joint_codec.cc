#include "kernels/device/device_joint_codec.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/codec/rate_codec.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/device/device_kernels.h"
#include "kernels/device/device_ropes.h"
#include "kernels/device/joint_decoder.h"
#include "kernels/device/joint_encoder.h"
#include "kernels/device/joint_on_device.h"

namespace kvstow {
namespace {

class GpuJointCodec final : public DeviceJointCodec {
 public:
  GpuJointCodec(Recipe recipe, std::unique_ptr<JointOnDevice> on)
      : recipe_(std::move(recipe)), on_(std::move(on)) {}

  const Recipe& recipe() const override { return recipe_; }
  uint32_t levels() const override { return on_->levels(); }

  absl::StatusOr<std::vector<JointPage>> Encode(std::span<const JointEncodeJob> pages) override {
    KVSTOW_RETURN_IF_ERROR(Check(pages));
    std::vector<JointPage> out(pages.size());
    for (const std::vector<size_t>& batch : BatchesOf(pages))
      KVSTOW_RETURN_IF_ERROR(EncodeBatch(*on_, pages, batch, out));
    return out;
  }

  absl::Status Decode(std::span<const JointDecodeJob> pages) override {
    KVSTOW_RETURN_IF_ERROR(Check(pages));
    const size_t runs = on_->run_count();
    for (size_t i = 0; i < pages.size(); ++i) {
      const size_t bodies = pages[i].bodies.size(), ids = pages[i].token_ids.size();
      if (ids != 0 && ids != pages[i].tokens) {
        return OfPage(i, absl::InvalidArgumentError(
                             absl::StrCat(ids, " ids of ", pages[i].tokens, " tokens")));
      }
      if (bodies > 0 && bodies % runs == 0 && bodies <= runs * levels()) continue;
      return OfPage(i, absl::DataLossError(
                           absl::StrCat(bodies, " bodies are no whole levels of ", runs, " runs")));
    }
    for (const std::vector<size_t>& batch : BatchesOf(pages))
      KVSTOW_RETURN_IF_ERROR(DecodeBatch(*on_, pages, batch));
    return absl::OkStatus();
  }

 private:
  template <typename Job>
  absl::Status Check(std::span<const Job> pages) const {
    const KvSpec& spec = on_->coder().spec();
    for (size_t i = 0; i < pages.size(); ++i) {
      const Job& page = pages[i];
      const bool fits = page.tokens >= 1 && page.tokens <= spec.page_tokens &&
                        page.first_position <= UINT64_MAX - page.tokens && page.raw != nullptr &&
                        page.raw->size() >= PageBytes(spec, page.tokens) &&
                        on_->engine().AddressOf(*page.raw) != nullptr;
      if (fits) continue;
      return OfPage(i, absl::InvalidArgumentError(absl::StrCat(
                           page.tokens, " tokens at position ", page.first_position,
                           ", or a buffer that is too small or not of ", on_->device().name())));
    }
    return absl::OkStatus();
  }

  static size_t BodiesOf(const JointDecodeJob& page) { return page.bodies.size(); }
  static size_t BodiesOf(const JointEncodeJob&) { return 0; }

  // Pages that are alike, as JointOnDevice::Batch says.
  template <typename Job>
  std::vector<std::vector<size_t>> BatchesOf(std::span<const Job> pages) const {
    std::map<std::array<size_t, 3>, std::vector<std::vector<size_t>>> batches;
    for (size_t i = 0; i < pages.size(); ++i) {
      auto& alike = batches[{pages[i].tokens, on_->FirstOf(pages[i]), BodiesOf(pages[i])}];
      const size_t most =
          std::clamp<size_t>(kMostPlaneRows / pages[i].tokens, 1, size_t{gpu::kPagesALaunch});
      if (alike.empty() || alike.back().size() == most) alike.emplace_back();
      alike.back().push_back(i);
    }
    std::vector<std::vector<size_t>> out;
    for (auto& [key, alike] : batches) std::ranges::move(alike, std::back_inserter(out));
    return out;
  }

  const Recipe recipe_;
  const std::unique_ptr<const JointOnDevice> on_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceJointCodec>> MakeDeviceJointCodec(
    Device& device, const Recipe& recipe, const KvSpec& spec,
    const CalibrationStore& calibrations) {
  KVSTOW_RETURN_IF_ERROR(Validate(spec));
  KVSTOW_ASSIGN_OR_RETURN(const auto needs, CalibrationNeeds(recipe));
  if (recipe.ops().size() != 1 || !needs.has_value() || needs->section != kJointSection) {
    return absl::UnimplementedError(
        absl::StrCat("recipe '", recipe.text(), "': this codec of devices has `joint` alone"));
  }
  KVSTOW_ASSIGN_OR_RETURN(const auto target, RateTargetOf(recipe));
  if (target.has_value() || IsFloat8(spec.dtype)) {
    return absl::UnimplementedError(absl::StrCat(
        "recipe '", recipe.text(), "': devices take a step, and pages of F16, BF16 and F32"));
  }
  if (!gpu::ScalesAlike(spec)) {
    return absl::UnimplementedError("devices scale K of all layers alike: code it on the CPU");
  }
  KVSTOW_ASSIGN_OR_RETURN(auto engine, device.kernels().NewJointEngine());
  KVSTOW_ASSIGN_OR_RETURN(auto calibration, calibrations.Choose(spec, *needs));
  KVSTOW_ASSIGN_OR_RETURN(Recipe named, NameCalibration(recipe, HexOf(calibration->id())));
  KVSTOW_ASSIGN_OR_RETURN(JointCoder coder, JointCoder::Make(OpArguments(named.ops()[0]), spec,
                                                             std::move(calibration), false));
  const uint32_t most = gpu::MostStreamTokens(coder.options().levels, engine->shared_bytes());
  if (std::min(coder.options().tokens_per_stream, spec.page_tokens) > most) {
    return absl::UnimplementedError(absl::StrCat("recipe '", recipe.text(), "': ", device.name(),
                                                 " takes streams of at most ", most, " tokens at ",
                                                 coder.options().levels, " levels"));
  }
  auto on = std::make_unique<JointOnDevice>(device, std::move(engine), std::move(coder));
  KVSTOW_RETURN_IF_ERROR(on->Open());
  return std::make_unique<GpuJointCodec>(std::move(named), std::move(on));
}

}  // namespace kvstow
