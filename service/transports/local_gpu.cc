#include "service/transports/local_gpu.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/shared_memory.h"
#include "base/status_macros.h"
#include "kernels/codec/codec.h"
#include "kernels/codec/parse_recipe.h"
#include "kernels/device/device_kernels.h"
#include "kernels/device/device_pages.h"
#include "kernels/recipe/recipe.h"

namespace kvstow {

absl::StatusOr<std::shared_ptr<SharedDeviceMemory>> LocalGpu::Share(uint64_t wanted,
                                                                    absl::string_view uuid) {
  if (uuid != sharing_.uuid()) {
    return absl::FailedPreconditionError(absl::StrCat("the worker is on GPU ", HexOf(AsBytes(uuid)),
                                                      ", the server on ",
                                                      HexOf(AsBytes(sharing_.uuid()))));
  }
  uint64_t taken;
  {
    MutexLock lock(mu_);
    taken = std::min(wanted, budget_ - std::min(bytes_, budget_));
    if (taken < kSharedPageBytes) {
      return absl::ResourceExhaustedError("of the GPU's memory for local sessions none is left");
    }
    bytes_ += taken;
  }
  auto memory = sharing_.Make(taken);
  if (!memory.ok()) {
    Give(taken);
    return memory.status();
  }
  // Counts with this pointer: the memory itself may go later, with a view.
  SharedDeviceMemory* const at = memory->get();
  return std::shared_ptr<SharedDeviceMemory>(
      at, [this, taken, kept = *std::move(memory)](SharedDeviceMemory*) mutable {
        kept.reset();
        Give(taken);
      });
}

uint64_t LocalGpu::bytes() const {
  MutexLock lock(mu_);
  return bytes_;
}

void LocalGpu::Give(uint64_t bytes) {
  MutexLock lock(mu_);
  bytes_ -= bytes;
}

absl::StatusOr<std::shared_ptr<SharedDeviceMemory>> LocalGpu::LendPrivate(size_t bytes) {
  std::shared_ptr<SharedDeviceMemory> memory;
  {
    MutexLock lock(mu_);
    if (!spare_.empty()) {
      memory = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  if (memory == nullptr || memory->bytes().size() < bytes) {
    memory.reset();
    KVSTOW_ASSIGN_OR_RETURN(memory, sharing_.Make(bytes));
  }
  SharedDeviceMemory* const at = memory.get();
  return std::shared_ptr<SharedDeviceMemory>(
      at, [this, kept = std::move(memory)](SharedDeviceMemory*) mutable {
        MutexLock lock(mu_);
        spare_.push_back(std::move(kept));
      });
}

// Made under the lock: once for each pipeline of a space.
std::shared_ptr<DeviceCodec> LocalGpu::CodecOf(const Space& space, const std::string& pipeline) {
  MutexLock lock(mu_);
  const auto [it, is_new] = codecs_.try_emplace({space.id, pipeline});
  if (!is_new) return it->second;
  const auto recipe = ParseRecipe(pipeline);
  if (!recipe.ok() || !recipe->policy_ops().empty()) return nullptr;
  auto codec = device_.kernels().NewCodec(*recipe, space.spec);
  if (codec.ok()) {
    it->second = *std::move(codec);
  } else {
    Log().info("pages of '{}' in the GPU's memory are coded by the CPU: {}", pipeline,
               std::string(codec.status().message()));
  }
  return it->second;
}

absl::StatusOr<GpuPage> GpuPage::At(LocalGpu& gpu, const Space& space,
                                    const std::shared_ptr<SharedDeviceMemory>& memory,
                                    uint64_t offset, uint64_t bytes) {
  KVSTOW_ASSIGN_OR_RETURN(auto view, memory->View(offset, bytes));
  return GpuPage(gpu, space, memory->bytes().subspan(offset, bytes), std::move(view));
}

absl::Status GpuPage::Decode(const PageHeader& header,
                             std::span<const std::optional<SharedBytes>> segments, PageRange wanted,
                             const CalibrationStore&) {
  if (header.calibration != CalibrationId{}) {
    coded_there_ = gpu_->coder().DecodeThere(space_->spec, header, segments, wanted, *view_);
    return coded_there_ ? absl::OkStatus() : absl::UnimplementedError("the page is the CPU's");
  }
  const auto codec = gpu_->CodecOf(*space_, header.pipeline);
  if (codec == nullptr) return absl::UnimplementedError("the GPU has no such codec");
  KVSTOW_RETURN_IF_ERROR(
      DecodeOnDevice({gpu_->device(), *codec}, header, segments, wanted, *view_));
  coded_there_ = true;
  return absl::OkStatus();
}

absl::Status GpuPage::Copy(std::span<const SharedBytes> parts) {
  uint8_t* to = bytes_.data();
  for (const SharedBytes& part : parts) {
    KVSTOW_RETURN_IF_ERROR(gpu_->sharing().ToDevice(part.span(), to));
    to += part.size();
  }
  return absl::OkStatus();
}

absl::StatusOr<SharedBytes> GpuPage::Take() {
  KVSTOW_ASSIGN_OR_RETURN(taken_, gpu_->LendPrivate(bytes_.size()));
  const std::span<uint8_t> copy = taken_->bytes().first(bytes_.size());
  KVSTOW_RETURN_IF_ERROR(gpu_->sharing().Copy(bytes_, copy.data()));
  ByteBlock block(copy.size());
  KVSTOW_RETURN_IF_ERROR(gpu_->sharing().ToHost(copy, block.data()));
  return std::move(block).Share();
}

// Exact pages are what was taken: there is nothing to code.
absl::StatusOr<EncodedPage> GpuPage::Encode(const PageToEncode& page) {
  const Codec& codec = *space_->codec;
  if (codec.exact() || space_->calibration_missing) return codec.Encode(page);
  const auto on_gpu = gpu_->CodecOf(*space_, codec.recipe().pipeline());
  if (on_gpu == nullptr) return codec.Encode(page);
  KVSTOW_ASSIGN_OR_RETURN(const auto raw, taken_->View(0, bytes_.size()));
  auto encoded = EncodeOnDevice({gpu_->device(), *on_gpu}, codec, page, *raw);
  if (!encoded.ok()) return codec.Encode(page);
  coded_there_ = true;
  return encoded;
}

}  // namespace kvstow
