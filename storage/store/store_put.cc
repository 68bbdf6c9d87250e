// Pages into the index, and all of them to disk: Put, Flush.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "storage/record.h"
#include "storage/store/store_impl.h"

namespace kvstow {
namespace {

absl::Status Validate(const PageToStore& page) {
  const auto invalid = [](absl::string_view what) { return absl::InvalidArgumentError(what); };
  if (page.name.space == 0) return invalid("a page belongs to a space: ids start at 1");
  if (page.name.key.empty() || page.name.key.size() > kMaxStoreKeyBytes) {
    return invalid(absl::StrCat("a key has 1 to ", kMaxStoreKeyBytes, " bytes, this one has ",
                                page.name.key.size()));
  }
  if (page.parent_key.size() > kMaxStoreKeyBytes) {
    return invalid(absl::StrCat("a key has 1 to ", kMaxStoreKeyBytes, " bytes, that of the parent ",
                                page.parent_key.size()));
  }
  if (page.facts.empty() || page.facts.size() > kMaxPageSegments) {
    return invalid(absl::StrCat("a page has 1 to ", kMaxPageSegments, " segments, this one has ",
                                page.facts.size()));
  }
  if (page.header.size() > kMaxHeaderBytes) {
    return invalid(absl::StrCat("a header has at most ", kMaxHeaderBytes, " bytes, this one has ",
                                page.header.size()));
  }
  if (page.facts.size() != page.bodies.size()) {
    return invalid(
        absl::StrCat(page.facts.size(), " segments with ", page.bodies.size(), " bodies"));
  }
  for (size_t i = 0; i < page.facts.size(); ++i) {
    if (page.facts[i].bytes == page.bodies[i].size()) continue;
    return invalid(absl::StrCat("segment ", i, " is said to have ", page.facts[i].bytes,
                                " bytes and has ", page.bodies[i].size()));
  }
  return absl::OkStatus();
}

absl::Status NoDisk() {
  return absl::FailedPreconditionError(
      "there is no disk tier: a put can only be acknowledged as held in memory");
}

// Bodies that are slices of one block would keep all of it in memory until the last one goes: those
// of a page that may lose its tail get a block each.
void GiveEachItsOwnBlock(PageToStore& page) {
  if (page.whole) return;
  for (size_t i = 1; i < page.bodies.size(); ++i) {
    if (page.bodies[i].owner() != page.bodies[i - 1].owner()) continue;
    for (SharedBytes& body : page.bodies) body = SharedBytes::CopyOf(body.span());
    return;
  }
}

std::unique_ptr<PageEntry> EntryOf(const PageToStore& page, PageNumber number, uint64_t parent) {
  std::unique_ptr<PageEntry> entry = PageEntry::Make({.number = number,
                                                      .name = page.name,
                                                      .header = page.header,
                                                      .raw_digest = page.raw_digest,
                                                      .raw_bytes = page.raw_bytes,
                                                      .first_position = page.first_position,
                                                      .tokens = page.tokens,
                                                      .whole = page.whole,
                                                      .hot = page.hot,
                                                      .facts = page.facts},
                                                     {});
  entry->disk_ack = page.ack;
  entry->parent = parent;
  return entry;
}

}  // namespace

absl::StatusOr<PutOutcome> TieredStore::Impl::Put(PageToStore page) {
  KVSTOW_RETURN_IF_ERROR(Validate(page));
  if (page.ack != Ack::kMemory && !usable(TierId::kDisk)) {
    return NoDisk();
  }
  KVSTOW_RETURN_IF_ERROR(KeepIndexWithin());
  NameTaken own;
  while (own.page.number == 0) {
    KVSTOW_ASSIGN_OR_RETURN(const NameTaken taken, TakeName(page));
    if (taken.outcome == PutOutcome::kConflict) return PutOutcome::kConflict;
    if (taken.outcome == PutOutcome::kStored) {
      own = taken;
    } else if (const auto kept = KeepPromise(taken.page, page.ack); kept.has_value()) {
      KVSTOW_RETURN_IF_ERROR(*kept);
      return PutOutcome::kAlreadyThere;
    }
  }

  GiveEachItsOwnBlock(page);
  std::unique_ptr<PageEntry> entry = EntryOf(page, own.page.number, own.parent);
  const uint64_t bytes = entry->BytesOf(0, entry->segment_count);
  const absl::StatusOr<TierSet> tiers = StoreBodies(*entry, page.bodies, page.ack);
  MutexLock lock(mu_);
  pending_.erase(page.name);
  changed_.NotifyAll();
  if (!tiers.ok()) return tiers.status();
  for (PageEntry::Segment& segment : entry->segments()) segment.tiers = *tiers;
  entry->used_s = SecondsOpen();
  index_.Insert(std::move(entry));
  parts_.observer->PageCame(page.name.space, page.name.key, page.tokens);
  ++counters_.puts;
  for (int t = 0; t < kTiers; ++t) {
    const auto id = static_cast<TierId>(t);
    if (!tiers->Has(id)) continue;
    reserved(id) -= bytes;
    if (Held(id) > options_.high_watermark * budget(id)) wake_.NotifyOne();
  }
  return PutOutcome::kStored;
}

// Forgets whole pages while the index takes more memory than it may: those that the coldest tier
// wants to free first, for they are what an index grows by.
absl::Status TieredStore::Impl::KeepIndexWithin() {
  for (;;) {
    std::optional<Claim> claim;
    TierId from = TierId::kDisk;
    {
      MutexLock lock(mu_);
      if (options_.index_bytes == 0 || index_.usage().index_bytes <= options_.index_bytes) {
        return absl::OkStatus();
      }
      ReapLeases();
      const auto free = [](const PageEntry& page) {
        if (page.is_protected()) return PageIndex::Offer::kHeld;
        return page.busy ? PageIndex::Offer::kNotNow : PageIndex::Offer::kTaken;
      };
      for (const TierId t : {TierId::kDisk, TierId::kHost, TierId::kGpu}) {
        PageEntry* const page = index_.Victim(t, free);
        if (page == nullptr) continue;
        claim = Begin(page);
        from = t;
        break;
      }
    }
    if (!claim.has_value()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the index of pages takes more than ", FormatSize(options_.index_bytes),
                       ", and all of them are leased, pinned or in use"));
    }
    KVSTOW_RETURN_IF_ERROR(Truncate(*claim, 0, Why::kPolicy, from));
  }
}

