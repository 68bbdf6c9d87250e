// The open spaces: the meaning of a worker's pages.
//
// A space is a name with one KvSpec, one recipe and one promise (space_fidelity.h). Its fingerprint
// covers all that changes bytes: it is the first 16 bytes of SHA-256 over the fields, each with its
// length before it, of spec, pipeline and promise (docs/FORMAT.md). A space never changes. Opening
// it with another spec, recipe or promise fails with FAILED_PRECONDITION, which names the
// difference. So lossy pages never pass for exact ones.
//
// A recipe may have a hot and a cold form (space_recipe.h). A recipe may need a calibration; its
// policy may need one too, for statistics of queries. The space then takes the calibration that
// fits or that Open names, and keeps to it: its pipeline names it in full. A space whose
// calibration is not here (its file went between two runs) is recovered all the same. Nothing can
// be put into it and its pages are misses, until Open finds the calibration again.
//
// New spaces are saved before anyone sees them. Recover leaves out and counts records that are
// damaged, of an unknown version or of a recipe that this build lacks. Their pages become
// unreachable: a cache may forget.
//
// Workers name a space by its name and its fingerprint. Another space may have taken the name since
// they opened it (a restart, a drop), and its pages must not pass for theirs.
//
// A space belongs to a tenant, and two tenants may each have a space of one name. What a name means
// for a caller is the access file's to say (Access::MeaningOf): a space of its own tenant, or one
// that another tenant shares with it. Every other space is NOT_FOUND, in the words that stand for a
// space that is nowhere. A reader makes no space, nor does anybody in another tenant's name.
//
// A dropped space is forgotten here at once; its id is never given again. Private spaces come and
// go with sessions: IdlePrivate names those that nobody has used for a while.
//
// Thread-safe; no lock is held while a record is saved. A Space is immutable and shared.
#ifndef KVSTOW_SERVICE_SPACES_SPACES_H_
#define KVSTOW_SERVICE_SPACES_SPACES_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "kernels/page/page.h"
#include "service/access/access.h"
#include "service/access/tenants.h"
#include "service/spaces/calibrations.h"
#include "service/spaces/space.h"
#include "service/spaces/space_fidelity.h"
#include "storage/catalog.h"

namespace kvstow {

struct SpaceToOpen {
  std::string name;
  std::optional<KvSpec> spec;             // absent: the space must exist
  std::string recipe;                     // "": the space's own, or the default
  std::optional<SpaceFidelity> fidelity;  // absent: the space's own, or what the recipe gives
  std::optional<bool> is_private = {};    // absent: the space's own, or not
  // Hexadecimal id of the statistics of queries for the recipe's policy, where the recipe does not
  // name them. "" = the space's own, or those that fit.
  std::string queries = {};
  bool normed_keys = false;  // the model norms its keys, which `auto` then goes by
};

// What a caller does with a space. Writing is everything that changes it or its pages.
enum class SpaceUse { kRead, kWrite };

class Spaces {
 public:
  // The source of ids (one at each call, never used before) and the sink of records.
  using NewId = std::function<SpaceId()>;
  using Save = std::function<absl::Status(const SpaceRecord&)>;
  struct Options {
    std::string default_recipe = "int8";
    size_t max_spaces = 1024;
    const Clock* clock = &Clock::Real();
    const Access* access = &Access::ForEverybody();
    const TenantTable* tenants = nullptr;  // null: no tenant has a limit of spaces
  };

  // `calibrations`, the clock, the access and the tenants outlive this.
  Spaces(Options options, Calibrations& calibrations, NewId new_id, Save save);

  // Takes over what was saved. Returns the number of records that it left out. Called once, before
  // Open.
  size_t Recover(std::span<const SpaceRecord> records);
  size_t left_out() const { return left_out_; }

  // Opens a space, or makes it. INVALID_ARGUMENT: a bad name, spec or recipe, or a promise that the
  // recipe does not keep. NOT_FOUND: no spec was given and the space is new. FAILED_PRECONDITION:
  // it is open as something else, or its calibration is not here. RESOURCE_EXHAUSTED: too many
  // spaces, of all tenants or of this one. A space that could not be saved is not opened.
  struct Opened {
    std::shared_ptr<const Space> space;
    bool created = false;
  };
  absl::StatusOr<Opened> Open(const Caller& caller, const SpaceToOpen& request);

  // Returns the tenant whose space a name is for the caller.
  std::string OwnerOf(const Caller& caller, absl::string_view name) const {
    return options_.access->MeaningOf(caller.tenant, name).owner;
  }
  // Returns what opens a space like that of a record, here. Fails as ParseSpace does.
  absl::StatusOr<SpaceToOpen> RequestOf(std::span<const uint8_t> record) const;

  // Finds a space as workers name it. INVALID_ARGUMENT: `fingerprint` has not 16 bytes. NOT_FOUND:
  // no space of that name is open. FAILED_PRECONDITION: another one is. Each message says to open
  // it (again). PERMISSION_DENIED: it is shared with the caller's tenant for reading alone.
  absl::StatusOr<std::shared_ptr<const Space>> Find(const Caller& caller, absl::string_view name,
                                                    absl::string_view fingerprint, SpaceUse use);
  // Finds a space as people name it.
  absl::StatusOr<std::shared_ptr<const Space>> Find(const Caller& caller, absl::string_view name);
  // Returns whether Find finds this space for the caller.
  bool Finds(const Caller& caller, const Space& space) const;
  // Returns null when there is none.
  std::shared_ptr<const Space> Find(SpaceId id) const;
  std::vector<std::shared_ptr<const Space>> All() const;  // by tenant and name
  uint64_t mismatches() const { return mismatches_; }     // calls that meant another space

  // Returns private spaces that nobody has named for so long, the longest first. `tenant` null = of
  // all tenants.
  std::vector<std::shared_ptr<const Space>> IdlePrivate(Duration idle,
                                                        const std::string* tenant = nullptr) const;
  // Counts as naming it.
  void Touch(const Space& space);
  // Forgets a space, so nobody finds it any more; false when it is gone already. The caller drops
  // its pages and its record.
  bool Forget(const Space& space);

 private:
  using Key = std::pair<std::string, std::string>;  // tenant and name

  absl::StatusOr<std::shared_ptr<Space>> Make(const SpaceToOpen& request, bool may_make);
  absl::Status CheckRoom(const std::string& tenant) const KVSTOW_REQUIRES(mu_);
  absl::StatusOr<std::shared_ptr<const Space>> WithCodec(std::shared_ptr<const Space> space);

  const Options options_;
  Calibrations& calibrations_;
  const NewId new_id_;
  const Save save_;
  mutable Mutex mu_;
  std::atomic<uint64_t> mismatches_ = 0;
  std::atomic<size_t> left_out_ = 0;
  CondVar created_;  // a name left `creating_`
  struct Entry {
    std::shared_ptr<const Space> space;
    Time used;  // when it was named last
  };
  std::map<Key, Entry> by_name_ KVSTOW_GUARDED_BY(mu_);
  std::set<Key> creating_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_SPACES_SPACES_H_
