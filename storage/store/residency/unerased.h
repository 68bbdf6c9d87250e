// Content that the store has forgotten and the disk still holds: pages that left the index, and
// dropped spaces. The store erases each in turn, the oldest first, until the disk has taken it; a
// space goes after all its pages. Their bytes count in the disk tier's budget until then.
//
// Not thread-safe: Residency's lock guards it. An item that Next returned is busy: no one else gets
// it before Done.
#ifndef KVSTOW_STORAGE_STORE_RESIDENCY_UNERASED_H_
#define KVSTOW_STORAGE_STORE_RESIDENCY_UNERASED_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "storage/segment.h"

namespace kvstow {

class Unerased {
 public:
  struct Item {
    PageName name;          // an empty key stands for the record of the space
    PageNumber number = 0;  // of a page
    size_t segments = 0;    // of a page, on disk
    uint64_t bytes = 0;
    bool sync_first = false;  // its replacement must survive power loss first
    uint64_t turn = 0;        // given by Add
    bool busy = false;
  };

  void Add(Item item);
  std::optional<Item> Next();
  void Done(const Item& item, bool erased);

  // Returns whether there is an item of this name; without a key, any item of the space.
  bool Has(const PageName& name) const;
  bool IsBusy(const PageName& name) const;
  size_t size() const { return items_.size(); }
  uint64_t bytes() const { return bytes_; }
  uint64_t busy_bytes() const { return busy_bytes_; }

 private:
  using Named = std::tuple<SpaceId, std::string, uint64_t>;  // and turn
  static bool IsOf(const Named& item, const PageName& name);
  bool HasPages(SpaceId space) const;

  std::map<uint64_t, Item> items_;  // by turn
  std::set<Named> names_;
  uint64_t last_turn_ = 0, bytes_ = 0, busy_bytes_ = 0;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_RESIDENCY_UNERASED_H_
