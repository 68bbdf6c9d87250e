// Marks: the rights of threads that are at work on a store's pages, as values. Each mark has one
// owner, and ends with its value. Residency says what they are for. Every call is one step under
// Residency's lock, and does no I/O. A call waits only where its comment says so.
//
// Bytes come in this order: take room; write; add the copies, or publish the page, with the room.
// Bytes go in this order: take the copies off, which returns their room; erase; let the room go.
// So a reader never sees a copy that is not there yet, and no budget is ever passed.
//
// The owner's thread alone uses a mark. Residency outlives it. An empty mark does nothing.
#ifndef KVSTOW_STORAGE_STORE_RESIDENCY_MARKS_H_
#define KVSTOW_STORAGE_STORE_RESIDENCY_MARKS_H_

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "storage/segment.h"
#include "storage/store/residency/page_entry.h"
#include "storage/store/residency/page_facts.h"
#include "storage/store/residency/residency.h"

namespace kvstow {

enum class Wait { kNo, kYes };

// The reason for which segments go.
enum class Why { kPolicy, kDamage, kDelete };

// Bytes in tiers for content on its way in or out. They count against the budgets, and against the
// limits of the tenant whose content it is.
class Room {
 public:
  Room() = default;  // none
  Room(Room&& other) noexcept
      : residency_(std::exchange(other.residency_, nullptr)),
        tenant_(other.tenant_),
        bytes_(other.bytes_) {}
  Room& operator=(Room&& other) noexcept {
    std::swap(residency_, other.residency_);
    std::swap(tenant_, other.tenant_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Room() { Release(); }
  // Adds the bytes of another room of the same tenant.
  void Add(Room other);
  // Gives the bytes back before the value ends.
  void Release();

 private:
  friend class Claim;
  friend class PendingName;
  friend class Rooms;

  Room(Residency* residency, TenantId tenant, const TierBytes& bytes)
      : residency_(residency), tenant_(tenant), bytes_(bytes) {}
  // Leaves it empty; what it held, the caller gives back.
  TierBytes Take() { return std::exchange(residency_, nullptr) == nullptr ? TierBytes{} : bytes_; }

  Residency* residency_ = nullptr;  // null = empty
  TenantId tenant_ = kOnlyTenant;
  TierBytes bytes_{};
};

// The right to move or remove one page. The owner may read the fields that PageEntry gives to the
// thread that made it busy.
class Claim {
 public:
  // Takes the page; nothing when it is gone or, with Wait::kNo, claimed already. Wait::kYes waits.
  static std::optional<Claim> Take(Residency& residency, const PageRef& page, Wait wait);
  // The same by name, and waits; nothing when the name has another number.
  static std::optional<Claim> TakeNumber(Residency& residency, const PageName& name,
                                         PageNumber number);
  // The same for a page that somebody wants to delete. NOT_FOUND when it is not there;
  // FAILED_PRECONDITION when it is leased and not `force`.
  static absl::StatusOr<Claim> TakeToDelete(Residency& residency, const PageName& name, bool force);
  Claim(Claim&& other) noexcept
      : residency_(other.residency_),
        page_(std::exchange(other.page_, nullptr)),
        tenant_(other.tenant_),
        promised_(std::exchange(other.promised_, {})) {}
  Claim& operator=(Claim&& other) noexcept {
    std::swap(residency_, other.residency_);
    std::swap(page_, other.page_);
    std::swap(tenant_, other.tenant_);
    std::swap(promised_, other.promised_);
    return *this;
  }
  ~Claim();

  bool gone() const { return page_ == nullptr; }  // the page was removed
  const PageEntry& operator*() const { return *page_; }
  const PageEntry* operator->() const { return page_; }

  // Changes where the page's segments are, or what they are worth. `arrived` is the room of bytes
  // that the index counts from now on.
  void Change(absl::FunctionRef<void(PageEntry&)> edit, Room arrived = {});
  // Changes the owner's fields that no sum depends on.
  void Note(absl::FunctionRef<void(PageEntry&)> edit);
  // Takes the segments' copies off a tier; each has another copy. On disk they must be the last
  // ones there; the whole page's copy there becomes an erasure. `by` is the tier whose policy
  // wanted it. Returns the room of the bytes that are to be erased now.
  Room DropCopies(TierId from, std::span<const uint16_t> indices, std::optional<TierId> by);
  // Forgets the segments from `keep` on, in all tiers; at 0 the page, whose copy on disk becomes an
  // erasure. Returns the room of the bytes that are to be erased now. FAILED_PRECONDITION when it
  // is policy only and the page is leased or pinned.
  absl::StatusOr<Room> Truncate(size_t keep, Why why, std::optional<TierId> by);
  // Puts another coding of the page in its place, unless the page was leased or pinned meanwhile.
  // The one that lost is returned, and its copy on disk becomes an erasure.
  struct Replaced {
    std::unique_ptr<PageEntry> lost;
    Room leaving;
  };
  Replaced Replace(std::unique_ptr<PageEntry> page);
  // Takes room for more copies of the page, if a tier has it to spare: below the low watermark, or
  // below the high one at the second use of the page since it left memory.
  std::optional<Room> SpareRoom(TierId t, uint64_t bytes);
  // Returns a number for another coding of the page.
  PageNumber NewNumber();

 private:
  friend class Rooms;

  Claim(Residency& residency, PageEntry* page, TenantId tenant)
      : residency_(&residency), page_(page), tenant_(tenant) {}
  static Claim Begin(Residency& residency, PageEntry* page) KVSTOW_REQUIRES(residency.mu_);
  // Others may count on it that the page gives these bytes, until the claim ends.
  static void Promise(Residency& residency, Claim& claim, const TierBytes& bytes)
      KVSTOW_REQUIRES(residency.mu_);
  void End() KVSTOW_REQUIRES(residency_->mu_);

  Residency* residency_;
  PageEntry* page_;
  TenantId tenant_;
  TierBytes promised_{};
};

// The right to put a page of one name. It refers to the name of the page, which outlives it.
class PendingName {
 public:
  struct Taken;
  // Takes the page's name, if it is free. Waits for a put of the same name that began before.
  // Counts a conflict, or a use of the page that is there. FAILED_PRECONDITION when the space was
  // dropped.
  static absl::StatusOr<Taken> Take(Residency& residency, const PageToStore& page);
  PendingName(PendingName&& other) noexcept
      : residency_(std::exchange(other.residency_, nullptr)),
        name_(other.name_),
        number_(other.number_),
        parent_(other.parent_),
        has_place_(other.has_place_) {}
  PendingName& operator=(PendingName&&) = delete;
  ~PendingName();  // a name that was not published is free again

  PageNumber number() const { return number_; }  // for the page
  uint64_t parent() const { return parent_; }    // for the page
  // Publishes the page, whose segments say in which tiers they are, and ends the mark. `room` is
  // that of its bytes. Returns whether a tier is above its high watermark now.
  bool Publish(std::unique_ptr<PageEntry> page, Room room);

 private:
  friend class Rooms;

  PendingName(Residency* residency, const PageName* name, PageNumber number, uint64_t parent)
      : residency_(residency), name_(name), number_(number), parent_(parent) {}

  Residency* residency_;  // null = ended
  const PageName* name_;
  PageNumber number_;
  uint64_t parent_;
  bool has_place_ = false;  // among the pages that its tenant may have: see Rooms
};

struct PendingName::Taken {
  PutOutcome outcome = PutOutcome::kConflict;
  PageRef there;                    // the page of that name, unless kStored
  std::optional<PendingName> name;  // with kStored
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_RESIDENCY_MARKS_H_
