#include "storage/store/residency/residency.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

constexpr size_t kMaxWalk = 65536;  // pages that are looked at for a sample, at 0.1 us each
constexpr size_t kAtOnce = 64;      // pages of a sample under one lock

// Random, as those after it: see LeaseTable.
LeaseId FirstLease() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) >> 1;
}

FoundPage WhatIsThere(PageEntry& page, CountLevels count_levels) {
  PageEntry::Segment& last = page.segments().back();
  if (last.levels == PageEntry::Segment::kNotCounted) {
    last.levels = count_levels(page.header(), page.segment_count);
  }
  return {.number = page.number,
          .stored_bytes = page.BytesOf(0, page.segment_count),
          .tokens = page.tokens,
          .segments = page.segment_count,
          .levels = last.levels,
          .tier = page.segments()[0].tiers.Hottest()};
}

std::unique_ptr<PageEntry> RecoveredEntry(const PageRecord& record) {
  TierSet disk;
  disk.Add(TierId::kDisk);
  std::unique_ptr<PageEntry> page = PageEntry::Make(record, disk);
  page->disk_ack = Ack::kDurable;  // opening synced all that it found
  return page;
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

Residency::Residency(const TieredStoreOptions& options, const PolicyInfo& policy,
                     LoadedRecords loaded)
    : options_(options),
      budgets_{options.budget_bytes[0], options.budget_bytes[1], options.budget_bytes[2]},
      index_(policy, options.budget_bytes),
      leases_(options.lease_ttl, FirstLease(), options.lease_limits) {
  MutexLock lock(mu_);
  next_number_ = loaded.max_page + 1;
  SpaceId last_space = loaded.max_space;
  for (const PageRecord& page : loaded.pages) last_space = std::max(last_space, page.name.space);
  spaces_.StartAfter(last_space);
  for (const TierId t : kAllTiers) {
    index_.SetBudget(t, budget(t), options.low_watermark);
  }
  for (const SpaceRecord& space : loaded.spaces) {
    spaces_.Add(space.id);
    index_.SetTenant(space.id, options.tenant_of(space.tenant));
  }
  counters_.damaged_records = loaded.damaged;
  counters_.locked_records = loaded.locked;
  counters_.damaged_logs = loaded.damaged_logs;
  Recover(std::move(loaded.pages));
}

// The records of pages become the index. It reads no bodies. A page whose body is missing or
// damaged is a miss when somebody asks for it.
void Residency::Recover(std::vector<PageRecord> pages) {
  // By age, as policies should see them. Two records of one name remain when a delete or a failed
  // put did not reach the disk: the later put is the one that was acknowledged.
  std::sort(pages.begin(), pages.end(),
            [](const PageRecord& a, const PageRecord& b) { return a.number < b.number; });
  for (const PageRecord& record : pages) {
    if (!spaces_.Has(record.name.space)) {
      // Its space's record is damaged: what the page means is not known.
      ++counters_.damaged_records;
      continue;
    }
    if (PageEntry* const older = index_.Find(record.name); older != nullptr) {
      EraseLater(*older, older->segment_count, older->BytesOf(0, older->segment_count));
      index_.Remove(older);
    }
    index_.Insert(RecoveredEntry(record));
  }
  counters_.recovered_pages = index_.size();
  // Over a budget that was lowered meanwhile.
  for (const TierId t : kAllTiers) ceiling_[static_cast<size_t>(t)] = Held(t);
}

PrefixMatch Residency::Lookup(SpaceId space, std::span<const absl::string_view> keys,
                              bool take_lease, LeaseHolder holder) {
  PrefixMatch match;
  match.pages.reserve(keys.size());
  std::vector<PageEntry*> found;
  found.reserve(keys.size());
  PageName name{.space = space};
  const Time now = options_.clock->Now();
  MutexLock lock(mu_);
  ReapLeases();
  for (const absl::string_view key : keys) {
    name.key.assign(key.data(), key.size());
    PageEntry* const page = index_.Find(name);
    if (page == nullptr) {
      if (!found.empty()) index_.Expect(name, *found.back());
      break;
    }
    if (!found.empty()) index_.SetParent(page, *found.back());
    found.push_back(page);
    match.pages.push_back(WhatIsThere(*page, options_.count_levels));
  }
  if (!take_lease || found.empty()) return match;
  // A key may have been asked for more than once.
  std::erase_if(found, [](PageEntry* page) {
    const bool again = page->listed;
    page->listed = true;
    return again;
  });
  for (PageEntry* const page : found) page->listed = false;
  match.lease_refused = !leases_.HasRoomFor(found.size());
  if (match.lease_refused) return match;
  std::vector<PageRef> pages;
  pages.reserve(found.size());
  const uint32_t used_s = SecondsOpen();
  for (PageEntry* const page : found) {
    ++page->leases;
    index_.Touch(page, used_s);
    pages.push_back(page->ref());
  }
  match.lease = leases_.Grant(std::move(pages), now, holder);
  match.ttl = leases_.ttl();
  return match;
}

void Residency::CatchUp() {
  MutexLock lock(mu_);
  index_.TellUses();
}

bool Residency::Renew(const NamedLease& lease) {
  const Time now = options_.clock->Now();
  MutexLock lock(mu_);
  return leases_.Renew(lease, now);
}

bool Residency::Release(const NamedLease& lease) {
  const Time now = options_.clock->Now();
  MutexLock lock(mu_);
  const auto pages = leases_.Release(lease, now);
  if (!pages.has_value()) return false;
  for (const PageRef& page : *pages) index_.EndLease(page);
  changed_.NotifyAll();
  return true;
}

absl::StatusOr<PageFacts> Residency::Find(const PageName& name) {
  MutexLock lock(mu_);
  const PageEntry* const page = index_.Find(name);
  if (page == nullptr) return absl::NotFoundError("no such page");
  return FactsOf(*page);
}

void Residency::Use(const PageName& name) {
  MutexLock lock(mu_);
  PageEntry* const page = index_.Find(name);
  if (page != nullptr && page->leases == 0) index_.Touch(page, SecondsOpen());
}

absl::Status Residency::Pin(const PageName& name, bool pinned) {
  MutexLock lock(mu_);
  PageEntry* const page = index_.Find(name);
  if (page == nullptr) return absl::NotFoundError("no such page");
  index_.Change(page, [&](PageEntry& p) { p.pinned = pinned; });
  return absl::OkStatus();
}

StoreUsage Residency::Usage(SpaceId space) {
  MutexLock lock(mu_);
  if (space != 0) return index_.usage(space);
  StoreUsage usage = index_.usage();
  for (int t = 0; t < kTiers; ++t) usage.tiers[t].budget_bytes = budgets_[t];
  usage.tiers[static_cast<size_t>(TierId::kDisk)].encoded_bytes += unerased_.bytes();
  usage.leases = leases_.size();
  usage.leased_pages = leases_.pages();
  return usage;
}

std::vector<StoreUsage> Residency::UsageByTenant() {
  std::vector<StoreUsage> out;
  MutexLock lock(mu_);
  for (TenantId tenant = 0; tenant < index_.tenants().size(); ++tenant) {
    out.push_back(index_.tenants().usage(tenant));
  }
  return out;
}

TenantShare Residency::ShareOf(TenantId tenant) {
  MutexLock lock(mu_);
  return index_.tenants().share(tenant);
}

StoreCounters Residency::Counters() {
  MutexLock lock(mu_);
  return counters_;
}

void Residency::Count(absl::FunctionRef<void(StoreCounters&)> add) {
  MutexLock lock(mu_);
  add(counters_);
}

std::vector<PageName> Residency::Pages(SpaceId space) {
  struct Key {
    SpaceId space;
    uint8_t bytes;
  };
  std::vector<Key> pages;
  std::string keys;  // all in one: names are made without the lock
  {
    MutexLock lock(mu_);
    const uint64_t count = space == 0 ? index_.size() : index_.usage(space).pages;
    if (count == 0) return {};
    pages.reserve(count);
    index_.ForEach([&](const PageEntry& page) {
      if (space != 0 && page.space != space) return;
      pages.push_back({page.space, page.key_bytes});
      keys.append(page.key().data(), page.key_bytes);
    });
  }
  std::vector<PageName> names;
  names.reserve(pages.size());
  size_t at = 0;
  for (const Key& key : pages) {
    names.push_back({.space = key.space, .key = keys.substr(at, key.bytes)});
    at += key.bytes;
  }
  return names;
}

void Residency::TellPages(StoreObserver& observer) {
  MutexLock lock(mu_);
  observer.Restart(index_.size());
  index_.ForEach(
      [&](const PageEntry& page) { observer.PageCame(page.space, page.key(), page.tokens); });
}

std::vector<PageRef> Residency::PageRefs(SpaceId space) {
  std::vector<PageRef> pages;
  {
    MutexLock lock(mu_);
    const uint64_t count = space == 0 ? index_.size() : index_.usage(space).pages;
    if (count == 0) return pages;
    pages.reserve(count);
    index_.ForEach([&](const PageEntry& page) {
      if (space == 0 || page.space == space) pages.push_back(page.ref());
    });
  }
  std::sort(pages.begin(), pages.end(),
            [](const PageRef& a, const PageRef& b) { return a.number < b.number; });
  return pages;
}

std::vector<PageRef> Residency::PagesNotOnDisk() {
  std::vector<PageRef> pages;
  MutexLock lock(mu_);
  index_.ForEach([&](const PageEntry& page) {
    if (page.on_disk() < page.segment_count) pages.push_back(page.ref());
  });
  return pages;
}

std::vector<PageSample> Residency::Sample(SpaceId space, size_t max_pages) {
  std::vector<PageRef> refs;
  {
    MutexLock lock(mu_);
    index_.ForSome(kMaxWalk, [&](const PageEntry& page) {
      const bool wanted = space == 0 || page.space == space;
      if (wanted && refs.size() < max_pages) refs.push_back(page.ref());
    });
  }
  std::vector<PageSample> out;
  out.reserve(refs.size());
  const uint32_t now_s = SecondsOpen();
  for (size_t first = 0; first < refs.size(); first += kAtOnce) {
    MutexLock lock(mu_);
    for (size_t i = first; i < std::min(first + kAtOnce, refs.size()); ++i) {
      PageEntry* const page = index_.Find(refs[i]);
      if (page == nullptr) continue;  // it went meanwhile
      const uint32_t idle_s = now_s > page->used_s ? now_s - page->used_s : 0;
      out.push_back({.page = WhatIsThere(*page, options_.count_levels),
                     .space = page->space,
                     .raw_bytes = page->raw_bytes,
                     .idle = std::chrono::seconds(idle_s)});
    }
  }
  return out;
}

std::optional<Residency::Copies> Residency::CopiesOf(const PageName& name, PageNumber number,
                                                     std::span<const uint16_t> indices) {
  Copies copies;
  copies.segments.resize(indices.size());
  MutexLock lock(mu_);
  const PageEntry* const page = index_.Find(name);
  if (page == nullptr || page->number != number) return std::nullopt;
  copies.page = page->ref();
  copies.space = name.space;
  for (size_t k = 0; k < indices.size(); ++k) {
    if (indices[k] < page->segment_count) copies.segments[k] = page->segments()[indices[k]];
  }
  return copies;
}

absl::Status Residency::CheckInvariants() {
  MutexLock lock(mu_);
  if (absl::Status s = index_.CheckInvariants(); !s.ok()) return s;
  const auto counts = leases_.CountPages();
  absl::Status wrong;
  index_.ForEach([&](const PageEntry& page) {
    const auto it = counts.find(page.number);
    const uint32_t count = it == counts.end() ? 0 : it->second;
    if (page.leases == count) return;
    wrong = absl::InternalError(
        absl::StrCat("page ", page.number, " counts ", page.leases, " leases, the table ", count));
  });
  for (const TierId t : kAllTiers) {
    uint64_t& ceiling = ceiling_[static_cast<size_t>(t)];
    const uint64_t held = Held(t);
    if (held > std::max(budget(t), ceiling)) {
      wrong = absl::InternalError(absl::StrCat(TierName(t), " is over its budget"));
    }
    ceiling = held;
  }
  wrong.Update(CheckTenants());
  return wrong;
}

absl::Status Residency::CheckTenants() {
  const Tenants& tenants = index_.tenants();
  tenant_ceilings_.resize(tenants.size(), TierBytes{});
  for (const TierId t : kAllTiers) {
    uint64_t reserved = 0;
    for (TenantId tenant = 0; tenant < tenants.size(); ++tenant) {
      reserved += tenants.reserved(tenant, t);
      uint64_t& ceiling = tenant_ceilings_[tenant][static_cast<size_t>(t)];
      const uint64_t held = tenants.Held(tenant, t);
      if (held > std::max(tenants.LimitOf(tenant, t), ceiling)) {
        return absl::InternalError(
            absl::StrCat("tenant ", tenant, " is over its limit in ", TierName(t)));
      }
      ceiling = held;
    }
    if (reserved != reserved_[static_cast<size_t>(t)]) {
      return absl::InternalError(
          absl::StrCat("the rooms of tenants in ", TierName(t), " do not add up"));
    }
  }
  return absl::OkStatus();
}

SpaceId Residency::NewSpaceId() {
  MutexLock lock(mu_);
  return spaces_.New();
}

absl::Status Residency::AddSpace(SpaceId id, TenantId tenant) {
  MutexLock lock(mu_);
  KVSTOW_RETURN_IF_ERROR(spaces_.CheckMaySave(id));
  if (!spaces_.Has(id)) index_.SetTenant(id, tenant);
  spaces_.Add(id);
  return absl::OkStatus();
}

void Residency::DropSpace(SpaceId id) {
  MutexLock lock(mu_);
  spaces_.Drop(id);
  const auto is_in = [&](const PageName& name) { return name.space == id; };
  while (std::any_of(pending_.begin(), pending_.end(), is_in)) changed_.Wait(mu_);
}

uint32_t Residency::SecondsOpen() const {
  const auto open =
      std::chrono::duration_cast<std::chrono::seconds>(options_.clock->Now() - opened_);
  return static_cast<uint32_t>(
      std::clamp<int64_t>(open.count(), 0, std::numeric_limits<uint32_t>::max()));
}

PageFacts Residency::FactsOf(const PageEntry& page) const {
  PageFacts facts{.number = page.number,
                  .header = SharedBytes::CopyOf(page.header()),
                  .raw_digest = page.raw_digest,
                  .tokens = page.tokens,
                  .first_position = page.first_position,
                  .raw_bytes = page.raw_bytes,
                  .whole = page.whole,
                  .hot = page.hot};
  for (const PageEntry::Segment& segment : page.segments()) {
    facts.segments.push_back(segment.facts);
    facts.tiers.push_back(segment.tiers.Hottest());
  }
  if (page.on_disk() == page.segment_count) facts.ack = page.disk_ack;
  return facts;
}

void Residency::ReapLeases() {
  const LeaseTable::Expired expired = leases_.Expire(options_.clock->Now());
  counters_.expired_leases += expired.leases;
  for (const PageRef& page : expired.pages) index_.EndLease(page);
}

uint64_t Residency::Held(TierId t) const {
  return index_.bytes(t) + reserved_[static_cast<size_t>(t)] +
         (t == TierId::kDisk ? unerased_.bytes() : 0);
}

void Residency::Reserve(TenantId tenant, const TierBytes& room) {
  for (const TierId t : kAllTiers) {
    const uint64_t bytes = room[static_cast<size_t>(t)];
    if (bytes == 0) continue;
    reserved_[static_cast<size_t>(t)] += bytes;
    index_.tenants().Reserve(tenant, t, bytes);
  }
}

void Residency::Return(TenantId tenant, const TierBytes& room) {
  for (const TierId t : kAllTiers) {
    const uint64_t bytes = room[static_cast<size_t>(t)];
    if (bytes == 0) continue;
    reserved_[static_cast<size_t>(t)] -= bytes;
    index_.tenants().Reserve(tenant, t, -bytes);
  }
  changed_.NotifyAll();
}

void Residency::EraseLater(const PageEntry& page, size_t segments, uint64_t bytes,
                           bool sync_first) {
  if (segments == 0) return;
  unerased_.Add({.name = page.name(),
                 .number = page.number,
                 .segments = segments,
                 .bytes = bytes,
                 .sync_first = sync_first});
}

}  // namespace kvstow
