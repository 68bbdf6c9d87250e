// Erasures: carries out what Unerased lists. Movement asks it for one after the other, erases each
// on disk, and tells how that went. Each call is one step under Residency's lock. Thread-safe.
#ifndef KVSTOW_STORAGE_STORE_RESIDENCY_ERASURES_H_
#define KVSTOW_STORAGE_STORE_RESIDENCY_ERASURES_H_

#include <optional>

#include "storage/segment.h"
#include "storage/store/residency/page_entry.h"
#include "storage/store/residency/residency.h"
#include "storage/store/residency/unerased.h"

namespace kvstow {

class Erasures {
 public:
  explicit Erasures(Residency& residency) : residency_(residency) {}

  size_t size();
  uint64_t bytes();
  // Starts the oldest that may go now. Nobody else gets it before Done.
  std::optional<Unerased::Item> Next();
  // Ends it. What the disk did not take counts as an error of the disk, and comes again.
  void Done(const Unerased::Item& item, bool erased);
  // Adds the copy on disk of a page that is in no index.
  void Add(const PageEntry& page);
  // Adds the record of a space, whose pages are gone.
  void AddSpace(SpaceId space);
  // Waits while something of this name (without a key: of its space) is being erased. Returns
  // whether anything of it is left to erase.
  bool IsLeft(const PageName& name);

 private:
  Residency& residency_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_RESIDENCY_ERASURES_H_
