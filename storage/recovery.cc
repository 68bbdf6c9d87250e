// What a restart brings back: the catalog's records become the index. Bodies are not read; one that
// turns out to be missing or damaged is a miss when it is asked for.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "storage/store_impl.h"

namespace kvstow {
namespace {

std::unique_ptr<PageEntry> EntryOf(const PageRecord& record) {
  TierSet disk;
  disk.Add(TierId::kDisk);
  std::unique_ptr<PageEntry> page = PageEntry::Make(record, disk);
  page->disk_ack = Ack::kDurable;  // opening wrote the log's content to files
  return page;
}

}  // namespace

absl::Status TieredStore::Impl::Recover() {
  KVSTOW_ASSIGN_OR_RETURN(Catalog::Loaded loaded, parts_.catalog->Load());
  std::vector<std::pair<PageNumber, size_t>> replaced;
  {
    MutexLock lock(mu_);
    next_number_ = loaded.max_page + 1;
    last_old_space_ = loaded.max_space;
    for (const PageRecord& page : loaded.pages) {
      last_old_space_ = std::max(last_old_space_, page.name.space);
    }
    next_space_ = last_old_space_ + 1;
    counters_.damaged_records = loaded.damaged;
    counters_.damaged_logs = loaded.damaged_logs;
    for (const SpaceRecord& space : loaded.spaces) known_spaces_.insert(space.id);
    recovered_spaces_ = std::move(loaded.spaces);
    // By age, as policies should see them. Two records of one name remain when a delete or a failed
    // put did not reach the disk: the later put is the one that was acknowledged.
    std::sort(loaded.pages.begin(), loaded.pages.end(),
              [](const PageRecord& a, const PageRecord& b) { return a.number < b.number; });
    for (const PageRecord& record : loaded.pages) {
      if (!known_spaces_.contains(record.name.space)) {
        // Its space's record is damaged: what the page means is not known.
        ++counters_.damaged_records;
        continue;
      }
      if (PageEntry* const older = index_.Find(record.name); older != nullptr) {
        replaced.emplace_back(older->number, older->segment_count);
        index_.Remove(older);
      }
      index_.Insert(EntryOf(record));
    }
    counters_.recovered_pages = index_.size();
    ceiling_ = BytesByTier();  // over a budget that was lowered meanwhile
  }
  for (const auto& [number, segments] : replaced) {
    const absl::Status erased = parts_.catalog->ErasePage(number, segments);
    if (!erased.ok()) Log().warn("a replaced page stays on disk: {}", erased.ToString());
  }
  return absl::OkStatus();
}

absl::Status TieredStore::Impl::SaveSpace(const SpaceRecord& space) {
  {
    MutexLock lock(mu_);
    if (space.id == 0) return absl::InvalidArgumentError("space ids start at 1");
    if (space.id <= last_old_space_ && !known_spaces_.contains(space.id)) {
      return absl::FailedPreconditionError(
          absl::StrCat("space id ", space.id,
                       " was used before by a space whose record cannot be "
                       "read; take one from NewSpaceId"));
    }
  }
  KVSTOW_RETURN_IF_ERROR(parts_.catalog->PutSpace(space));
  MutexLock lock(mu_);
  known_spaces_.insert(space.id);
  next_space_ = std::max(next_space_, space.id + 1);
  return absl::OkStatus();
}

absl::Status TieredStore::Impl::DropSpace(SpaceId space) {
  if (space == 0) return absl::InvalidArgumentError("space ids start at 1");
  for (const PageName& page : Pages(space)) {
    const absl::Status deleted = Delete(page, true);
    if (!deleted.ok() && !absl::IsNotFound(deleted)) return deleted;
  }
  return parts_.catalog->EraseSpace(space);
}

std::vector<SpaceRecord> TieredStore::Impl::RecoveredSpaces() {
  MutexLock lock(mu_);
  return recovered_spaces_;
}

SpaceId TieredStore::Impl::NewSpaceId() {
  MutexLock lock(mu_);
  return next_space_++;
}

}  // namespace kvstow
