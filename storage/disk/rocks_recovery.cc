// Recovers what an earlier process left in the database (storage/disk/rocks_database.h says why).
#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/bytes.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "storage/disk/rocks_database.h"
#include "storage/record.h"

namespace kvstow {
namespace {

// No number that was ever given is larger; a damaged one may look so.
constexpr uint64_t kMaxCommit = uint64_t{1} << 60;

}  // namespace

absl::Status Database::Recover() {
  uint64_t synced = 0;
  if (const auto value = Get(kDefault, kSyncedKey); value.ok()) {
    synced = ByteReader(AsBytes(*value)).Get<uint64_t>();
  } else if (!absl::IsNotFound(value.status())) {
    return value.status();
  }
  synced = std::min(synced, kMaxCommit);
  uint64_t last = synced, unreadable = 0;
  std::vector<Found> found, doubtful;
  const absl::Status scanned =
      Scan(kSegments, [&](std::span<const uint8_t> key, std::span<const uint8_t> bytes) {
        const auto value = ParseSegmentValue(key, bytes);
        const auto id = SegmentOfKey(key);
        if (!value.ok() || !id.has_value() || value->place.commit > kMaxCommit) {
          ++unreadable;
          return;
        }
        last = std::max(last, value->place.commit);
        const Found one{*id, value->place};
        if (one.place.commit > synced) doubtful.push_back(one);
        if (one.place.file != 0) found.push_back(one);
      });
  if (unreadable > 0) Log().error("{}: places of {} segments are damaged", folder_, unreadable);
  std::sort(doubtful.begin(), doubtful.end(),
            [](const Found& a, const Found& b) { return a.place.commit < b.place.commit; });
  KVSTOW_ASSIGN_OR_RETURN(const uint64_t torn, FirstTorn(doubtful));
  if (torn > 0) {
    const auto is_lost = [&](const Found& f) { return f.place.commit >= torn; };
    std::erase_if(doubtful, [&](const Found& f) { return !is_lost(f); });
    Log().warn("{}: the last {} segments were not yet on disk when power was lost", folder_,
               doubtful.size());
    KVSTOW_RETURN_IF_ERROR(Forget(doubtful));
    std::erase_if(found, is_lost);
  }
  KVSTOW_RETURN_IF_ERROR(ForgetOverwritten(found));
  std::vector<Extent> live;
  for (const Found& one : found) {
    live.push_back(one.place.extent());
    if (one.place.commit > synced) segments_->SetDirty(one.place.file);
  }
  if (scanned.ok()) {
    segments_->SetLive(std::move(live));
  } else {
    // Unseen records may lie anywhere: nothing there may be written over.
    Log().error(
        "{}: places of segments cannot be read any further, and no space of removed ones is "
        "used again: {}",
        folder_, scanned.ToString());
  }
  segments_->SetCommit(last, synced);
  return last == synced ? absl::OkStatus() : Sync();
}

absl::StatusOr<uint64_t> Database::FirstTorn(std::span<const Found> doubtful) {
  for (const Found& one : doubtful) {
    if (one.place.file == 0) continue;
    const SegmentStore::Wanted wanted{one.id, one.place};
    absl::Status whole = segments_->WriteAgain(wanted);
    // What cannot be read may be whole, and what is forgotten here is gone for good.
    if (!whole.ok() && !absl::IsDataLoss(whole)) whole = segments_->WriteAgain(wanted);
    if (absl::IsDataLoss(whole)) return one.place.commit;
    KVSTOW_RETURN_IF_ERROR(whole);
  }
  return 0;
}

absl::Status Database::Forget(std::span<const Found> found) {
  Batch batch;
  std::map<PageNumber, uint16_t> keep;  // the leading segments of a page that stay
  for (const Found& one : found) {
    batch.Delete(families_[kSegments], SegmentKey(one.id));
    const auto it = keep.emplace(one.id.page, one.id.index).first;
    it->second = std::min(it->second, one.id.index);
  }
  for (const auto& [page, segments] : keep) {
    const std::string key = PageRecordKey(page);
    const auto bytes = Get(kPages, key);
    if (!bytes.ok()) continue;
    const auto record = TruncatePageRecord(AsBytes(*bytes), segments);
    if (!record.ok() || record->segments <= segments) continue;
    for (size_t i = segments; i < record->segments; ++i) {
      batch.Delete(families_[kSegments], SegmentKey({page, static_cast<uint16_t>(i)}));
    }
    if (record->bytes.empty()) {
      batch.Delete(families_[kPages], key);
    } else {
      batch.Put(families_[kPages], key, record->bytes);
    }
  }
  return Write(batch, Ack::kDurable);
}

absl::Status Database::ForgetOverwritten(std::vector<Found>& found) {
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::tie(a.place.file, a.place.offset) < std::tie(b.place.file, b.place.offset);
  });
  std::vector<Found> survivors;
  survivors.reserve(found.size());
  Batch batch;
  for (const Found& one : found) {
    bool stays = true;
    while (stays && !survivors.empty()) {
      const Extent before = survivors.back().place.extent();
      if (before.file != one.place.file || before.offset + before.bytes <= one.place.offset) break;
      stays = survivors.back().place.commit < one.place.commit;
      batch.Delete(families_[kSegments], SegmentKey(stays ? survivors.back().id : one.id));
      if (stays) survivors.pop_back();
    }
    if (stays) survivors.push_back(one);
  }
  if (survivors.size() < found.size()) {
    Log().error("{}: {} segments were written over", folder_, found.size() - survivors.size());
    KVSTOW_RETURN_IF_ERROR(Write(batch, Ack::kDurable));
  }
  found = std::move(survivors);
  return absl::OkStatus();
}

}  // namespace kvstow
