// Bytes into tiers, and from one tier to another.
#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "storage/store/movement/movement.h"

namespace kvstow {
namespace {

// What may be left to erase before the disk gets another page. Each write that fails may leave
// more, and that takes memory.
constexpr size_t kMostForgotten = 1024;

}  // namespace

absl::Status Movement::Write(TierId to, const PageEntry& page, std::span<const SegmentBody> bodies,
                             Ack ack) {
  if (to != TierId::kDisk) return tier(to).Write(bodies);
  return parts_.catalog->PutPage(page.Record(page.segment_count), bodies, ack);
}

absl::Status Movement::WriteNew(TierId to, const PageEntry& page,
                                std::span<const SegmentBody> bodies, Ack ack) {
  if (to != TierId::kDisk) return Write(to, page, bodies, ack);
  if (erasures_.size() >= kMostForgotten) KVSTOW_RETURN_IF_ERROR(EraseForgotten());
  const absl::Status written = Write(to, page, bodies, ack);
  if (written.ok()) return written;
  CountDiskErrors(1);
  // It may have reached the disk all the same, and is to go with the next page of its name.
  erasures_.Add(page);
  EraseForgotten().IgnoreError();  // it is tried again
  return written;
}

void Movement::EraseNew(TierId from, std::span<const SegmentBody> bodies) {
  std::vector<SegmentId> ids;
  for (const SegmentBody& body : bodies) ids.push_back(body.id);
  tier(from).Erase(ids).IgnoreError();  // the put has failed already
}

// They are written as they were read.
void Movement::Promote(const PageRef& page, std::span<const uint16_t> indices,
                       std::span<const SharedBytes> bodies) {
  constexpr TierId kTo = TierId::kHost;
  if (residency_.budget(kTo) == 0) return;
  std::optional<Claim> claim = Claim::Take(residency_, page, Wait::kNo);
  if (!claim.has_value()) return;
  const PageEntry& entry = **claim;
  std::vector<SegmentBody> list;
  uint64_t bytes = 0;
  for (size_t k = 0; k < indices.size(); ++k) {
    const uint16_t i = indices[k];
    if (i >= entry.segment_count || entry.segments()[i].tiers.Has(kTo)) continue;
    list.push_back({entry.id(i), bodies[k]});
    bytes += entry.BytesOf(i);
  }
  if (list.empty()) return;
  std::optional<Room> room = claim->SpareRoom(kTo, bytes);
  if (!room.has_value()) return;
  // Bodies from the disk lie in memory that is for bytes on their way (storage/disk/block_pool.h).
  for (SegmentBody& body : list) body.bytes = SharedBytes::CopyOf(body.bytes.span());
  if (!tier(kTo).Write(list).ok()) return;  // it stays where it is
  claim->Change(
      [&](PageEntry& changed) {
        changed.disk_uses = 0;
        for (const SegmentBody& body : list) changed.segments()[body.id.index].tiers.Add(kTo);
      },
      *std::move(room));
}

absl::Status Movement::CopyToHost(Claim& claim, std::span<const uint16_t> indices, Room room) {
  constexpr TierId kTo = TierId::kHost;
  KVSTOW_ASSIGN_OR_RETURN(const std::vector<SegmentBody> list, ReadAll(claim, indices));
  KVSTOW_RETURN_IF_ERROR(tier(kTo).Write(list));
  claim.Change(
      [&](PageEntry& page) {
        for (const SegmentBody& body : list) page.segments()[body.id.index].tiers.Add(kTo);
      },
      std::move(room));
  return absl::OkStatus();
}

absl::Status Movement::CopyToDisk(Claim& claim, size_t end, Ack ack, Room room) {
  if (erasures_.size() >= kMostForgotten) KVSTOW_RETURN_IF_ERROR(EraseForgotten());
  const size_t on_disk = claim->on_disk();
  // Earlier parts that were written with a weaker promise are written again.
  const size_t first = claim->disk_ack >= ack ? on_disk : 0;
  std::vector<uint16_t> indices;
  for (size_t i = first; i < end; ++i) indices.push_back(static_cast<uint16_t>(i));
  KVSTOW_ASSIGN_OR_RETURN(const std::vector<SegmentBody> list, ReadAll(claim, indices));
  const absl::Status written = parts_.catalog->PutPage(claim->Record(end), list, ack);
  if (!written.ok()) {
    room.Release();
    CountDiskErrors(1);
    claim.Note([](PageEntry& page) { page.disk_failed = true; });
    return written;
  }
  claim.Change(
      [&](PageEntry& page) {
        for (size_t i = on_disk; i < end; ++i) page.segments()[i].tiers.Add(TierId::kDisk);
        page.disk_ack = first == 0 ? ack : std::min(page.disk_ack, ack);
      },
      std::move(room));
  return absl::OkStatus();
}

absl::Status Movement::Strengthen(Claim& claim, Ack ack) {
  if (claim->disk_ack >= ack) return absl::OkStatus();
  KVSTOW_RETURN_IF_ERROR(Sync());
  claim.Note([](PageEntry& page) { page.disk_ack = Ack::kDurable; });
  return absl::OkStatus();
}

// All of a page that is not in the index yet, into the tiers that its segments name. It is smaller
// than the page whose place it takes, so no room is reserved for it.
bool Movement::WriteElsewhere(const PageEntry& page, std::span<const SharedBytes> bodies) {
  std::vector<SegmentBody> list;
  for (size_t i = 0; i < bodies.size(); ++i) list.push_back({page.id(i), bodies[i]});
  const TierSet tiers = page.segments()[0].tiers;
  if (tiers.Has(TierId::kDisk) && erasures_.size() >= kMostForgotten && !EraseForgotten().ok()) {
    return false;
  }
  absl::Status written;
  for (const TierId t : {TierId::kDisk, TierId::kHost, TierId::kGpu}) {
    if (!tiers.Has(t)) continue;
    written = Write(t, page, list, page.disk_ack);
    if (!written.ok()) break;
  }
  if (written.ok()) return true;
  EraseInMemory(page);
  if (tiers.Has(TierId::kDisk)) {
    CountDiskErrors(1);
    erasures_.Add(page);  // it may be there, even if that failed
  }
  EraseForgotten().IgnoreError();  // it is tried again
  return false;
}

void Movement::CountDiskErrors(uint64_t errors) {
  residency_.Count([&](StoreCounters& counters) { counters.disk_errors += errors; });
}

}  // namespace kvstow
