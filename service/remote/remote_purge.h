// RemotePurge: deletes and drops of spaces reach every server within a second.
//
// Each space has one small value in the remote store, its purge record: a generation, and the keys
// that were deleted lately (docs/FORMAT.md, "Remote values"). The names of pages contain the
// generation: a drop of the space raises it, and nobody finds the old pages again. A thread reads
// the records of the spaces in use every kPoll. It tells what is new to this server, and writes
// what is new here. Two servers that write at once may lose an entry: each looks again, and writes
// its own entries and its own drops once more for kKept. No atomic operation is needed. For as long
// nobody fetches a page that was deleted: another server may have sent it once more before it was
// told. After kKept a deletion leaves the record: any server writes the record without it. A server
// remembers it until the record lacks it, so that it is met once.
//
// A record holds kMostDeleted keys. Further ones wait until there is room. More than kMostWaiting
// keys that wait count as a drop.
//
// A server uses no remote page of a space before it has read the space's record once. It cannot
// tell what it met in that first reading from what happened before it started. So that concerns
// pages alone that were on its disk when it started; what was put since then stays. A drop leaves
// those pages too where their space's record on disk has its generation: that is saved once no
// older page is left.
//
// A damaged record is written anew by a server that knows the generation. If nobody does so within
// kKept, nobody knows it: servers then take another generation, which the damaged bytes give, so
// that all take the same. A record of a later version counts as no answer, and stays.
//
// The thread looks at the tenants' keys too (remote_keys.h). Under another key a space begins again
// with generation 0. What was deleted lately is told again there. Before a key is forgotten, its
// purge records are read once more: the drop of a tenant raises them and then erases the key. They
// get a TTL then, since nobody finds them any more.
//
// Thread-safe.
#ifndef KVSTOW_SERVICE_REMOTE_REMOTE_PURGE_H_
#define KVSTOW_SERVICE_REMOTE_REMOTE_PURGE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "service/ops/worker_pool.h"
#include "service/remote/remote_counters.h"
#include "service/remote/remote_key.h"
#include "service/remote/remote_keys.h"
#include "service/remote/remote_store.h"
#include "service/spaces/space.h"
#include "service/spaces/space_record.h"

namespace kvstow {

// The record as it is in the remote store.
struct PurgeRecord {
  uint64_t generation = 0;
  std::map<uint64_t, std::string> deleted;  // keys, by the random ids of their deletions
  bool operator==(const PurgeRecord&) const = default;
};
std::vector<SharedBytes> PurgeValue(const RemotePlace& space, const PurgeRecord& record);
absl::StatusOr<PurgeRecord> ParsePurgeValue(const RemotePlace& space, const SharedBytes& value);

class RemotePurge {
 public:
  static constexpr Duration kPoll = std::chrono::milliseconds(250);
  static constexpr Duration kKept = std::chrono::seconds(60);
  static constexpr size_t kMostDeleted = 65536;   // keys of a record
  static constexpr size_t kMostWaiting = 262144;  // keys; more of them raise the generation
  static constexpr size_t kMostUnerased = 65536;  // names; older ones are left to their TTL

  using SpacePtr = std::shared_ptr<const Space>;
  // The pages that something concerns: all of them, or those that were on disk when the server
  // started.
  enum class Pages : uint8_t { kAll, kFromDisk };
  // What another server did. All may take their time.
  struct Listener {
    // Returns whether all pages are gone; ends early once `stopping()`.
    std::function<bool(const SpacePtr&, Pages, const std::function<bool()>& stopping)> dropped;
    std::function<void(const SpacePtr&, const std::string& key, Pages)> deleted;
    // All pages of the space here are of this era.
    std::function<void(const SpacePtr&, const SavedEra&)> current;
  };
  using Found = std::function<void(absl::StatusOr<RemoteEra>)>;
  // All of them outlive this. `clock` says how long something was kept.
  RemotePurge(std::string prefix, RemoteStore& remote, RemoteKeys& keys, Listener listener,
              RemoteCounters& counters, const Clock& clock = Clock::Real());
  ~RemotePurge();

  // Reads the space's record from now on. `saved` is what the space's record on disk has.
  void Watch(const SpacePtr& space, const SavedEra& saved);
  // Returns the space's era when it is known.
  std::optional<RemoteEra> Known(const Space& space);
  // Calls `done` with the space's era, within the call when it is known. Fails as RemoteKeys::Find
  // does, and with UNAVAILABLE when the remote store does not answer by `deadline`.
  void Find(const SpacePtr& space, RemoteKeys::Use use, Time deadline, Found done);
  // Returns how many of the leading keys were not deleted lately.
  size_t CountLive(const Space& space, std::span<const std::string> keys);
  // Notes what was done here. The thread tells the others.
  void Delete(const Space& space, const std::string& key);
  void Drop(const Space& space, bool ends = false);  // `ends`: its tenant's key goes, too
  // Forgets a key that is no more the tenant's (RemoteKeys::Turn).
  void Turn(const std::string& tenant);
  // Forgets what is to be told of a tenant whose key is gone.
  void ForgetTenant(const std::string& tenant);
  // Erases values, and tries again until they are erased.
  void Erase(std::vector<std::string> names);
  // The value is about to be written: it is not erased any more.
  void Unerase(const std::string& name);
  // Waits until what was noted before is written, or could not be, and what was met is done.
  void Flush();

