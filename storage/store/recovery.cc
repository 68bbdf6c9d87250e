// Recovery at a restart: the catalog's records become the index. It reads no bodies. A page whose
// body is missing or damaged is a miss when somebody asks for it.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "storage/store/store_impl.h"

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
  {
    MutexLock lock(mu_);
    next_number_ = loaded.max_page + 1;
    SpaceId last_space = loaded.max_space;
    for (const PageRecord& page : loaded.pages) last_space = std::max(last_space, page.name.space);
    spaces_.StartAfter(last_space);
    counters_.damaged_records = loaded.damaged;
    counters_.damaged_logs = loaded.damaged_logs;
    for (const SpaceRecord& space : loaded.spaces) spaces_.Add(space.id);
    recovered_spaces_ = std::move(loaded.spaces);
    // By age, as policies should see them. Two records of one name remain when a delete or a failed
    // put did not reach the disk: the later put is the one that was acknowledged.
    std::sort(loaded.pages.begin(), loaded.pages.end(),
              [](const PageRecord& a, const PageRecord& b) { return a.number < b.number; });
    for (const PageRecord& record : loaded.pages) {
      if (!spaces_.Has(record.name.space)) {
        // Its space's record is damaged: what the page means is not known.
        ++counters_.damaged_records;
        continue;
      }
      if (PageEntry* const older = index_.Find(record.name); older != nullptr) {
        EraseLater(*older, older->segment_count, older->BytesOf(0, older->segment_count));
        index_.Remove(older);
      }
      index_.Insert(EntryOf(record));
    }
    counters_.recovered_pages = index_.size();
    // Over a budget that was lowered meanwhile.
    for (int t = 0; t < kTiers; ++t) ceiling_[t] = Held(static_cast<TierId>(t));
  }
  const absl::Status erased = EraseNow();
  if (!erased.ok()) Log().warn("a replaced page stays on disk for now: {}", erased.ToString());
  return absl::OkStatus();
}

absl::Status TieredStore::Impl::SaveSpace(const SpaceRecord& space) {
  {
    MutexLock lock(mu_);
    KVSTOW_RETURN_IF_ERROR(spaces_.CheckMaySave(space.id));
  }
  KVSTOW_RETURN_IF_ERROR(parts_.catalog->PutSpace(space));
  MutexLock lock(mu_);
  spaces_.Add(space.id);
  return absl::OkStatus();
}

std::vector<SpaceRecord> TieredStore::Impl::RecoveredSpaces() {
  MutexLock lock(mu_);
  return recovered_spaces_;
}

SpaceId TieredStore::Impl::NewSpaceId() {
  MutexLock lock(mu_);
  return spaces_.New();
}

}  // namespace kvstow
