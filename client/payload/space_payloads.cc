#include "client/payload/space_payloads.h"

#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "kernels/calibration/calibration.h"
#include "kernels/codec/make_codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/codec/rate_codec.h"
#include "kernels/device/device_kernels.h"

namespace kvstow {
namespace {

absl::StatusOr<std::shared_ptr<const Codec>> CodecOf(const ClientOptions& options,
                                                     const SpaceInfo& space,
                                                     absl::string_view put_pipeline) {
  if (put_pipeline.empty()) {
    return absl::FailedPreconditionError("the server is of a version that takes raw pages only");
  }
  KVSTOW_ASSIGN_OR_RETURN(const Recipe recipe, ParseRecipe(put_pipeline));
  KVSTOW_ASSIGN_OR_RETURN(const auto target, RateTargetOf(recipe));
  if (target.has_value()) {
    return absl::FailedPreconditionError("its recipe seeks its step page by page");
  }
  return MakeCodec(recipe, space.spec, CalibrationsOf(options));
}

// Returns null, and logs why, where the GPU has no such codec. Exact pages need none: the copy in
// the host's memory is what travels.
std::shared_ptr<DeviceCodec> OnGpu(Device& gpu, const Codec& codec) {
  if (codec.exact() || !codec.recipe().policy_ops().empty()) return nullptr;
  auto on_gpu = gpu.kernels().NewCodec(codec.recipe(), codec.spec());
  if (on_gpu.ok()) return *std::move(on_gpu);
  Log().info("pages of '{}' on the GPU are coded by the CPU: {}", codec.recipe().text(),
             std::string(on_gpu.status().message()));
  return nullptr;
}

}  // namespace

const CalibrationStore& CalibrationsOf(const ClientOptions& options) {
  return options.calibrations == nullptr ? NoCalibrations() : *options.calibrations;
}

absl::Status SpacePayloads::Add(const SpaceInfo& space, absl::string_view put_pipeline,
                                Payload wanted, SpaceOptions again) {
  absl::StatusOr<std::shared_ptr<const Codec>> codec = absl::CancelledError("not wanted");
  if (wanted != Payload::kRaw) codec = CodecOf(options_, space, put_pipeline);
  auto noted = std::make_shared<SpacePayload>(codec.ok() ? wanted : Payload::kRaw, wanted);
  noted->fingerprint = space.fingerprint;
  noted->again = std::move(again);
  noted->page_bytes = PageBytes(space.spec, space.spec.page_tokens);
  if (codec.ok()) {
    noted->reads_columns = !(*codec)->recipe().policy_ops().empty();
    noted->codec = *std::move(codec);
    if (options_.gpu_device != nullptr) noted->on_gpu = OnGpu(*options_.gpu_device, *noted->codec);
  }
  {
    MutexLock lock(mu_);
    spaces_[space.name] = std::move(noted);
  }
  return wanted == Payload::kRaw ? absl::OkStatus() : codec.status();
}

std::shared_ptr<SpacePayload> SpacePayloads::Find(const std::string& space) {
  MutexLock lock(mu_);
  std::shared_ptr<SpacePayload>& found = spaces_[space];
  if (found == nullptr) found = std::make_shared<SpacePayload>(Payload::kRaw, options_.payload);
  return found;
}

}  // namespace kvstow
