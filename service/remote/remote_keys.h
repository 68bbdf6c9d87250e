// RemoteKeys: the tenants' keys in the remote store, as this server knows them.
//
// Servers agree on a tenant's key by its key record, without atomic operations. Whoever writes and
// finds no record makes a key, writes it and reads it back: the record that is there then decides.
// Look, which a thread calls several times a second, meets records that were written over later. A
// key that lost takes with it what it sealed: names depend on the key, so those values are found by
// nobody. Whoever only reads makes no key.
//
// A record that another master key wrapped is locked. It is another fleet's, or this server lacks a
// master key: it is never written over or erased, the log names it once, and the tenant's pages in
// the remote store are misses. A damaged record is as good as none, because nobody can use it.
//
// Drop erases the record, and with it the key: what it sealed is noise from then on. This server
// knows the key no more and erases its record again should another server write it once more. The
// others meet the missing record within a second. A new master key wraps the records of all tenants
// that were named to Watch; servers that know a tenant's key go on with it, whatever wraps it.
//
// Without master keys all is in clear, and every tenant's key is null. Thread-safe. Whoever calls
// Find waits for its answer before this goes.
#ifndef KVSTOW_SERVICE_REMOTE_REMOTE_KEYS_H_
#define KVSTOW_SERVICE_REMOTE_REMOTE_KEYS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "service/keys/master_key.h"
#include "service/remote/remote_counters.h"
#include "service/remote/remote_key.h"
#include "service/remote/remote_key_record.h"
#include "service/remote/remote_store.h"

namespace kvstow {

class RemoteKeys {
 public:
  // kRead believes what the last Look saw; kReadNow asks when there was no key; kWrite makes one.
  enum class Use : uint8_t { kRead, kReadNow, kWrite };
  using Found = std::function<void(absl::StatusOr<RemoteKeyPtr>)>;
  // Told of a tenant whose key is new: nothing in the remote store is named by it yet. Must not
  // block.
  using Renewed = std::function<void(const std::string& tenant)>;

  // `masters` null = in clear. The others outlive this.
  RemoteKeys(std::string prefix, RemoteStore& remote, std::shared_ptr<MasterKeys> masters,
             Renewed renewed, RemoteCounters& counters);

  bool seals() const { return masters_ != nullptr; }
  // Calls `done` with the tenant's key, within the call when it is known. NOT_FOUND: there is none,
  // and so no value of the tenant. FAILED_PRECONDITION: it is locked. UNAVAILABLE: the remote store
  // does not answer by `deadline`, or there is no master key to make one with.
  void Find(const std::string& tenant, Use use, Time deadline, Found done);
  // Returns the key that is in use here; nothing when there is none.
  std::optional<RemoteKeyPtr> Known(const std::string& tenant) const;
  // Reads the records of all tenants that were asked for. Returns the tenants whose key here is no
  // more the one of the record: it stays in use until Turn. Blocks.
  std::vector<std::string> Look();
  // Forgets such a key, and takes the one of the record. Other keys stay.
  void Turn(const std::string& tenant);
  // Looks at these tenants' records from now on. Those that another master key wrapped than the
  // first are wrapped anew, once.
  void Watch(std::span<const std::string> tenants);
  // Erases the tenant's key record; Turn ends the use of the key. UNAVAILABLE: the remote store
  // does not answer, and Look tries again. FAILED_PRECONDITION: the record is locked and stays.
  // Blocks.
  absl::Status Drop(const std::string& tenant);

  struct Counts {
    uint64_t keys = 0;    // in use
    uint64_t locked = 0;  // that no master key here unwraps
  };
  Counts counts() const;

 private:
  struct State {
    RemoteKeyPtr key;   // in use
    RemoteKeyPtr next;  // of the record, when it is another; Turn takes it
    // Why there is no key: NOT_FOUND or FAILED_PRECONDITION. UNAVAILABLE: nobody read the record.
    absl::Status none = absl::UnavailableError("the remote store was not asked");
    RemoteKeyPtr made;                   // here; not read back yet
    absl::flat_hash_set<uint64_t> shed;  // ids of keys that were dropped here
    uint64_t named = 0;                  // id of the locked key that the log named
    bool damaged = false;                // the record was, when it was read last
    bool dropping = false;               // the record is to be erased, whatever key it has
    bool wrap_anew = true;               // by the first master key
    bool renewed = false;                // the next key is new
    bool turning = false;                // `key` is no more the record's
    uint64_t changes = 0;                // of `key`
  };
  // What one reading of records asks for.
  struct Round {
    std::vector<std::string> turning, erase, wrap_anew, renewed;
  };
  std::string NameOf(const std::string& tenant) const;
  absl::StatusOr<RemoteKeyPtr> Judge(const std::string& tenant,
                                     const absl::StatusOr<SharedBytes>& value, State& state,
                                     Round& round) KVSTOW_REQUIRES(mu_);
  absl::StatusOr<RemoteKeyPtr> Open(const std::string& tenant, const KeyRecord& record,
                                    State& state, Round& round) KVSTOW_REQUIRES(mu_);
  void Adopt(const std::string& tenant, RemoteKeyPtr key, State& state, Round& round)
      KVSTOW_REQUIRES(mu_);
  absl::StatusOr<RemoteKeyPtr> Take(const std::string& tenant,
                                    const absl::StatusOr<SharedBytes>& value);
  void Note(const std::string& tenant, uint64_t changes, const absl::StatusOr<SharedBytes>& value,
            Round& round);
  void Make(const std::string& tenant, Time deadline, Found done);
  void EraseRecords(const std::vector<std::string>& tenants);
  void WrapAnew(const std::vector<std::string>& tenants);

  const std::string prefix_;
  RemoteStore& remote_;
  const std::shared_ptr<MasterKeys> masters_;
  const Renewed renewed_;
  RemoteCounters& counters_;
  mutable Mutex mu_;
  std::map<std::string, State> tenants_ KVSTOW_GUARDED_BY(mu_);
};

// Waits for the key.
absl::StatusOr<RemoteKeyPtr> KeyOf(RemoteKeys& keys, const std::string& tenant, RemoteKeys::Use use,
                                   Time deadline);

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REMOTE_KEYS_H_
