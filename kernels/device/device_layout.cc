#include "kernels/device/device_layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/methods/run_codec.h"

namespace kvstow {
namespace {

size_t BytesOf(std::span<const SegmentInfo> segments, uint32_t levels) {
  size_t bytes = 0;
  for (const SegmentInfo& s : segments) bytes += s.level < levels ? s.bytes : 0;
  return bytes;
}

}  // namespace

size_t DeviceCodec::CodedBytes(uint32_t tokens, uint32_t levels) const {
  return BytesOf(Segments(tokens), levels);
}

absl::StatusOr<DeviceLayout> DeviceLayout::Make(const Recipe& recipe, const KvSpec& spec) {
  KVSTOW_RETURN_IF_ERROR(Validate(spec));
  std::optional<gpu::SlabPlan> plan;
  if (recipe.ops().back().name == "raw") {
    KVSTOW_RETURN_IF_ERROR(MakeRunCodec(recipe, spec, nullptr).status());
  } else {
    KVSTOW_ASSIGN_OR_RETURN(plan, gpu::SlabPlan::Make(recipe, spec));
  }
  const uint32_t levels = plan.has_value() ? plan->ops().levels : 1;
  KVSTOW_ASSIGN_OR_RETURN(const uint32_t layers_per_run, LayersPerRun(recipe, spec, levels));
  return DeviceLayout(spec, recipe.pipeline(), std::move(plan), layers_per_run);
}

std::vector<SegmentInfo> DeviceLayout::Segments(uint32_t tokens) const {
  gpu::PageLayout layout;
  if (plan_.has_value()) {
    layout = plan_->LayoutOf(tokens);
  } else {
    layout.layer_bytes[0] = LayerBytes(spec_, tokens);
  }
  std::vector<SegmentInfo> segments;
  for (uint32_t level = 0; level < levels(); ++level) {
    for (uint32_t first = 0; first < spec_.layers; first += layers_per_run_) {
      const uint32_t count = std::min(layers_per_run_, spec_.layers - first);
      segments.push_back({.first_layer = static_cast<uint16_t>(first),
                          .layer_count = static_cast<uint16_t>(count),
                          .level = static_cast<uint8_t>(level),
                          .bytes = static_cast<uint32_t>(count * layout.layer_bytes[level])});
    }
  }
  return segments;
}

std::vector<float> DeviceLayout::GainsOfSegments(uint32_t tokens,
                                                 std::span<const double> slab_gains) const {
  const size_t parts = slab_gains.size() / levels() / spec_.layers;
  std::vector<float> gains;
  for (const SegmentInfo& s : Segments(tokens)) {
    double gain = 0;
    for (size_t i = 0; i < parts * s.layer_count; ++i) {
      gain += slab_gains[(parts * s.first_layer + i) * levels() + s.level];
    }
    gains.push_back(static_cast<float>(gain));
  }
  return gains;
}

absl::Status DeviceLayout::Check(std::span<const EncodeJob> pages, Owns owns) const {
  for (size_t i = 0; i < pages.size(); ++i) {
    const EncodeJob& page = pages[i];
    KVSTOW_RETURN_IF_ERROR(CheckPage(i, page.tokens, page.raw, levels(), page.coded, owns));
  }
  return absl::OkStatus();
}

absl::Status DeviceLayout::Check(std::span<const DecodeJob> pages, Owns owns) const {
  for (size_t i = 0; i < pages.size(); ++i) {
    const DecodeJob& page = pages[i];
    KVSTOW_RETURN_IF_ERROR(CheckPage(i, page.tokens, page.raw, page.levels, page.coded, owns));
  }
  return absl::OkStatus();
}

absl::Status DeviceLayout::CheckPage(size_t index, uint32_t tokens, const DeviceBuffer* raw,
                                     uint32_t levels, const DeviceBuffer* coded, Owns owns) const {
  const auto wrong = [&](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("page ", index, " of the call: ", what...));
  };
  if (tokens < 1 || tokens > spec_.page_tokens) {
    return wrong(tokens, " tokens; this space has pages of 1 to ", spec_.page_tokens);
  }
  if (levels < 1 || levels > this->levels()) {
    return wrong(levels, " levels; the recipe has 1 to ", this->levels());
  }
  if (raw == nullptr || coded == nullptr || !owns(*raw) || !owns(*coded)) {
    return wrong("both buffers must be the device's own");
  }
  if (raw->size() < PageBytes(spec_, tokens)) {
    return wrong("a raw page has ", PageBytes(spec_, tokens), " bytes, the buffer ", raw->size());
  }
  if (const size_t bytes = CodedBytes(tokens, levels); coded->size() < bytes) {
    return wrong("its coded form has ", bytes, " bytes, the buffer ", coded->size());
  }
  return absl::OkStatus();
}

size_t DeviceLayout::CodedBytes(uint32_t tokens, uint32_t levels) const {
  return BytesOf(Segments(tokens), levels);
}

}  // namespace kvstow
