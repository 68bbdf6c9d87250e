#include "storage/store/scrubber.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "storage/store/store_impl.h"

namespace kvstow {
namespace {

constexpr double kBetweenPasses = 1;  // seconds, at least

}  // namespace

std::vector<PageRef> TieredStore::Impl::PageRefs() {
  std::vector<PageRef> pages;
  {
    MutexLock lock(mu_);
    pages.reserve(index_.size());
    index_.ForEach([&](const PageEntry& page) { pages.push_back(page.ref()); });
  }
  std::sort(pages.begin(), pages.end(),
            [](const PageRef& a, const PageRef& b) { return a.number < b.number; });
  return pages;
}

uint64_t TieredStore::Impl::Scrub(const PageRef& page) {
  std::optional<Claim> claim = ClaimPage(page, Wait::kNo);
  if (!claim.has_value()) return 0;
  const uint64_t bytes = VerifyCopies(*claim);
  MutexLock lock(mu_);
  counters_.scrubbed_bytes += bytes;
  return bytes;
}

absl::Status TieredStore::Impl::Examine(const PageName& name, PageNumber number) {
  std::optional<Claim> claim = ClaimNumber(name, number);
  if (claim.has_value()) VerifyCopies(*claim);
  if (claim.has_value() && claim->page() != nullptr) return absl::OkStatus();
  return absl::NotFoundError("no such page");
}

// Every copy of every segment. A damaged one counts, and goes as when a read finds it; one on disk
// that has a good copy in memory is written again. Answers how many bytes were read; the page may
// be gone.
uint64_t TieredStore::Impl::VerifyCopies(Claim& claim) {
  std::vector<BadCopy> bad;
  std::vector<SegmentBody> mend;
  size_t keep = claim->segment_count;
  uint64_t bytes = 0, corrupt = 0, lost = 0, disk_errors = 0;
  for (uint16_t i = 0; i < claim->segment_count; ++i) {
    const PageEntry::Segment& segment = claim->segments()[i];
    const SegmentId id = claim->id(i);
    std::optional<SharedBytes> good;
    TierSet left = segment.tiers, proven;
    for (; !left.empty(); left.Remove(left.Hottest())) {
      const TierId t = left.Hottest();
      const absl::StatusOr<SharedBytes> body =
          Verified(std::move(tier(t).Read({&id, 1})[0]), segment.facts);
      bytes += segment.facts.bytes;
      if (body.ok()) {
        good = *body;
      } else if (absl::IsNotFound(body.status()) || absl::IsDataLoss(body.status())) {
        ++(absl::IsNotFound(body.status()) ? lost : corrupt);
        bad.push_back({i, t});
        proven.Add(t);
      } else {
        disk_errors += t == TierId::kDisk ? 1 : 0;
      }
    }
    if (proven == segment.tiers) keep = std::min<size_t>(keep, i);
    if (good.has_value() && proven.Has(TierId::kDisk)) mend.push_back({id, *std::move(good)});
  }
  if (!mend.empty()) {
    const PageRecord record = claim->Record(claim->on_disk());
    const absl::Status mended = parts_.catalog->PutPage(record, mend, claim->disk_ack);
    disk_errors += mended.ok() ? 0 : 1;
  }
  if (!bad.empty()) Log().warn("page {} has {} damaged copies", claim->number, bad.size());
  {
    MutexLock lock(mu_);
    counters_.corrupt_segments += corrupt;
    counters_.lost_segments += lost;
    counters_.disk_errors += disk_errors;
  }
  DropBad(claim, bad, keep);
  return bytes;
}

Scrubber::Scrubber(TieredStore& store, uint64_t bytes_per_second) : store_(store) {
  if (bytes_per_second == 0) return;
  thread_ = std::thread([this, bytes_per_second] { Run(bytes_per_second); });
}

Scrubber::~Scrubber() {
  {
    MutexLock lock(mu_);
    end_ = true;
  }
  ended_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

bool Scrubber::Pause(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  MutexLock lock(mu_);
  for (auto now = std::chrono::steady_clock::now(); !end_ && now < end;
       now = std::chrono::steady_clock::now()) {
    ended_.WaitFor(mu_, std::chrono::duration_cast<std::chrono::nanoseconds>(end - now));
  }
  return !end_;
}

void Scrubber::Run(uint64_t bytes_per_second) {
  do {
    for (const PageRef& page : store_.PageRefs()) {
      const uint64_t bytes = store_.Scrub(page);
      if (!Pause(static_cast<double>(bytes) / bytes_per_second)) return;
    }
  } while (Pause(kBetweenPasses));
}

}  // namespace kvstow
