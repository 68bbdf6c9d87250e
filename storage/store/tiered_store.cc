#include "storage/store/tiered_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "storage/tiers/noop_tier.h"

namespace kvstow {
namespace {

// So many pages of a dropped space leave the index before they are erased on disk.
constexpr size_t kDropBatch = 256;

absl::Status NoSuchPage() { return absl::NotFoundError("no such page"); }

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

TieredStore::TieredStore(TieredStoreOptions options, const PolicyInfo& policy,
                         TieredStoreParts parts, LoadedRecords loaded)
    : options_(std::move(options)),
      recovered_spaces_(loaded.spaces),
      residency_(options_, policy, std::move(loaded)),
      movement_(residency_, std::move(parts)),
      cooling_(options_, residency_, movement_) {}

absl::StatusOr<std::unique_ptr<TieredStore>> TieredStore::Open(TieredStoreOptions options,
                                                               TieredStoreParts parts) {
  KVSTOW_RETURN_IF_ERROR(Validate(options, parts));
  KVSTOW_ASSIGN_OR_RETURN(const PolicyInfo* const policy,
                          FindEvictionPolicy(options.eviction_policy));
  parts = Complete(std::move(parts));
  KVSTOW_ASSIGN_OR_RETURN(LoadedRecords loaded, parts.catalog->Load());
  std::unique_ptr<TieredStore> store(
      new TieredStore(std::move(options), *policy, std::move(parts), std::move(loaded)));
  const absl::Status erased = store->movement_.EraseForgotten();
  if (!erased.ok()) Log().warn("a replaced page stays on disk for now: {}", erased.ToString());
  if (store->options_.background) store->cooling_.StartBackground();
  return store;
}

std::vector<absl::StatusOr<SharedBytes>> TieredStore::Read(const PageName& name, PageNumber number,
                                                           std::span<const uint16_t> indices,
                                                           Checks checks) {
  const std::optional<Residency::Copies> copies = residency_.CopiesOf(name, number, indices);
  if (!copies.has_value()) return Movement::NothingFor(indices);
  Movement::Bodies out = movement_.ReadHottest(*copies, indices, checks);
  std::vector<uint16_t> doubtful, from_disk;
  std::vector<size_t> doubtful_at;
  std::vector<SharedBytes> disk_bodies;
  for (size_t k = 0; k < indices.size(); ++k) {
    if (!copies->segments[k].has_value()) continue;
    if (!out[k].ok()) {
      doubtful.push_back(indices[k]);
      doubtful_at.push_back(k);
    } else if (copies->segments[k]->tiers.Hottest() == TierId::kDisk) {
      from_disk.push_back(indices[k]);
      disk_bodies.push_back(*out[k]);
    }
  }
  if (!from_disk.empty()) movement_.Promote(copies->page, from_disk, disk_bodies);
  if (doubtful.empty()) return out;

  // It may have moved while it was read, or its bytes are bad: look again with nobody moving it.
  std::optional<Claim> claim = Claim::Take(residency_, copies->page, Wait::kYes);
  Movement::Bodies again =
      claim.has_value() ? movement_.Read(*claim, doubtful) : Movement::NothingFor(doubtful);
  for (size_t j = 0; j < doubtful.size(); ++j) out[doubtful_at[j]] = std::move(again[j]);
  return out;
}

// By claim: whoever moves the page reads its gains without the lock.
absl::Status TieredStore::SetGains(const PageName& name, PageNumber number,
                                   std::span<const float> gains) {
  std::optional<Claim> claim = Claim::TakeNumber(residency_, name, number);
  if (!claim.has_value()) return NoSuchPage();
  if (gains.size() < (*claim)->segment_count) {
    return absl::InvalidArgumentError(
        absl::StrCat(gains.size(), " gains for a page of ", (*claim)->segment_count, " segments"));
  }
  claim->Change([&](PageEntry& page) {
    for (size_t i = 0; i < page.segment_count; ++i) page.segments()[i].facts.gain = gains[i];
  });
  return absl::OkStatus();
}

absl::Status TieredStore::Delete(const PageName& name, bool force) {
  absl::StatusOr<Claim> claim = Claim::TakeToDelete(residency_, name, force);
  if (absl::IsFailedPrecondition(claim.status())) return claim.status();
  const absl::Status was =
      claim.ok() ? movement_.Truncate(*claim, 0, Why::kDelete) : claim.status();
  const absl::Status erased = movement_.EraseForgotten(name);
  return erased.ok() ? was : erased;
}

absl::Status TieredStore::Drop(const PageName& name, PageNumber number) {
  std::optional<Claim> claim = Claim::TakeNumber(residency_, name, number);
  if (!claim.has_value()) return NoSuchPage();
  return movement_.Truncate(*claim, 0, Why::kDamage);
}

uint64_t TieredStore::Scrub(const PageRef& page) {
  std::optional<Claim> claim = Claim::Take(residency_, page, Wait::kNo);
  if (!claim.has_value()) return 0;
  const uint64_t bytes = movement_.VerifyCopies(*claim);
  residency_.Count([&](StoreCounters& counters) { counters.scrubbed_bytes += bytes; });
  return bytes;
}

absl::Status TieredStore::Examine(const PageName& name, PageNumber number) {
  std::optional<Claim> claim = Claim::TakeNumber(residency_, name, number);
  if (claim.has_value()) movement_.VerifyCopies(*claim);
  return claim.has_value() && !claim->gone() ? absl::OkStatus() : NoSuchPage();
}

absl::Status TieredStore::Flush() {
  if (!usable(TierId::kDisk)) return absl::OkStatus();
  const std::vector<PageRef> unwritten = residency_.PagesNotOnDisk();
  absl::Status first_error = movement_.EraseForgotten();
  for (const PageRef& page : unwritten) {
    std::optional<Claim> claim = Claim::Take(residency_, page, Wait::kYes);
    if (!claim.has_value()) continue;
    first_error.Update(cooling_.CopyToDisk(*claim, (*claim)->segment_count, Ack::kMemory));
  }
  first_error.Update(movement_.Sync());
  return first_error;
}

absl::Status TieredStore::SaveSpace(const SpaceRecord& space) {
  KVSTOW_RETURN_IF_ERROR(residency_.AddSpace(space.id, options_.tenant_of(space.tenant)));
  return movement_.WriteSpace(space);
}

absl::Status TieredStore::DropSpace(SpaceId space) {
  if (space == 0) return absl::InvalidArgumentError("space ids start at 1");
  residency_.DropSpace(space);
  // A page that gets its cold form meanwhile is found by the next look.
  bool refused = false;
  for (std::vector<PageRef> pages; !(pages = residency_.PageRefs(space)).empty();) {
    for (size_t i = 0; i < pages.size(); ++i) {
      std::optional<Claim> claim = Claim::Take(residency_, pages[i], Wait::kYes);
      if (claim.has_value()) movement_.Truncate(*claim, 0, Why::kDelete).IgnoreError();
      if ((i + 1) % kDropBatch == 0 && !refused) refused = !movement_.EraseForgotten().ok();
    }
  }
  return movement_.EraseSpace(space);
}

}  // namespace kvstow
