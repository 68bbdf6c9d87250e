#include "client/transport/gpu_coder.h"

#include "base/status_macros.h"
#include "kernels/device/device_pages.h"

namespace kvstow {

PageCoder GpuCoder::Coder(std::shared_ptr<SpacePayload> space,
                          std::shared_ptr<const HostCopies> copies) {
  if (space->on_gpu == nullptr) return nullptr;
  return [this, space = std::move(space), copies = std::move(copies)](const PageToEncode& page) {
    const auto copy = copies->find(page.raw.data());
    if (copy != copies->end()) {
      auto encoded = Encode(*space, page, copy->second.from);
      if (encoded.ok()) return encoded;
    }
    return space->codec->Encode(page);
  };
}

PageDecoder GpuCoder::Decoder(std::shared_ptr<SpacePayload> space,
                              const CalibrationStore& calibrations,
                              std::shared_ptr<HostCopies> copies) {
  if (space->on_gpu == nullptr) return nullptr;
  return [this, space = std::move(space), &calibrations, copies = std::move(copies)](
             const PageHeader& header, std::span<const std::optional<SharedBytes>> segments,
             PageRange wanted, std::span<uint8_t> out) {
    const auto copy = copies->find(out.data());
    if (copy != copies->end() && Decode(*space, header, segments, wanted, copy->second.to).ok()) {
      copy->second.came = true;
      return absl::OkStatus();
    }
    return DecodePage(header, segments, wanted, out, calibrations);
  };
}

absl::StatusOr<EncodedPage> GpuCoder::Encode(const SpacePayload& space, const PageToEncode& page,
                                             std::span<const uint8_t> from) {
  MutexLock lock(mu_);
  KVSTOW_ASSIGN_OR_RETURN(const auto room, Room(from.size()));
  KVSTOW_RETURN_IF_ERROR(sharing_->Copy(from, memory_->bytes().data()));
  return EncodeOnDevice({*device_, *space.on_gpu}, *space.codec, page, *room);
}

absl::Status GpuCoder::Decode(const SpacePayload& space, const PageHeader& header,
                              std::span<const std::optional<SharedBytes>> segments,
                              PageRange wanted, std::span<uint8_t> to) {
  const size_t bytes = PageBytes(header.Geometry(), header.tokens);
  if (header.pipeline != space.on_gpu->pipeline() || bytes > to.size()) {
    return absl::UnimplementedError("the page is of another recipe, or a part of it is wanted");
  }
  MutexLock lock(mu_);
  KVSTOW_ASSIGN_OR_RETURN(const auto room, Room(bytes));
  KVSTOW_RETURN_IF_ERROR(
      DecodeOnDevice({*device_, *space.on_gpu}, header, segments, wanted, *room));
  return sharing_->Copy(memory_->bytes().first(bytes), to.data());
}

absl::StatusOr<std::shared_ptr<DeviceBuffer>> GpuCoder::Room(size_t bytes) {
  if (memory_ == nullptr || memory_->bytes().size() < bytes) {
    memory_.reset();
    KVSTOW_ASSIGN_OR_RETURN(memory_, sharing_->Make(bytes));
  }
  return memory_->View(0, bytes);
}

}  // namespace kvstow
