#include "storage/tiers/memory_tier.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

using Buffer = std::shared_ptr<const DeviceBuffer>;

class MemoryTier final : public Tier {
 public:
  explicit MemoryTier(Device& device) : device_(device) {}

  std::string name() const override { return device_.name(); }
  bool holds_bytes() const override { return true; }

  absl::Status Write(std::span<const SegmentBody> bodies) override {
    std::vector<Buffer> buffers;
    buffers.reserve(bodies.size());
    for (const SegmentBody& body : bodies) {
      KVSTOW_ASSIGN_OR_RETURN(Buffer buffer, device_.Store(body.bytes));
      buffers.push_back(std::move(buffer));
    }
    // The old buffers are freed outside the lock: freeing may wait for a device.
    MutexLock lock(mu_);
    for (size_t i = 0; i < bodies.size(); ++i) std::swap(buffers_[bodies[i].id], buffers[i]);
    return absl::OkStatus();
  }

  std::vector<absl::StatusOr<SharedBytes>> Read(
      std::span<const ExpectedSegment> expected) override {
    std::vector<Buffer> found(expected.size());
    {
      MutexLock lock(mu_);
      for (size_t i = 0; i < expected.size(); ++i) {
        const auto it = buffers_.find(expected[i].id);
        if (it != buffers_.end()) found[i] = it->second;
      }
    }
    std::vector<absl::StatusOr<SharedBytes>> out;
    out.reserve(expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      if (found[i] != nullptr) {
        out.push_back(device_.Load(found[i]));
      } else {
        const SegmentId& id = expected[i].id;
        out.push_back(absl::NotFoundError(
            absl::StrCat("segment ", id.page, "/", id.index, " is not in ", name())));
      }
    }
    return out;
  }

  absl::Status Erase(std::span<const SegmentId> ids) override {
    std::vector<Buffer> freed(ids.size());  // goes after the lock
    MutexLock lock(mu_);
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto it = buffers_.find(ids[i]);
      if (it == buffers_.end()) continue;
      freed[i] = std::move(it->second);
      buffers_.erase(it);
    }
    return absl::OkStatus();
  }

 private:
  Device& device_;
  Mutex mu_;
  absl::flat_hash_map<SegmentId, Buffer> buffers_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<Tier> MakeMemoryTier(Device& device) {
  return std::make_unique<MemoryTier>(device);
}

}  // namespace kvstow