 private:
  struct Deletion {
    std::string key;
    bool here = false;         // it was made here
    Time until = Time::max();  // it is kept; max: nobody else can know of it yet
    bool lately = true;        // `until` has not come
  };
  struct State {
    SpacePtr space;  // null: it is not open here now
    std::string tenant;
    RemoteKeyPtr key;  // under which the record was read
    uint64_t generation = 0;
    SpaceId saved_of = 0;  // the space that `saved` is of
    SavedEra saved;
    absl::flat_hash_map<uint64_t, Deletion> deletions;  // by their ids
    std::deque<std::string> waiting;                    // keys that no record had room for yet
    absl::flat_hash_set<std::string> deleted;           // lately, and the keys that wait
    std::optional<Time> damaged;                        // since when the record is
    Time told{};         // when this server last had something to write
    bool known = false;  // the record was read
    bool met = false;    // the same, under whatever key
    bool dirty = false;  // it has what the remote store may lack
    bool drop = false;   // the generation is to rise
    bool ends = false;   // nobody reads the record for long
  };
  // What a reading asks for.
  struct Met {
    SpacePtr space;
    Pages pages = Pages::kAll;
    bool dropped = false;
    std::vector<std::string> deleted;
    std::optional<SavedEra> era;  // to be saved
  };
  struct Asked {
    RemoteTag tag;  // in states_
    RemotePlace place;
    bool turns = false;  // the key is about to be another
    bool ends = false;
  };
  void Loop();
  void Poll(const std::vector<std::string>& turning);
  std::vector<Asked> ToAsk(const std::vector<std::string>& turning);
  void Write(std::vector<RemoteValue> values, Duration ttl);
  void MakeKeys();
  std::optional<RemoteEra> EraOf(const State& state) KVSTOW_REQUIRES(mu_);
  void Ask(const RemoteTag& tag, RemoteKeyPtr key, Time deadline, Found done);
  void EndAsking();
  void Merge(const RemoteTag& tag, const RemotePlace& place,
             const absl::StatusOr<SharedBytes>& value, std::vector<RemoteValue>& out);
  absl::StatusOr<PurgeRecord> InPlaceOf(const absl::Status& unread, const SharedBytes& value,
                                        bool knows, State& state) KVSTOW_REQUIRES(mu_);
  void Adopt(const PurgeRecord& there, State& state, Met& met) KVSTOW_REQUIRES(mu_);
  static void NoteEra(State& state, Met& met);
  void ForgetOld(const PurgeRecord& there, State& state) KVSTOW_REQUIRES(mu_);
  PurgeRecord ToWrite(const PurgeRecord& there, State& state) KVSTOW_REQUIRES(mu_);
  void Act(const Met& met);
  bool stopping();
  void EraseAll();

  const std::string prefix_;
  RemoteStore& remote_;
  RemoteKeys& keys_;
  const Listener listener_;
  RemoteCounters& counters_;
  const Clock& clock_;
  Mutex mu_;
  CondVar changed_;
  absl::flat_hash_map<RemoteTag, State> states_ KVSTOW_GUARDED_BY(mu_);
  std::deque<std::string> unerased_ KVSTOW_GUARDED_BY(mu_);
  absl::flat_hash_set<std::string> erasing_ KVSTOW_GUARDED_BY(mu_);  // of them, in a call now
  uint64_t rounds_ KVSTOW_GUARDED_BY(mu_) = 0;                       // that ended
  size_t asking_ KVSTOW_GUARDED_BY(mu_) = 0;                         // questions of Find under way
  size_t acting_ KVSTOW_GUARDED_BY(mu_) = 0;  // calls of Act to come, and the one that runs
  bool wake_ KVSTOW_GUARDED_BY(mu_) = false;
  bool stop_ KVSTOW_GUARDED_BY(mu_) = false;
  std::thread thread_;
  WorkerPool actor_{"kvstow-purge", 1};  // calls the listener
};

// Waits for the era.
absl::StatusOr<RemoteEra> EraOf(RemotePurge& purge, const std::shared_ptr<const Space>& space,
                                RemoteKeys::Use use, Time deadline);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REMOTE_PURGE_H_
