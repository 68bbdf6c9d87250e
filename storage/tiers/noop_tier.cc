#include "storage/tiers/noop_tier.h"

#include "base/status_macros.h"

namespace kvstow {
namespace {

class NoopTier final : public Tier {
 public:
  std::string name() const override { return "none"; }
  bool holds_bytes() const override { return false; }
  absl::Status Write(std::span<const SegmentBody> bodies) override {
    if (bodies.empty()) return absl::OkStatus();
    return absl::ResourceExhaustedError("this tier holds nothing");
  }
  std::vector<absl::StatusOr<SharedBytes>> Read(
      std::span<const ExpectedSegment> expected) override {
    return {expected.size(), absl::NotFoundError("this tier holds nothing")};
  }
  absl::Status Erase(std::span<const SegmentId>) override { return absl::OkStatus(); }
};

class NoopCatalog final : public Catalog {
 public:
  explicit NoopCatalog(Tier& disk) : disk_(disk) {}

  absl::Status PutPage(const PageRecord&, std::span<const SegmentBody> bodies, Ack) override {
    return disk_.Write(bodies);
  }
  absl::Status TruncatePage(const PageRecord& record, size_t had, Ack) override {
    return EraseFrom(record.number, record.facts.size(), had);
  }
  absl::Status ErasePage(PageNumber number, size_t segments) override {
    return EraseFrom(number, 0, segments);
  }
  absl::Status PutSpace(const SpaceRecord&) override { return absl::OkStatus(); }
  absl::Status EraseSpace(SpaceId) override { return absl::OkStatus(); }
  absl::StatusOr<Loaded> Load() override { return Loaded{}; }
  absl::Status Sync() override { return absl::OkStatus(); }

 private:
  absl::Status EraseFrom(PageNumber number, size_t first, size_t end) {
    std::vector<SegmentId> ids;
    for (size_t i = first; i < end; ++i) ids.push_back({number, static_cast<uint16_t>(i)});
    return disk_.Erase(ids);
  }

  Tier& disk_;
};

}  // namespace

std::unique_ptr<Tier> MakeNoopTier() { return std::make_unique<NoopTier>(); }

std::unique_ptr<Catalog> MakeNoopCatalog(Tier& disk) { return std::make_unique<NoopCatalog>(disk); }

}  // namespace kvstow