// Either the name is this put's, with a number for the page, or there is such a page.
absl::StatusOr<TieredStore::Impl::NameTaken> TieredStore::Impl::TakeName(const PageToStore& page) {
  MutexLock lock(mu_);
  // A put of the same name that began before goes first. This put then sees its result.
  while (pending_.contains(page.name)) changed_.Wait(mu_);
  KVSTOW_RETURN_IF_ERROR(spaces_.CheckNotDropped(page.name.space));
  PageEntry* const old = index_.Find(page.name);
  if (old == nullptr) {
    pending_.insert(page.name);
    const uint64_t parent = index_.ParentOf(page.name, page.parent_key);
    return NameTaken{PutOutcome::kStored, {.number = next_number_++}, parent};
  }
  if (old->raw_digest != page.raw_digest) {
    ++counters_.conflicts;
    return NameTaken{PutOutcome::kConflict, old->ref()};
  }
  if (old->leases == 0) index_.Touch(old, SecondsOpen());
  return NameTaken{PutOutcome::kAlreadyThere, old->ref()};
}

// The page is there; what is left to do is to keep the promise that this ack makes. Nothing when
// the page was removed meanwhile.
std::optional<absl::Status> TieredStore::Impl::KeepPromise(const PageRef& page, Ack ack) {
  if (ack != Ack::kMemory) {
    std::optional<Claim> claim = ClaimPage(page, Wait::kYes);
    if (!claim.has_value()) return std::nullopt;
    const absl::Status kept = WriteThrough(*claim, claim->page()->segment_count, ack);
    if (claim->page() == nullptr) return std::nullopt;  // it proved damaged
    if (!kept.ok()) return kept;
  }
  MutexLock lock(mu_);
  ++counters_.already_there;
  return absl::OkStatus();
}

