#include "storage/store/residency/lease_table.h"

#include "base/aead.h"

namespace kvstow {

LeaseId LeaseTable::Grant(std::vector<PageRef> pages, Time now, LeaseHolder holder) {
  const LeaseId id = next_;
  pages_ += pages.size();
  ends_.emplace(now + ttl_, id);
  leases_[id] = {now + ttl_, std::move(pages), holder};
  do {
    RandomBytes({reinterpret_cast<uint8_t*>(&next_), sizeof(next_)});
  } while (next_ == 0 || leases_.contains(next_));
  return id;
}

bool LeaseTable::Renew(const NamedLease& named, Time now) {
  const auto it = leases_.find(named.id);
  if (it == leases_.end() || it->second.end <= now) return false;
  if (it->second.holder != named.holder) return false;
  ends_.erase({it->second.end, named.id});
  it->second.end = now + ttl_;
  ends_.emplace(it->second.end, named.id);
  return true;
}

std::optional<std::vector<PageRef>> LeaseTable::Release(const NamedLease& named, Time now) {
  const auto it = leases_.find(named.id);
  if (it == leases_.end() || it->second.end <= now) return std::nullopt;
  if (it->second.holder != named.holder) return std::nullopt;
  std::vector<PageRef> pages = std::move(it->second.pages);
  pages_ -= pages.size();
  ends_.erase({it->second.end, named.id});
  leases_.erase(it);
  return pages;
}

LeaseTable::Expired LeaseTable::Expire(Time now) {
  Expired out;
  while (!ends_.empty() && ends_.begin()->first <= now) {
    const auto it = leases_.find(ends_.begin()->second);
    out.pages.insert(out.pages.end(), it->second.pages.begin(), it->second.pages.end());
    ++out.leases;
    pages_ -= it->second.pages.size();
    leases_.erase(it);
    ends_.erase(ends_.begin());
  }
  return out;
}

absl::flat_hash_map<PageNumber, uint32_t> LeaseTable::CountPages() const {
  absl::flat_hash_map<PageNumber, uint32_t> out;
  for (const auto& [id, lease] : leases_) {
    for (const PageRef& page : lease.pages) ++out[page.number];
  }
  return out;
}

}  // namespace kvstow
