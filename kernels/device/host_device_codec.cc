#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/codec/decode_page.h"
#include "kernels/codec/run_codecs.h"
#include "kernels/device/device_layout.h"
#include "kernels/device/host_buffer.h"
#include "kernels/device/host_kernels.h"
#include "kernels/methods/run_codec.h"

namespace kvstow {
namespace {

bool IsReadable(const DeviceBuffer& buffer) {
  return dynamic_cast<const HostBuffer*>(&buffer) != nullptr;
}

std::span<const uint8_t> BytesOf(const DeviceBuffer* buffer) {
  return static_cast<const HostBuffer*>(buffer)->bytes().span();
}

class HostDeviceCodec final : public DeviceCodec {
 public:
  HostDeviceCodec(DeviceLayout layout, std::unique_ptr<const RunCodec> run_codec)
      : layout_(std::move(layout)), run_codec_(std::move(run_codec)) {}

  const std::string& pipeline() const override { return layout_.pipeline(); }
  uint32_t levels() const override { return layout_.levels(); }
  std::vector<SegmentInfo> Segments(uint32_t tokens) const override {
    return layout_.Segments(tokens);
  }

  absl::StatusOr<std::vector<PageCoding>> Encode(std::span<const EncodeJob> pages,
                                                 bool want_gains) override {
    KVSTOW_RETURN_IF_ERROR(layout_.Check(pages, IsReadable));
    std::vector<PageCoding> codings;
    for (const EncodeJob& page : pages) {
      KVSTOW_ASSIGN_OR_RETURN(uint8_t* const to, Writable(*page.coded));
      KVSTOW_ASSIGN_OR_RETURN(codings.emplace_back(), EncodePage(page, to));
      if (!want_gains) codings.back().gains.clear();
    }
    return codings;
  }

  absl::Status Decode(std::span<const DecodeJob> pages) override {
    KVSTOW_RETURN_IF_ERROR(layout_.Check(pages, IsReadable));
    for (size_t i = 0; i < pages.size(); ++i) {
      KVSTOW_ASSIGN_OR_RETURN(uint8_t* const to, Writable(*pages[i].raw));
      const absl::Status decoded = DecodePage(pages[i], to);
      if (decoded.ok()) continue;
      return absl::Status(decoded.code(),
                          absl::StrCat("page ", i, " of the call: ", decoded.message()));
    }
    return absl::OkStatus();
  }

 private:
  static absl::StatusOr<uint8_t*> Writable(DeviceBuffer& buffer) {
    uint8_t* const data = static_cast<HostBuffer&>(buffer).data();
    if (data != nullptr) return data;
    return absl::InvalidArgumentError("a buffer of Store is read-only: write to one of Allocate");
  }

  absl::StatusOr<PageCoding> EncodePage(const EncodeJob& page, uint8_t* to) const {
    const std::vector<SegmentInfo> segments = Segments(page.tokens);
    const size_t runs = segments.size() / levels();
    const size_t layer = LayerBytes(layout_.spec(), page.tokens);
    PageCoding coding{.coded = true, .gains = std::vector<float>(segments.size())};
    std::vector<std::vector<EncodedLevel>> coded;
    for (size_t r = 0; r < runs; ++r) {
      const LayerRange layers{segments[r].first_layer, segments[r].layer_count};
      auto run =
          run_codec_->Encode({layers, page.tokens, 0},
                             BytesOf(page.raw).subspan(layers.first * layer, layers.count * layer));
      if (absl::IsOutOfRange(run.status())) return PageCoding{};
      KVSTOW_ASSIGN_OR_RETURN(coded.emplace_back(), std::move(run));
    }
    for (size_t s = 0; s < segments.size(); ++s) {
      const EncodedLevel& level = coded[s % runs][segments[s].level];
      to = std::copy_n(level.body.data(), level.body.size(), to);
      coding.gains[s] = static_cast<float>(level.gain);
    }
    return coding;
  }

  absl::Status DecodePage(const DecodeJob& page, uint8_t* to) const {
    const std::vector<SegmentInfo> segments = Segments(page.tokens);
    const size_t runs = segments.size() / levels();
    const size_t layer = LayerBytes(layout_.spec(), page.tokens);
    std::vector<std::vector<SharedBytes>> bodies(runs);
    const SharedBytes& coded = static_cast<const HostBuffer*>(page.coded)->bytes();
    size_t at = 0;
    for (size_t s = 0; s < runs * page.levels; ++s) {
      bodies[s % runs].push_back(coded.Slice(at, segments[s].bytes));
      at += segments[s].bytes;
    }
    for (size_t r = 0; r < runs; ++r) {
      const LayerRange layers{segments[r].first_layer, segments[r].layer_count};
      KVSTOW_RETURN_IF_ERROR(run_codec_->Decode({layers, page.tokens, 0}, bodies[r], layers,
                                                {to + layers.first * layer, layers.count * layer}));
    }
    return absl::OkStatus();
  }

  const DeviceLayout layout_;
  const std::unique_ptr<const RunCodec> run_codec_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceCodec>> MakeHostCodec(const Recipe& recipe,
                                                           const KvSpec& spec) {
  KVSTOW_ASSIGN_OR_RETURN(DeviceLayout layout, DeviceLayout::Make(recipe, spec));
  KVSTOW_ASSIGN_OR_RETURN(auto run_codec, MakeRunCodec(recipe, spec, nullptr));
  return std::make_unique<HostDeviceCodec>(std::move(layout), std::move(run_codec));
}

}  // namespace kvstow
