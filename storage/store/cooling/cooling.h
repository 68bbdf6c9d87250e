// Cooling: what leaves a tier, and when. It makes room: it moves or drops segments of the pages
// that the eviction policies choose, until what is asked for fits.
//
// A tier cools when somebody needs room in it and there is none, when it is above its high
// watermark (down to its low one, in the background), and when its budget shrinks. Each step takes
// one page, as the tier's EvictionPolicy chooses. The page loses its last segment there, a `whole`
// page all of them. What has no colder copy is copied to the next colder tier, or else to disk;
// where there is no room below either, it is dropped. Leased and pinned pages lose no bytes, but
// they may move to a colder tier.
//
// Tenants: what leaves is first of the tenant that has most above its share (Rooms); within that
// tenant the policy chooses as ever. A tenant that wants more than its own limits makes room by its
// own pages.
//
// Targets: a tier may say how many bits of a value stay when a page cools into it. Segments beyond
// that are dropped, not moved. `whole`, leased and pinned pages move as they are.
//
// Hot and cold form: a page that was put as `hot` becomes another, smaller coding of the same
// content before it leaves memory, by a function that Cooling is given. The thread that needs the
// room cools hot pages before it moves or drops anything, the one used longest ago first. The cold
// form takes the page's place in one step, under a number of its own, in every tier that held all
// of the hot form, and with the same ack. Leased and pinned pages stay as they are. A page without
// a cold form, or without a smaller one, cools like any other page.
//
// A function that works on many pages at once (ColdForms) gets several: the page that has to give
// way, and pages of the same tenant that would be next, no more than bring the tier down to its low
// watermark. All of them are claimed first, and each is replaced by itself. The thread waits for
// nobody while it holds their claims.
//
// Lock rule: a choice runs under Residency's lock, and ends with a claim on the page (Rooms). The
// rest runs under no lock, by the holder of the claim. Cooling's own lock guards the background
// thread's sleep and the function for cold forms. It may be taken under Residency's lock, and
// nothing is called under it.
//
// Thread-safe. Operators call the public methods up to RunDemotion, TieredStore also those below.
#ifndef KVSTOW_STORAGE_STORE_COOLING_COOLING_H_
#define KVSTOW_STORAGE_STORE_COOLING_COOLING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "base/shared_bytes.h"
#include "storage/segment.h"
#include "storage/store/movement/movement.h"
#include "storage/store/residency/marks.h"
#include "storage/store/residency/residency.h"
#include "storage/store/residency/rooms.h"
#include "storage/store/residency/store_options.h"

namespace kvstow {

// Makes the cold form of a page from header and bodies of its hot form; nothing when it has none.
// Any thread may call it, without a lock. It must not call the store.
using MakeColdForm = std::function<std::optional<ColdForm>(
    const PageName& name, const SharedBytes& header, std::span<const SharedBytes> bodies)>;

// The same for several pages: an answer for each. GPUs want many pages in a call.
struct HotForm {
  PageName name;
  SharedBytes header;
  std::vector<SharedBytes> bodies;
};
struct ColdForms {
  std::function<std::vector<std::optional<ColdForm>>(std::span<const HotForm> pages)> make;
  // Returns the spaces whose pages go into one call with those of `space`; none: each page has a
  // call of its own. Any thread may call it, without a lock. It must not call the store.
  std::function<std::vector<SpaceId>(SpaceId space)> together;
  size_t most_pages = 1;             // of a call
  uint64_t most_bytes = UINT64_MAX;  // of their hot forms, if they are several
};

class Cooling {
 public:
  // All of them outlive it.
  Cooling(const TieredStoreOptions& options, Residency& residency, Movement& movement)
      : options_(options), residency_(residency), movement_(movement), rooms_(residency) {}
  ~Cooling();  // ends the background thread
  Cooling(const Cooling&) = delete;
  Cooling& operator=(const Cooling&) = delete;

