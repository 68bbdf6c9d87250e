// MemoryRemoteStore: a RemoteStore in memory, with knobs for what real ones do to their callers.
//
// It answers within the call, until a test holds its answers; then Release or Tick answers, on the
// thread that calls them. Deadlines and times to live follow the clock in its options: after a test
// moved a ManualClock, Tick answers the held calls whose deadline has passed. What a call does to
// the values happens at once, held or not. The destructor answers what is held with CANCELLED.
// Thread-safe.
#ifndef KVSTOW_TESTS_SERVICE_REMOTE_MEMORY_REMOTE_STORE_H_
#define KVSTOW_TESTS_SERVICE_REMOTE_MEMORY_REMOTE_STORE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/mutex.h"
#include "service/remote/remote_store.h"

namespace kvstow {

class MemoryRemoteStore final : public RemoteStore {
 public:
  struct Options {
    const Clock* clock = &Clock::Real();
    uint64_t capacity_bytes = UINT64_MAX;  // of values; beyond it any of them go
    uint32_t seed = 1;                     // of the choice of those
  };
  explicit MemoryRemoteStore(Options options);
  MemoryRemoteStore() : MemoryRemoteStore(Options{}) {}
  ~MemoryRemoteStore() override;

  std::string name() const override { return "memory"; }
  bool holds_values() const override { return true; }
  void Get(std::vector<std::string> names, Time deadline, GetDone done) override;
  void Put(std::vector<RemoteValue> values, Duration ttl, Time deadline, Done done) override;
  void Exists(std::vector<std::string> names, Time deadline, Done done) override;
  void Erase(std::vector<std::string> names, Time deadline, Done done) override;
  Counters counters() const override;

  // The next `calls` calls do nothing and answer `status` for each name.
  void FailNext(absl::Status status, int calls = 1);
  // Each use of `name` does nothing and answers `status`, until it is OK.
  void FailName(const std::string& name, absl::Status status);
  // All calls answer `status`, until it is OK.
  void FailAll(absl::Status status);
  // Keeps answers back, until Release.
  void Hold();
  void Release();
  // Answers the held calls that are past their deadline.
  void Tick();
  size_t held() const;

  // These return false when there is no such value.
  bool Drop(const std::string& name);
  bool Corrupt(const std::string& name, size_t at);  // flips a bit of the byte at `at` % size
  bool Swap(const std::string& a, const std::string& b);
  bool Truncate(const std::string& name, size_t bytes);
  void DropAll();
  // What is there now, in order of names.
  std::vector<std::string> names() const;
  // The value's bytes, without an error and without a call.
  std::optional<std::string> Peek(const std::string& name) const;

 private:
  struct Value {
    SharedBytes bytes;
    std::optional<Time> until;
  };
  using Results = std::vector<absl::StatusOr<SharedBytes>>;
  struct Held {
    Results results;
    Time deadline;
    GetDone done;
  };

  // What is wrong with the next use of `name`: OK = nothing.
  absl::Status Trouble(const absl::Status& of_call, const std::string& name) const
      KVSTOW_REQUIRES(mu_);
  absl::Status BeginCall(size_t names) KVSTOW_REQUIRES(mu_);
  const Value* Find(const std::string& name) KVSTOW_REQUIRES(mu_);
  void Store(const std::string& name, Value value) KVSTOW_REQUIRES(mu_);
  bool Remove(const std::string& name) KVSTOW_REQUIRES(mu_);
  void Answer(Results results, Time deadline, GetDone done) KVSTOW_EXCLUDES(mu_);
  static GetDone WithoutValues(Done done);

  const Options options_;
  mutable Mutex mu_;
  std::map<std::string, Value> values_ KVSTOW_GUARDED_BY(mu_);
  uint64_t bytes_ KVSTOW_GUARDED_BY(mu_) = 0;
  std::mt19937 random_ KVSTOW_GUARDED_BY(mu_);
  std::map<std::string, absl::Status> fail_names_ KVSTOW_GUARDED_BY(mu_);
  absl::Status fail_next_ KVSTOW_GUARDED_BY(mu_), fail_all_ KVSTOW_GUARDED_BY(mu_);
  int fail_calls_ KVSTOW_GUARDED_BY(mu_) = 0;
  bool holds_ KVSTOW_GUARDED_BY(mu_) = false;
  std::vector<Held> held_ KVSTOW_GUARDED_BY(mu_);
  Counters counters_ KVSTOW_GUARDED_BY(mu_);
};

// One server's end of a store that several share. Counts the round trips that read records of
// pages, if it is asked to.
class SharedRemote final : public RemoteStore {
 public:
  explicit SharedRemote(MemoryRemoteStore& store, std::atomic<int>* record_reads = nullptr)
      : store_(store), record_reads_(record_reads) {}
  std::string name() const override { return store_.name(); }
  bool holds_values() const override { return true; }
  void Get(std::vector<std::string> names, Time deadline, GetDone done) override {
    if (record_reads_ != nullptr && absl::EndsWith(names[0], ":r")) ++*record_reads_;
    store_.Get(std::move(names), deadline, std::move(done));
  }
  void Put(std::vector<RemoteValue> values, Duration ttl, Time deadline, Done done) override {
    store_.Put(std::move(values), ttl, deadline, std::move(done));
  }
  void Exists(std::vector<std::string> names, Time deadline, Done done) override {
    store_.Exists(std::move(names), deadline, std::move(done));
  }
  void Erase(std::vector<std::string> names, Time deadline, Done done) override {
    store_.Erase(std::move(names), deadline, std::move(done));
  }
  Counters counters() const override { return store_.counters(); }

 private:
  MemoryRemoteStore& store_;
  std::atomic<int>* const record_reads_;
};

}  // namespace kvstow

#endif  // KVSTOW_TESTS_SERVICE_REMOTE_MEMORY_REMOTE_STORE_H_
