#include "client/connection/gpu_staging.h"

#include "base/shared_memory.h"

namespace kvstow {

std::optional<std::span<uint8_t>> GpuStaging::Take(uint64_t bytes) {
  const std::span<uint8_t> all = memory_->bytes();
  if (bytes == 0 || bytes > all.size()) return std::nullopt;
  uint64_t at = 0;  // the end of the ranges before
  for (const auto& [offset, end] : taken_) {
    if (offset - at >= bytes) break;
    at = end;
  }
  if (at > all.size() || all.size() - at < bytes) return std::nullopt;
  taken_.emplace(at, at + RoundUpToSharedPage(bytes));
  return all.subspan(at, bytes);
}

void GpuStaging::Give(std::span<uint8_t> range) {
  taken_.erase(range.data() - memory_->bytes().data());
}

v1::GpuRange GpuStaging::RangeOf(std::span<const uint8_t> range) const {
  v1::GpuRange out;
  out.set_offset(range.data() - memory_->bytes().data());
  out.set_bytes(range.size());
  return out;
}

}  // namespace kvstow