  // Sets the function that cools hot pages. Before that, hot pages cool like any other. What the
  // function refers to must outlive the store.
  void SetMakeColdForm(MakeColdForm make_cold_form);
  void SetColdForms(ColdForms cold_forms);
  // Demotes and drops until the tier holds at most `bytes`. RESOURCE_EXHAUSTED when the rest is
  // leased, pinned or in use.
  absl::Status Shrink(TierId tier, uint64_t bytes);
  // Sets the tier's budget from now on, until the store is opened again. More room is used at once.
  // Before it returns, it demotes and drops what is over a smaller budget, except what leases, pins
  // and moves hold back: that goes in the background when they end. FAILED_PRECONDITION when there
  // is no such tier.
  absl::Status SetBudget(TierId tier, uint64_t bytes);
  // Sets what tenants may use, from now on, until the store is opened again; others keep theirs.
  // Before it returns, pages of a tenant that is over a limit leave, except what leases, pins and
  // moves hold back: those leave in the background when they end.
  void SetShares(std::span<const std::pair<TenantId, TenantShare>> shares);
  // Does one round of the background's work: removals that the disk refused, demotion to the low
  // watermarks, expiry of leases, and the bound on the index's memory.
  void RunDemotion();

  // Starts the background thread, once.
  void StartBackground();
  // Tells the background thread that a tier is above its high watermark.
  void Wake() { wake_.NotifyOne(); }
  // Takes room in a tier for a page of a space; what is in the way leaves. Nothing when not enough
  // can leave: with Wait::kYes not even after waiting for others' moves.
  std::optional<Room> MakeRoom(TierId t, uint64_t bytes, SpaceId space, Wait wait);
  // Forgets whole pages while the index takes more memory than it may: those that the coldest tier
  // wants to free first, for they are what an index grows by. The room is for a page of `space`, or
  // for any (0).
  absl::Status MakeIndexRoom(SpaceId space);
  // Forgets whole pages of a tenant while it has no place for one more, in the same order.
  absl::Status MakePlace(PendingName& name, SpaceId space);
  // What the tenant of a space may use.
  TenantShare ShareOf(SpaceId space) { return rooms_.ShareOf(space); }
  // Sees to it that the leading `end` segments of the page are on disk and survive what `ack` says.
  // Makes room for them, without waiting for it.
  absl::Status CopyToDisk(Claim& claim, size_t end, Ack ack);

 private:
  using Numbers = absl::flat_hash_set<PageNumber>;

  // Cools `t` until what it holds and `bytes` more are within `limit` and its budget. Returns the
  // room of those bytes.
  std::optional<Room> CoolUntil(Rooms::Wanted wanted);
  // Forgets pages until `find` answers that there is room; `find` gets the function that chooses.
  Rooms::Answer::Is ForgetUntil(absl::FunctionRef<Rooms::Answer(Rooms::Choose)> find);
  void CoolToLimits(Wait wait);
  // These two choose a page of a tenant, under Residency's lock.
  PageEntry* PickHot(PageIndex& index, TenantId tenant, TierId from, const Numbers& skip);
  PageEntry* PickColdest(PageIndex& index, TenantId tenant, TierId from, const Numbers& skip) const;
  bool MayLeave(const PageEntry& page, TierId from, size_t keep) const;
  // One step: the segments [keep, end) of the page leave the tier. Afterwards the page may be gone.
  // False when nothing left.
  bool CoolMemory(Claim& claim, TierId from, size_t keep);
  bool CoolDisk(Claim& claim, size_t keep);
  absl::Status CopyColder(Claim& claim, TierId from, size_t keep);
  absl::Status CopyToHost(Claim& claim, std::span<const uint16_t> indices);
  // These are in cold_form.cc. The first one returns the page of `first` and those that go with it.
  std::vector<Claim> ClaimMoreHot(const Rooms::Wanted& wanted, const Numbers& skip, Claim first);
  // Returns whether one of them got cold. Pages that did not are added to `skip`.
  bool TakeColdForms(std::span<Claim> claims, Numbers& skip);
  std::optional<HotForm> ReadHot(Claim& claim);
  bool TakeColdForm(Claim& claim, PageNumber number, const std::optional<ColdForm>& cold);
  std::shared_ptr<const ColdForms> cold_forms() {
    MutexLock lock(mu_);
    return cold_forms_;
  }
  bool usable(TierId t) const { return residency_.budget(t) > 0; }

  const TieredStoreOptions& options_;
  Residency& residency_;
  Movement& movement_;
  Rooms rooms_;

  Mutex mu_;
  CondVar wake_;  // the background has something to do
  bool stop_ KVSTOW_GUARDED_BY(mu_) = false;
  std::shared_ptr<const ColdForms> cold_forms_ KVSTOW_GUARDED_BY(mu_);  // null = none
  std::thread background_;
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_COOLING_COOLING_H_
