#include "storage/store/tiered_store.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "storage/store/store_impl.h"
#include "storage/tiers/noop_tier.h"

namespace kvstow {
namespace {

// Ids of a run start somewhere else each time: see LeaseTable.
LeaseId FirstLease() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) >> 1;
}

TieredStoreParts Complete(TieredStoreParts parts) {
  for (std::unique_ptr<Tier>& tier : parts.tiers) {
    if (tier == nullptr) tier = MakeNoopTier();
  }
  if (parts.catalog == nullptr) {
    parts.catalog = MakeNoopCatalog(*parts.tiers[static_cast<size_t>(TierId::kDisk)]);
  }
  return parts;
}

absl::Status Validate(const TieredStoreOptions& options, const TieredStoreParts& parts) {
  const double low = options.low_watermark, high = options.high_watermark;
  if (!(low > 0 && low <= high && high <= 1)) {
    return absl::FailedPreconditionError(
        absl::StrCat("watermarks: low ", low, " and high ", high, " must be 0 < low <= high <= 1"));
  }
  const auto& [gpu_bits, host_bits, disk_bits] = options.target_bits;
  if (!(gpu_bits == 0 && host_bits >= 0 && disk_bits >= 0)) {
    return absl::FailedPreconditionError("target bits of a tier are 0 or more, of the GPU none");
  }
  if (host_bits > 0 && disk_bits > host_bits) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a page keeps ", host_bits, " bits of a value in the host tier and cannot have ", disk_bits,
        " on disk: the target of the disk is at most the host's"));
  }
  if (options.lease_ttl <= Duration::zero()) {
    return absl::FailedPreconditionError("the lease TTL must be positive");
  }
  bool any = false;
  for (int t = 0; t < kTiers; ++t) {
    if (options.budget_bytes[t] == 0) continue;
    any = true;
    if (parts.tiers[t] != nullptr && parts.tiers[t]->holds_bytes()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(TierName(static_cast<TierId>(t)), " has a budget, but there is no such tier"));
  }
  if (!any) return absl::FailedPreconditionError("no tier has a budget: give one some bytes");
  return absl::OkStatus();
}

}  // namespace

uint64_t PrefixMatch::tokens() const {
  uint64_t tokens = 0;
  for (const FoundPage& page : pages) tokens += page.tokens;
  return tokens;
}

uint64_t PageFacts::stored_bytes() const {
  uint64_t bytes = header.size();
  for (const SegmentFacts& segment : segments) bytes += segment.bytes;
  return bytes;
}

TieredStore::Impl::Impl(TieredStoreOptions options, const PolicyInfo& policy,
                        TieredStoreParts parts)
    : options_(options),
      parts_(Complete(std::move(parts))),
      budgets_{options.budget_bytes[0], options.budget_bytes[1], options.budget_bytes[2]},
      index_(policy, options.budget_bytes),
      leases_(options.lease_ttl, FirstLease(), options.lease_limits) {}

TieredStore::Impl::~Impl() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    wake_.NotifyAll();
  }
  if (background_.joinable()) background_.join();
}

TieredStore::TieredStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TieredStore::~TieredStore() = default;

absl::StatusOr<std::unique_ptr<TieredStore>> TieredStore::Open(TieredStoreOptions options,
                                                               TieredStoreParts parts) {
  KVSTOW_RETURN_IF_ERROR(Validate(options, parts));
  KVSTOW_ASSIGN_OR_RETURN(const PolicyInfo* const policy,
                          FindEvictionPolicy(options.eviction_policy));
  auto impl = std::make_unique<Impl>(options, *policy, std::move(parts));
  KVSTOW_RETURN_IF_ERROR(impl->Recover());
  if (options.background) impl->StartBackground();
  return std::unique_ptr<TieredStore>(new TieredStore(std::move(impl)));
}

void TieredStore::SetMakeColdForm(MakeColdForm make_cold_form) {
  impl_->SetMakeColdForm(std::move(make_cold_form));
}
absl::StatusOr<PutOutcome> TieredStore::Put(PageToStore page) {
  return impl_->Put(std::move(page));
}
PrefixMatch TieredStore::Lookup(SpaceId space, std::span<const absl::string_view> keys,
                                bool take_lease) {
  return impl_->Lookup(space, keys, take_lease);
}
void TieredStore::CatchUp() { impl_->CatchUp(); }
bool TieredStore::Renew(LeaseId lease) { return impl_->Renew(lease); }
bool TieredStore::Release(LeaseId lease) { return impl_->Release(lease); }
absl::StatusOr<PageFacts> TieredStore::Find(const PageName& name) { return impl_->Find(name); }
void TieredStore::Use(const PageName& name) { impl_->Use(name); }
std::vector<absl::StatusOr<SharedBytes>> TieredStore::Read(const PageName& name, PageNumber number,
                                                           std::span<const uint16_t> indices,
                                                           Checks checks) {
  return impl_->Read(name, number, indices, checks);
}
absl::Status TieredStore::Delete(const PageName& name, bool force) {
  return impl_->Delete(name, force);
}
absl::Status TieredStore::Drop(const PageName& name, PageNumber number) {
  return impl_->Drop(name, number);
}
absl::Status TieredStore::Pin(const PageName& name, bool pinned) {
  return impl_->Pin(name, pinned);
}
absl::Status TieredStore::SetGains(const PageName& name, PageNumber number,
                                   std::span<const float> gains) {
  return impl_->SetGains(name, number, gains);
}
absl::Status TieredStore::SaveSpace(const SpaceRecord& space) { return impl_->SaveSpace(space); }
absl::Status TieredStore::DropSpace(SpaceId space) { return impl_->DropSpace(space); }
std::vector<SpaceRecord> TieredStore::RecoveredSpaces() { return impl_->RecoveredSpaces(); }
SpaceId TieredStore::NewSpaceId() { return impl_->NewSpaceId(); }
StoreUsage TieredStore::Usage() { return impl_->Usage(); }
StoreUsage TieredStore::Usage(SpaceId space) { return impl_->Usage(space); }
StoreCounters TieredStore::Counters() { return impl_->Counters(); }
std::vector<PageName> TieredStore::Pages(SpaceId space) { return impl_->Pages(space); }
void TieredStore::TellPages(StoreObserver& observer) { impl_->TellPages(observer); }
std::vector<PageSample> TieredStore::Sample(SpaceId space, size_t max_pages) {
  return impl_->Sample(space, max_pages);
}
std::vector<PageRef> TieredStore::PageRefs() { return impl_->PageRefs(); }
uint64_t TieredStore::Scrub(const PageRef& page) { return impl_->Scrub(page); }
absl::Status TieredStore::Examine(const PageName& name, PageNumber number) {
  return impl_->Examine(name, number);
}
absl::Status TieredStore::Shrink(TierId tier, uint64_t bytes) { return impl_->Shrink(tier, bytes); }
absl::Status TieredStore::SetBudget(TierId tier, uint64_t bytes) {
  return impl_->SetBudget(tier, bytes);
}
absl::Status TieredStore::Flush() { return impl_->Flush(); }
void TieredStore::RunDemotion() { impl_->RunDemotion(); }
absl::Status TieredStore::CheckInvariants() { return impl_->CheckInvariants(); }

}  // namespace kvstow
