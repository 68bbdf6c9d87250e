// The right to move or remove one page; see PageEntry::busy. The holder may read the page's
// segments without the lock. One thread owns a claim. The store's EndClaim ends it: EndClaim takes
// the lock, and accepts null for a page that is gone.
#ifndef KVSTOW_STORAGE_STORE_PAGE_CLAIM_H_
#define KVSTOW_STORAGE_STORE_PAGE_CLAIM_H_

#include <utility>

#include "storage/store/page_entry.h"

namespace kvstow {

template <typename Store>
class PageClaim {
 public:
  PageClaim(Store* store, PageEntry* page) : store_(store), page_(page) {}
  PageClaim(PageClaim&& other) noexcept
      : store_(other.store_), page_(std::exchange(other.page_, nullptr)) {}
  PageClaim& operator=(PageClaim&& other) noexcept {
    std::swap(store_, other.store_);
    std::swap(page_, other.page_);
    return *this;
  }
  ~PageClaim() { store_->EndClaim(page_); }
  PageEntry* page() const { return page_; }  // null once the page was removed
  PageEntry* operator->() const { return page_; }
  void PageWasRemoved() { page_ = nullptr; }

 private:
  Store* store_;
  PageEntry* page_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_PAGE_CLAIM_H_