// Leaves the bytes reserved in the tiers of the result: publishing turns them into index bytes.
absl::StatusOr<TierSet> TieredStore::Impl::StoreBodies(const PageEntry& page,
                                                       std::span<const SharedBytes> bodies,
                                                       Ack ack) {
  std::vector<SegmentBody> list;
  for (size_t i = 0; i < bodies.size(); ++i) list.push_back({page.id(i), bodies[i]});
  const uint64_t bytes = page.BytesOf(0, page.segment_count);

  TierSet tiers;
  KVSTOW_RETURN_IF_ERROR(CheckFits(bytes, ack));
  const absl::StatusOr<TierId> memory = StoreInMemory(list, bytes);
  if (memory.ok()) tiers.Add(*memory);
  if (!tiers.empty() && ack == Ack::kMemory) return tiers;

  // With bytes in memory what is missing is a disk, whose budget was taken away meanwhile.
  absl::Status stored = memory.ok() ? NoDisk() : memory.status();
  if (usable(TierId::kDisk)) stored = StoreOnDisk(page, list, bytes, ack);
  if (stored.ok()) {
    tiers.Add(TierId::kDisk);
    return tiers;
  }
  if (!tiers.empty()) {
    std::vector<SegmentId> ids;
    for (const SegmentBody& body : list) ids.push_back(body.id);
    tier(tiers.Hottest()).Erase(ids).IgnoreError();  // the put has failed already
    Unreserve(tiers.Hottest(), bytes);
  }
  return stored;
}

absl::Status TieredStore::Impl::CheckFits(uint64_t bytes, Ack ack) const {
  uint64_t largest = 0;
  for (const TierId t : {TierId::kGpu, TierId::kHost, TierId::kDisk}) {
    if (usable(t) && (ack == Ack::kMemory || t == TierId::kDisk)) {
      largest = std::max(largest, budget(t));
    }
  }
  if (bytes <= largest) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "a page of ", FormatSize(bytes), " is larger than ",
      ack == Ack::kMemory ? "every tier" : "the disk tier", " (", FormatSize(largest), ")"));
}

// The hottest memory tier that took the bodies; an error says why none did.
absl::StatusOr<TierId> TieredStore::Impl::StoreInMemory(std::span<const SegmentBody> bodies,
                                                        uint64_t bytes) {
  absl::Status why = absl::ResourceExhaustedError("the page fits into no tier in memory");
  for (const TierId t : {TierId::kGpu, TierId::kHost}) {
    if (!usable(t) || bytes > budget(t)) continue;
    if (!Reserve(t, bytes, Wait::kYes)) {
      why = absl::ResourceExhaustedError(absl::StrCat(
          TierName(t), " is full of leased or pinned pages: try again when leases have ended"));
      continue;
    }
    const absl::Status written = tier(t).Write(bodies);
    if (written.ok()) return t;
    Unreserve(t, bytes);
    why = written;
  }
  return why;
}

absl::Status TieredStore::Impl::StoreOnDisk(const PageEntry& page,
                                            std::span<const SegmentBody> bodies, uint64_t bytes,
                                            Ack ack) {
  if (bytes > budget(TierId::kDisk) || !Reserve(TierId::kDisk, bytes, Wait::kYes)) {
    MutexLock lock(mu_);
    if (unerased_.bytes() > 0) {
      return absl::ResourceExhaustedError(
          "disk has no room: it does not take removals, which are tried again until it does");
    }
    return absl::ResourceExhaustedError(
        "disk is full of leased or pinned pages: try again when leases have ended");
  }
  const absl::Status written =
      parts_.catalog->PutPage(page.Record(page.segment_count), bodies, ack);
  if (written.ok()) return written;
  // Bytes that reached the disk all the same come back at a restart as a whole page, or not at all.
  Unreserve(TierId::kDisk, bytes);
  MutexLock lock(mu_);
  ++counters_.disk_errors;
  return written;
}

absl::Status TieredStore::Impl::Flush() {
  if (!usable(TierId::kDisk)) return absl::OkStatus();
  std::vector<PageRef> unwritten;
  {
    MutexLock lock(mu_);
    index_.ForEach([&](const PageEntry& page) {
      if (page.on_disk() < page.segment_count) unwritten.push_back(page.ref());
    });
  }
  absl::Status first_error = EraseNow();
  for (const PageRef& page : unwritten) {
    std::optional<Claim> claim = ClaimPage(page, Wait::kYes);
    if (!claim.has_value()) continue;
    first_error.Update(WriteThrough(*claim, claim->page()->segment_count, Ack::kMemory));
  }
  first_error.Update(parts_.catalog->Sync());
  return first_error;
}

}  // namespace kvstow
