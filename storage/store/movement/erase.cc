// Bytes that leave tiers, and what is to be erased on disk.
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "storage/store/movement/movement.h"

namespace kvstow {

void Movement::DropCopies(Claim& claim, TierId from, std::span<const uint16_t> indices,
                          std::optional<TierId> by) {
  if (indices.empty()) return;
  std::vector<SegmentId> ids;
  for (const uint16_t i : indices) ids.push_back(claim->id(i));
  const size_t on_disk = claim->on_disk();
  const Room leaving = claim.DropCopies(from, indices, by);
  absl::Status erased;
  if (from != TierId::kDisk) {
    erased = tier(from).Erase(ids);
  } else if (indices.front() == 0) {
    EraseForgotten().IgnoreError();  // it is tried again
  } else {
    erased = parts_.catalog->TruncatePage(claim->Record(indices.front()), on_disk, claim->disk_ack);
  }
  if (!erased.ok()) CountDiskErrors(1);
}

absl::Status Movement::Truncate(Claim& claim, size_t keep, Why why, std::optional<TierId> by) {
  if (keep >= claim->segment_count) return absl::OkStatus();  // damage has cut it already
  if (claim->whole) keep = 0;
  const size_t on_disk = claim->on_disk();
  const PageNumber number = claim->number;
  std::array<std::vector<SegmentId>, kTiers> ids;
  for (const TierId t : {TierId::kGpu, TierId::kHost}) {
    for (const uint16_t i : claim->SegmentsIn(t, keep)) {
      ids[static_cast<size_t>(t)].push_back(claim->id(i));
    }
  }
  const absl::StatusOr<Room> leaving = claim.Truncate(keep, why, by);
  if (!leaving.ok()) return leaving.status();
  absl::Status erased;
  for (const TierId t : {TierId::kGpu, TierId::kHost}) {
    const auto& gone = ids[static_cast<size_t>(t)];
    if (!gone.empty()) erased.Update(tier(t).Erase(gone));
  }
  if (keep > 0 && on_disk > keep) {
    erased.Update(parts_.catalog->TruncatePage(claim->Record(keep), on_disk, claim->disk_ack));
  }
  if (keep == 0 && why != Why::kDelete) EraseForgotten().IgnoreError();  // it is tried again
  if (erased.ok()) return absl::OkStatus();
  CountDiskErrors(1);
  // What is cut off is forgotten here; at worst it lies on disk until the next write succeeds.
  Log().warn("page {}: {}", number, erased.ToString());
  return absl::OkStatus();
}

// The new page is another page with a number of its own: written first, published in the place of
// the old one in one step, and only then is the old one erased. A crash in between leaves two pages
// of one name on disk, of which recovery takes the later.
bool Movement::Replace(Claim& claim, std::unique_ptr<PageEntry> page,
                       std::span<const SharedBytes> bodies) {
  if (!WriteElsewhere(*page, bodies)) return false;
  const Claim::Replaced replaced = claim.Replace(std::move(page));
  EraseInMemory(*replaced.lost);
  const absl::Status erased = EraseForgotten();
  if (!erased.ok()) {
    Log().warn("page {} stays on disk for now: {}", replaced.lost->number, erased.ToString());
  }
  return claim.gone();
}

// A page that is not in the index.
void Movement::EraseInMemory(const PageEntry& page) {
  for (const TierId t : {TierId::kGpu, TierId::kHost}) {
    std::vector<SegmentId> ids;
    for (const uint16_t i : page.SegmentsIn(t, 0)) ids.push_back(page.id(i));
    const absl::Status erased = ids.empty() ? absl::OkStatus() : tier(t).Erase(ids);
    if (!erased.ok()) Log().warn("page {}: {}", page.number, erased.ToString());
  }
}

// A disk that refuses one removal refuses the others, too. A sync that fails may fail until a
// restart, so what needs none does not wait for what does.
absl::Status Movement::EraseForgotten() {
  absl::Status synced, erased;
  std::vector<Unerased::Item> unsynced;
  for (size_t most = erasures_.size(); most > 0 && erased.ok(); --most) {
    const std::optional<Unerased::Item> item = erasures_.Next();
    if (!item.has_value()) break;
    if (item->sync_first && synced.ok()) synced = Sync();
    if (item->sync_first && !synced.ok()) {
      unsynced.push_back(*item);
      continue;
    }
    erased = item->name.key.empty() ? parts_.catalog->EraseSpace(item->name.space)
                                    : parts_.catalog->ErasePage(item->number, item->segments);
    erasures_.Done(*item, erased.ok());
  }
  for (const Unerased::Item& item : unsynced) erasures_.Done(item, false);
  synced.Update(erased);
  return synced;
}

absl::Status Movement::EraseForgotten(const PageName& name) {
  for (absl::Status erased;; erased = EraseForgotten()) {
    if (!erasures_.IsLeft(name)) return absl::OkStatus();
    if (erased.ok()) continue;  // not tried yet, or by another thread, which failed
    return absl::UnavailableError(
        absl::StrCat("the disk did not take a removal, which is tried again until it does; what is "
                     "to go is not served meanwhile: ",
                     erased.message()));
  }
}

absl::Status Movement::EraseSpace(SpaceId space) {
  erasures_.AddSpace(space);
  return EraseForgotten({.space = space});
}

}  // namespace kvstow
