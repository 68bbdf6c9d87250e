#include "storage/store/residency/erasures.h"

namespace kvstow {

size_t Erasures::size() {
  MutexLock lock(residency_.mu_);
  return residency_.unerased_.size();
}

uint64_t Erasures::bytes() {
  MutexLock lock(residency_.mu_);
  return residency_.unerased_.bytes();
}

std::optional<Unerased::Item> Erasures::Next() {
  MutexLock lock(residency_.mu_);
  return residency_.unerased_.Next();
}

void Erasures::Done(const Unerased::Item& item, bool erased) {
  MutexLock lock(residency_.mu_);
  residency_.unerased_.Done(item, erased);
  // Nothing asks any more whose the space was.
  if (erased && item.name.key.empty()) residency_.index_.SetTenant(item.name.space, kOnlyTenant);
  residency_.counters_.disk_errors += erased ? 0 : 1;
  residency_.changed_.NotifyAll();
}

void Erasures::Add(const PageEntry& page) {
  MutexLock lock(residency_.mu_);
  residency_.EraseLater(page, page.segment_count, 0);
}

void Erasures::AddSpace(SpaceId space) {
  MutexLock lock(residency_.mu_);
  residency_.unerased_.Add({.name = {.space = space}});
}

bool Erasures::IsLeft(const PageName& name) {
  MutexLock lock(residency_.mu_);
  while (residency_.unerased_.IsBusy(name)) residency_.changed_.Wait(residency_.mu_);
  return residency_.unerased_.Has(name);
}

}  // namespace kvstow
