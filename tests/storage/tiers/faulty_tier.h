// A tier with faults that a test turns on and off; everything else goes to the tier inside.
#ifndef KVSTOW_TESTS_STORAGE_TIERS_FAULTY_TIER_H_
#define KVSTOW_TESTS_STORAGE_TIERS_FAULTY_TIER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "storage/catalog.h"
#include "storage/tier.h"

namespace kvstow {

// Shared by the faulty tier, the faulty catalog and the test.
struct Faults {
  std::atomic<bool> fail_writes{false};   // RESOURCE_EXHAUSTED
  std::atomic<bool> fail_erases{false};   // of a page's record
  std::atomic<bool> fail_reads{false};    // UNAVAILABLE
  std::atomic<bool> damage_reads{false};  // one bit of every body is flipped
  std::atomic<int> damage_only{-1};       // of the segment with this index, if not -1
  std::atomic<bool> lose_reads{false};    // NOT_FOUND
  std::atomic<int> writes{0};
  std::function<void()> before_write;  // runs inside Write and PutPage
};

inline absl::Status WriteFault(Faults& faults) {
  ++faults.writes;
  if (faults.before_write) faults.before_write();
  if (faults.fail_writes) return absl::ResourceExhaustedError("injected: no space");
  return absl::OkStatus();
}

class FaultyTier final : public Tier {
 public:
  FaultyTier(std::unique_ptr<Tier> inner, Faults& faults)
      : inner_(std::move(inner)), faults_(faults) {}

  std::string name() const override { return inner_->name(); }
  bool holds_bytes() const override { return inner_->holds_bytes(); }
  absl::Status Write(std::span<const SegmentBody> bodies) override {
    const absl::Status fault = WriteFault(faults_);
    return fault.ok() ? inner_->Write(bodies) : fault;
  }
  std::vector<absl::StatusOr<SharedBytes>> Read(
      std::span<const ExpectedSegment> expected) override {
    std::vector<absl::StatusOr<SharedBytes>> out = inner_->Read(expected);
    for (size_t i = 0; i < out.size(); ++i) {
      auto& body = out[i];
      if (faults_.fail_reads) body = absl::UnavailableError("injected: does not answer");
      if (faults_.lose_reads) body = absl::NotFoundError("injected: not here");
      if (!faults_.damage_reads || !body.ok() || body->empty()) continue;
      if (faults_.damage_only >= 0 && expected[i].id.index != faults_.damage_only) continue;
      std::vector<uint8_t> bytes(body->span().begin(), body->span().end());
      bytes[bytes.size() / 2] ^= 1;
      body = SharedBytes::Take(std::move(bytes));
    }
    return out;
  }
  absl::Status Erase(std::span<const SegmentId> ids) override { return inner_->Erase(ids); }

 private:
  const std::unique_ptr<Tier> inner_;
  Faults& faults_;
};

class FaultyCatalog final : public Catalog {
 public:
  FaultyCatalog(std::unique_ptr<Catalog> inner, Faults& faults)
      : inner_(std::move(inner)), faults_(faults) {}

  absl::Status PutPage(const PageRecord& record, std::span<const SegmentBody> bodies,
                       Ack ack) override {
    const absl::Status fault = WriteFault(faults_);
    return fault.ok() ? inner_->PutPage(record, bodies, ack) : fault;
  }
  absl::Status TruncatePage(const PageRecord& record, size_t had, Ack ack) override {
    if (faults_.fail_writes) return absl::ResourceExhaustedError("injected: no space");
    return inner_->TruncatePage(record, had, ack);
  }
  absl::Status ErasePage(PageNumber number, size_t segments) override {
    if (faults_.fail_writes || faults_.fail_erases)
      return absl::ResourceExhaustedError("injected: no space");
    return inner_->ErasePage(number, segments);
  }
  absl::Status PutSpace(const SpaceRecord& space) override { return inner_->PutSpace(space); }
  absl::Status EraseSpace(SpaceId id) override {
    if (faults_.fail_writes || faults_.fail_erases)
      return absl::ResourceExhaustedError("injected: no space");
    return inner_->EraseSpace(id);
  }
  absl::StatusOr<Loaded> Load() override { return inner_->Load(); }
  absl::Status Sync() override { return inner_->Sync(); }

 private:
  const std::unique_ptr<Catalog> inner_;
  Faults& faults_;
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_STORAGE_TIERS_FAULTY_TIER_H_
