// Rooms: gives room in the tiers, or names what must happen before there is any. Cooling asks it.
//
// Each call is one step under Residency's lock. `choose` runs in that step: it sees the index, and
// returns the page of a tenant that is to make room, not claimed yet, or null for none. It is asked
// for one tenant after the other, in the order in which they pay (Tenants). A page is passed over
// when others want the room and it would bring its tenant below its guarantee. Who wants room
// beyond its own limit, of bytes or of pages, pays alone. Thread-safe.
#ifndef KVSTOW_STORAGE_STORE_RESIDENCY_ROOMS_H_
#define KVSTOW_STORAGE_STORE_RESIDENCY_ROOMS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "storage/segment.h"
#include "storage/store/residency/marks.h"
#include "storage/store/residency/page_index.h"
#include "storage/store/residency/residency.h"

namespace kvstow {

class Rooms {
 public:
  using Choose = absl::FunctionRef<PageEntry*(PageIndex&, TenantId)>;

  // On whose behalf a tier is to have room.
  struct For {
    enum class Who {
      kSpace,     // the tenant of a space, which puts
      kMove,      // the same, whose page moves down; that alone never costs it its guarantee there
      kTenant,    // a tenant that holds more than its limit
      kStore,     // nobody's: guarantees hold
      kOperator,  // guarantees do not hold
    };
    Who who = Who::kStore;
    uint32_t id = 0;  // of the space, or the tenant
  };
  struct Wanted {
    TierId tier{};
    uint64_t bytes = 0;
    uint64_t limit = 0;  // of all that the tier holds then; its budget limits it too
    For by{};
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
  // Claims more pages that make room for the same, beside the page that Find named, so that all of
  // them can be changed at once. `choose` returns pages of the tenant of `first`, in their order.
  // They are claimed one after the other until the tier would be at its low watermark without them,
  // another tenant would have to pay, or the guarantee of this one forbids it. Never waits.
  using ChooseMore = absl::FunctionRef<std::vector<PageEntry*>(PageIndex&, TenantId)>;
  std::vector<Claim> FindMore(const Wanted& wanted, const Claim& first, ChooseMore choose);
  // The same for the memory of the index, for which nothing is reserved, on behalf of a space or of
  // nobody (0).
  Answer FindForIndex(SpaceId space, Choose choose);
  // The same for one more page of a tenant, which `name` keeps a place for.
  Answer FindForPage(PendingName& name, Choose choose);
  // The same where a tenant has more pages than it may.
  Answer FindForFewerPages(TenantId tenant, Choose choose);
  // Ends leases whose time is up, and returns whether the tier then holds more than its high
  // watermark.
  bool IsAboveHigh(TierId t);
  void SetBudget(TierId t, uint64_t bytes);

  // Sets what a tenant may use.
  void SetShare(TenantId tenant, const TenantShare& share);
  // Returns the tenants that hold more bytes in a tier than their limits, and those that have more
  // pages.
  std::vector<TenantId> OverLimit(TierId t);
  std::vector<TenantId> WithTooManyPages();
  // Returns what the tenant of a space may use.
  TenantShare ShareOf(SpaceId space);

 private:
  struct Payment {
    std::optional<TierId> tier{};       // none = the index
    std::optional<TenantId> wanting{};  // none = nobody in particular
    uint64_t bytes = 0;                 // that it wants
    bool own = false;                   // it alone pays
    bool moves = false;                 // Who::kMove
    bool by_force = false;              // Who::kOperator
  };
  // Returns the tenant on whose behalf it is, if it is one's.
  std::optional<TenantId> TenantOf(const For& by) const KVSTOW_REQUIRES(residency_.mu_);
  // Claims the page that pays; kFull when there is none.
  Answer PayFor(const Payment& payment, Choose choose) KVSTOW_REQUIRES(residency_.mu_);

  Residency& residency_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_RESIDENCY_ROOMS_H_
