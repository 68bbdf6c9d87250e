// Rooms: gives room in the tiers, or names what must happen before there is any. Cooling asks it.
//
// Each call is one step under Residency's lock. `choose` runs in that step: it sees the index, and
// returns the page that is to make room, not claimed yet, or null for none. Thread-safe.
#ifndef KVSTOW_STORAGE_STORE_RESIDENCY_ROOMS_H_
#define KVSTOW_STORAGE_STORE_RESIDENCY_ROOMS_H_

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "storage/segment.h"
#include "storage/store/residency/marks.h"
#include "storage/store/residency/page_index.h"
#include "storage/store/residency/residency.h"

namespace kvstow {

class Rooms {
 public:
  using Choose = absl::FunctionRef<PageEntry*(PageIndex&)>;

  struct Wanted {
    TierId tier{};
    uint64_t bytes = 0;
    uint64_t limit = 0;  // of all that the tier holds then; its budget limits it too
    Wait wait = Wait::kNo;
    int waits_left = 256;  // for others' moves, before the answer is that there is no room
  };
  struct Answer {
    enum class Is {
      kRoom,   // it is there, and reserved
      kErase,  // first erase on disk what was forgotten
      kPage,   // first this page has to give way: it was chosen, and is claimed
      kFull,   // nothing more can go
    };
    Is is = Is::kFull;
    Room room;
    std::optional<Claim> page;
  };

  explicit Rooms(Residency& residency) : residency_(residency) {}

  // With Wait::kYes it waits while nothing is chosen and others' marks may leave room.
  Answer Find(Wanted& wanted, Choose choose);
  // The same for the memory of the index, for which nothing is reserved.
  Answer FindForIndex(Choose choose);
  // Ends leases whose time is up, and returns whether the tier then holds more than its high
  // watermark.
  bool IsAboveHigh(TierId t);
  void SetBudget(TierId t, uint64_t bytes);

 private:
  Residency& residency_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_RESIDENCY_ROOMS_H_
