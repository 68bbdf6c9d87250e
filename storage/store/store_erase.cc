// Pages and spaces that go for good: Delete, DropSpace, and what is still to be erased on disk.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/store/store_impl.h"

namespace kvstow {
namespace {

// So many pages of a dropped space leave the index before they are erased on disk.
constexpr size_t kDropBatch = 256;

}  // namespace

uint64_t TieredStore::Impl::Held(TierId t) const {
  return index_.bytes(t) + reserved_[static_cast<size_t>(t)] +
         (t == TierId::kDisk ? unerased_.bytes() : 0);
}

// The page's copy on disk is forgotten. Nothing where there is none.
void TieredStore::Impl::EraseLater(const PageEntry& page, size_t segments, uint64_t bytes,
                                   bool sync_first) {
  if (segments == 0) return;
  unerased_.Add({.name = page.name(),
                 .number = page.number,
                 .segments = segments,
                 .bytes = bytes,
                 .sync_first = sync_first});
}

// Erases what is to go, until the disk refuses.
absl::Status TieredStore::Impl::EraseNow() {
  size_t most = 0;
  {
    MutexLock lock(mu_);
    most = unerased_.size();
  }
  for (; most > 0; --most) {
    std::optional<Unerased::Item> item;
    {
      MutexLock lock(mu_);
      item = unerased_.Next();
    }
    if (!item.has_value()) break;
    absl::Status erased = item->sync_first ? parts_.catalog->Sync() : absl::OkStatus();
    if (erased.ok()) {
      erased = item->name.key.empty() ? parts_.catalog->EraseSpace(item->name.space)
                                      : parts_.catalog->ErasePage(item->number, item->segments);
    }
    MutexLock lock(mu_);
    unerased_.Done(*item, erased.ok());
    changed_.NotifyAll();
    if (erased.ok()) continue;
    ++counters_.disk_errors;
    return erased;
  }
  return absl::OkStatus();
}

// OK once nothing of this name (without a key: of its space) is left to erase.
absl::Status TieredStore::Impl::EraseNow(const PageName& name) {
  for (absl::Status erased;; erased = EraseNow()) {
    MutexLock lock(mu_);
    while (unerased_.IsBusy(name)) changed_.Wait(mu_);
    if (!unerased_.Has(name)) return absl::OkStatus();
    if (erased.ok()) continue;  // not tried yet, or by another thread, which failed
    return absl::UnavailableError(
        absl::StrCat("the disk did not take a removal, which is tried again until it does; what is "
                     "to go is not served meanwhile: ",
                     erased.message()));
  }
}

absl::Status TieredStore::Impl::Delete(const PageName& name, bool force) {
  const absl::Status none = absl::NotFoundError("no such page");
  std::optional<Claim> claim;
  {
    MutexLock lock(mu_);
    ReapLeases();
    PageEntry* page = index_.Find(name);
    while (page != nullptr && page->busy) {
      changed_.Wait(mu_);
      page = index_.Find(name);
    }
    if (page == nullptr && !unerased_.Has(name)) return none;
    if (page != nullptr && page->leases > 0 && !force) {
      return absl::FailedPreconditionError("the page is leased; use force to delete it");
    }
    if (page != nullptr) claim = Begin(page);
  }
  const absl::Status was = claim.has_value() ? Truncate(*claim, 0, Why::kDelete) : none;
  const absl::Status erased = EraseNow(name);
  return erased.ok() ? was : erased;
}

absl::Status TieredStore::Impl::DropSpace(SpaceId space) {
  if (space == 0) return absl::InvalidArgumentError("space ids start at 1");
  {
    MutexLock lock(mu_);
    spaces_.Drop(space);
    // Puts that are under way come first; their pages go with the others.
    const auto is_in = [&](const PageName& name) { return name.space == space; };
    while (std::any_of(pending_.begin(), pending_.end(), is_in)) changed_.Wait(mu_);
  }
  // A page that gets its cold form meanwhile is found by the next look.
  bool refused = false;
  for (std::vector<PageRef> pages; !(pages = PagesOf(space)).empty();) {
    for (size_t i = 0; i < pages.size(); ++i) {
      std::optional<Claim> claim = ClaimPage(pages[i], Wait::kYes);
      if (claim.has_value()) Truncate(*claim, 0, Why::kDelete).IgnoreError();
      if ((i + 1) % kDropBatch == 0 && !refused) refused = !EraseNow().ok();
    }
  }
  {
    MutexLock lock(mu_);
    unerased_.Add({.name = {.space = space}});
  }
  return EraseNow({.space = space});
}

std::vector<PageRef> TieredStore::Impl::PagesOf(SpaceId space) {
  std::vector<PageRef> pages;
  MutexLock lock(mu_);
  if (index_.usage(space).pages == 0) return pages;
  index_.ForEach([&](const PageEntry& page) {
    if (page.space == space) pages.push_back(page.ref());
  });
  return pages;
}

// Waits for it; nothing when the name has another number.
std::optional<TieredStore::Impl::Claim> TieredStore::Impl::ClaimNumber(const PageName& name,
                                                                       PageNumber number) {
  PageRef ref{.number = number};
  {
    MutexLock lock(mu_);
    ref.item = index_.IdFor(name);
  }
  return ClaimPage(ref, Wait::kYes);
}

absl::Status TieredStore::Impl::Drop(const PageName& name, PageNumber number) {
  std::optional<Claim> claim = ClaimNumber(name, number);
  if (!claim.has_value()) return absl::NotFoundError("no such page");
  return Truncate(*claim, 0, Why::kDamage);
}

}  // namespace kvstow
