// Pages into the store: Put.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "storage/store/tiered_store.h"

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

// What a tenant may hold in a tier of that budget.
uint64_t WithinLimit(const TenantShare& share, TierId t, uint64_t budget) {
  const uint64_t limit = share.limit[static_cast<size_t>(t)];
  return limit == 0 ? budget : std::min(limit, budget);
}

absl::Status Full(const TenantShare& share, TierId t) {
  const uint64_t limit = share.limit[static_cast<size_t>(t)];
  const std::string what = limit == 0 ? std::string(TierName(t))
                                      : absl::StrCat(TierName(t), ", of which the tenant may hold ",
                                                     FormatSize(limit), ",");
  return absl::ResourceExhaustedError(
      absl::StrCat(what, " is full of leased or pinned pages: try again when leases have ended"));
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

absl::StatusOr<PutOutcome> TieredStore::Put(PageToStore page) {
  KVSTOW_RETURN_IF_ERROR(Validate(page));
  if (page.ack != Ack::kMemory && !usable(TierId::kDisk)) return NoDisk();
  KVSTOW_RETURN_IF_ERROR(cooling_.MakeIndexRoom(page.name.space));
  std::optional<PendingName> name;
  while (!name.has_value()) {
    KVSTOW_ASSIGN_OR_RETURN(PendingName::Taken taken, PendingName::Take(residency_, page));
    if (taken.outcome == PutOutcome::kConflict) return PutOutcome::kConflict;
    if (taken.outcome == PutOutcome::kStored) {
      name.emplace(*std::move(taken.name));
    } else if (const auto met = MeetAck(taken.there, page.ack); met.has_value()) {
      KVSTOW_RETURN_IF_ERROR(*met);
      return PutOutcome::kAlreadyThere;
    }
  }

  KVSTOW_RETURN_IF_ERROR(cooling_.MakePlace(*name, page.name.space));
  GiveEachItsOwnBlock(page);
  std::unique_ptr<PageEntry> entry = EntryOf(page, name->number(), name->parent());
  KVSTOW_ASSIGN_OR_RETURN(Room room, StoreBodies(*entry, page.bodies, page.ack));
  if (name->Publish(std::move(entry), std::move(room))) cooling_.Wake();
  return PutOutcome::kStored;
}

// The page is there; what is left to do is what this ack promises. Nothing when the page was
// removed meanwhile.
std::optional<absl::Status> TieredStore::MeetAck(const PageRef& page, Ack ack) {
  if (ack != Ack::kMemory) {
    std::optional<Claim> claim = Claim::Take(residency_, page, Wait::kYes);
    if (!claim.has_value()) return std::nullopt;
    const absl::Status written = cooling_.CopyToDisk(*claim, (*claim)->segment_count, ack);
    if (claim->gone()) return std::nullopt;  // it proved damaged
    if (!written.ok()) return written;
  }
  residency_.Count([](StoreCounters& counters) { ++counters.already_there; });
  return absl::OkStatus();
}

// Sets the tiers of the page's segments. Returns the room of its bytes there.
absl::StatusOr<Room> TieredStore::StoreBodies(PageEntry& page, std::span<const SharedBytes> bodies,
                                              Ack ack) {
  std::vector<SegmentBody> list;
  for (size_t i = 0; i < bodies.size(); ++i) list.push_back({page.id(i), bodies[i]});
  const uint64_t bytes = page.BytesOf(0, page.segment_count);
  const auto is_in = [&](TierId t) {
    for (PageEntry::Segment& segment : page.segments()) segment.tiers.Add(t);
  };

  const TenantShare share = cooling_.ShareOf(page.space);
  KVSTOW_RETURN_IF_ERROR(CheckFits(share, bytes, ack));
  absl::StatusOr<Stored> memory = StoreInMemory(page, share, list, bytes);
  if (memory.ok()) is_in(memory->tier);
  if (memory.ok() && ack == Ack::kMemory) return std::move(memory->room);

  // With bytes in memory what is missing is a disk, whose budget was taken away meanwhile.
  absl::StatusOr<Room> disk = memory.ok() ? NoDisk() : memory.status();
  if (usable(TierId::kDisk)) disk = StoreOnDisk(page, share, list, bytes, ack);
  if (!disk.ok()) {
    if (memory.ok()) movement_.EraseNew(memory->tier, list);
    return disk.status();
  }
  is_in(TierId::kDisk);
  if (memory.ok()) disk->Add(std::move(memory->room));
  return disk;
}

absl::Status TieredStore::CheckFits(const TenantShare& share, uint64_t bytes, Ack ack) const {
  uint64_t largest = 0, allowed = 0;
  for (const TierId t : kAllTiers) {
    if (usable(t) && (ack == Ack::kMemory || t == TierId::kDisk)) {
      largest = std::max(largest, residency_.budget(t));
      allowed = std::max(allowed, WithinLimit(share, t, residency_.budget(t)));
    }
  }
  if (bytes <= allowed) return absl::OkStatus();
  const char* const where = ack == Ack::kMemory ? "every tier" : "the disk tier";
  if (bytes <= largest) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a page of ", FormatSize(bytes), " is larger than the tenant's limit in ",
                     where, " (", FormatSize(allowed), "): ask for a larger quota"));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "a page of ", FormatSize(bytes), " is larger than ", where, " (", FormatSize(largest), ")"));
}

// The hottest memory tier that took the bodies; an error says why none did.
absl::StatusOr<TieredStore::Stored> TieredStore::StoreInMemory(const PageEntry& page,
                                                               const TenantShare& share,
                                                               std::span<const SegmentBody> bodies,
                                                               uint64_t bytes) {
  absl::Status why = absl::ResourceExhaustedError("the page fits into no tier in memory");
  for (const TierId t : {TierId::kGpu, TierId::kHost}) {
    if (!usable(t) || bytes > WithinLimit(share, t, residency_.budget(t))) continue;
    std::optional<Room> room = cooling_.MakeRoom(t, bytes, page.space, Wait::kYes);
    if (!room.has_value()) {
      why = Full(share, t);
      continue;
    }
    const absl::Status written = movement_.WriteNew(t, page, bodies, Ack::kMemory);
    if (written.ok()) return Stored{t, *std::move(room)};
    why = written;
  }
  return why;
}

absl::StatusOr<Room> TieredStore::StoreOnDisk(const PageEntry& page, const TenantShare& share,
                                              std::span<const SegmentBody> bodies, uint64_t bytes,
                                              Ack ack) {
  constexpr TierId kTo = TierId::kDisk;
  std::optional<Room> room;
  if (bytes <= WithinLimit(share, kTo, residency_.budget(kTo))) {
    room = cooling_.MakeRoom(kTo, bytes, page.space, Wait::kYes);
  }
  if (!room.has_value()) {
    if (movement_.HasForgotten()) {
      return absl::ResourceExhaustedError(
          "disk has no room: it does not take removals, which are tried again until it does");
    }
    return Full(share, kTo);
  }
  KVSTOW_RETURN_IF_ERROR(movement_.WriteNew(kTo, page, bodies, ack));
  return *std::move(room);
}

}  // namespace kvstow
