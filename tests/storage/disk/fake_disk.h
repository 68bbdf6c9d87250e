// A disk in memory that outlives the stores over it, made of instrumented code only:
// ThreadSanitizer cannot see into RocksDB, and reports races there that are none.
#ifndef KVSTOW_TESTS_STORAGE_DISK_FAKE_DISK_H_
#define KVSTOW_TESTS_STORAGE_DISK_FAKE_DISK_H_

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "kernels/device/device.h"
#include "storage/catalog.h"
#include "storage/record.h"
#include "storage/tier.h"
#include "storage/tiers/memory_tier.h"

namespace kvstow {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kUnderTsan = true;
#else
inline constexpr bool kUnderTsan = false;
#endif

class FakeDisk {
 public:
  std::unique_ptr<Tier> NewTier() { return std::make_unique<TierView>(*segments_); }
  std::unique_ptr<Catalog> NewCatalog() { return std::make_unique<CatalogView>(*this); }

 private:
  class TierView final : public Tier {
   public:
    explicit TierView(Tier& tier) : tier_(tier) {}
    std::string name() const override { return "fake disk"; }
    bool holds_bytes() const override { return true; }
    absl::Status Write(std::span<const SegmentBody> bodies) override { return tier_.Write(bodies); }
    std::vector<absl::StatusOr<SharedBytes>> Read(
        std::span<const ExpectedSegment> expected) override {
      return tier_.Read(expected);
    }
    absl::Status Erase(std::span<const SegmentId> ids) override { return tier_.Erase(ids); }

   private:
    Tier& tier_;
  };

  class CatalogView final : public Catalog {
   public:
    explicit CatalogView(FakeDisk& disk) : disk_(disk) {}
    absl::Status PutPage(const PageRecord& record, std::span<const SegmentBody> bodies,
                         Ack) override {
      if (absl::Status s = disk_.segments_->Write(bodies); !s.ok()) return s;
      MutexLock lock(disk_.mu_);
      disk_.pages_[record.number] = SerializePageRecord(record);
      return absl::OkStatus();
    }
    absl::Status TruncatePage(const PageRecord& record, size_t had, Ack) override {
      EraseBodies(record.number, record.facts.size(), had);
      MutexLock lock(disk_.mu_);
      disk_.pages_[record.number] = SerializePageRecord(record);
      return absl::OkStatus();
    }
    absl::Status ErasePage(PageNumber number, size_t segments) override {
      EraseBodies(number, 0, segments);
      MutexLock lock(disk_.mu_);
      disk_.pages_.erase(number);
      return absl::OkStatus();
    }
    absl::Status PutSpace(const SpaceRecord& space) override {
      MutexLock lock(disk_.mu_);
      disk_.spaces_[space.id] = SerializeSpaceRecord(space);
      return absl::OkStatus();
    }
    absl::Status EraseSpace(SpaceId id) override {
      MutexLock lock(disk_.mu_);
      disk_.spaces_.erase(id);
      disk_.last_erased_space_ = std::max(disk_.last_erased_space_, id);
      return absl::OkStatus();
    }
    absl::StatusOr<Loaded> Load() override {
      MutexLock lock(disk_.mu_);
      Loaded out;
      out.max_space = disk_.last_erased_space_;
      for (const auto& [id, bytes] : disk_.spaces_) {
        out.spaces.push_back(*ParseSpaceRecord(AsBytes(bytes)));
        out.max_space = std::max(out.max_space, id);
      }
      for (const auto& [number, bytes] : disk_.pages_) {
        out.pages.push_back(*ParsePageRecord(AsBytes(bytes)));
        out.max_page = std::max(out.max_page, number);
      }
      return out;
    }
    absl::Status Sync() override { return absl::OkStatus(); }

   private:
    void EraseBodies(PageNumber number, size_t first, size_t end) {
      std::vector<SegmentId> ids;
      for (size_t i = first; i < end; ++i) ids.push_back({number, static_cast<uint16_t>(i)});
      disk_.segments_->Erase(ids).IgnoreError();  // a memory tier's erase does not fail
    }
    FakeDisk& disk_;
  };

  const std::unique_ptr<Tier> segments_ = MakeMemoryTier(HostDevice());
  Mutex mu_;
  std::map<PageNumber, std::string> pages_ KVSTOW_GUARDED_BY(mu_);
  std::map<SpaceId, std::string> spaces_ KVSTOW_GUARDED_BY(mu_);
  SpaceId last_erased_space_ KVSTOW_GUARDED_BY(mu_) = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_STORAGE_DISK_FAKE_DISK_H_
