// RemoteSender: sends pages of this server to the remote store, in the order of SendQueue.
//
// A page is sent once, in the form that it has when it is cold. What another server sent already is
// not sent again: the sender asks first. The record of a page goes last, so that whoever finds it
// finds the rest. Pages of private spaces stay here. The queue is bounded: pages beyond it, and
// those that the remote store does not take, are counted and stay here.
//
// A few threads send, so that small pages do not wait for one another's round trips. They share one
// rate, and one of them codes at a time: the CPU belongs to the workers. A tenant that sent all
// that it may keeps its pages here.
//
// Thread-safe. The destructor gives up what was not sent yet.
#ifndef KVSTOW_SERVICE_REMOTE_REMOTE_SENDER_H_
#define KVSTOW_SERVICE_REMOTE_REMOTE_SENDER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "service/remote/remote_counters.h"
#include "service/remote/remote_page.h"
#include "service/remote/remote_purge.h"
#include "service/remote/remote_store.h"
#include "service/remote/send_budget.h"
#include "service/spaces/spaces.h"
#include "storage/policies/send_queue.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

// Returns what a tenant may send within the ttl; 0 = any.
using TenantBytes = std::function<uint64_t(const std::string& tenant)>;

class RemoteSender {
 public:
  struct Options {
    std::string prefix;
    Duration wait;                  // of one batch
    Duration ttl;                   // of values; 0 = the engine decides
    uint64_t bytes_per_second = 0;  // 0 = as fast as it goes
    size_t most_queued = 65536;
    size_t threads = 4;
    TenantBytes limit_of = nullptr;  // null = any; runs in the sender's threads
  };
  // All of them outlive this.
  RemoteSender(Options options, RemoteStore& remote, RemotePurge& purge, TieredStore& store,
               const Spaces& spaces, MakeColdForm cold, RemoteCounters& counters);
  ~RemoteSender();

  // A page was put here, behind the page `parent` of its prompt; "" = not known.
  void Offer(const PageName& name, absl::string_view parent);
  // A page was used again. Cheap where none waits.
  void Use(const PageName& name);
  // Waits until everything that was offered is sent, or given up.
  void Flush();
  uint64_t queued() const { return queued_.load(std::memory_order_relaxed); }

 private:
  // A page as it is to be sent.
  struct Outgoing {
    RemotePlace place;
    PageRecord record;
    std::vector<SharedBytes> bodies;
  };
  void Loop();
  std::vector<PageName> NextBatch();
  void Send(std::vector<PageName> batch);
  struct Queued {
    PageName name;
    RemotePlace place;
  };
  std::vector<Queued> NotThereYet(std::vector<PageName> batch);
  std::optional<Outgoing> Load(const Queued& page);
  absl::Status SendPage(const Queued& queued, uint64_t& bytes);
  absl::Status Write(std::vector<RemoteValue> values);
  bool MaySend(SpaceId space, uint64_t bytes);
  void Pace(uint64_t bytes);

  const Options options_;
  RemoteStore& remote_;
  RemotePurge& purge_;
  TieredStore& store_;
  const Spaces& spaces_;
  const MakeColdForm cold_;
  RemoteCounters& counters_;
  Mutex mu_;
  CondVar changed_;
  SendQueue<PageName> queue_ KVSTOW_GUARDED_BY(mu_);
  std::atomic<size_t> queued_{0};              // queue_.size(), without the lock
  size_t sending_ KVSTOW_GUARDED_BY(mu_) = 0;  // threads that have pages
  Time next_send_ KVSTOW_GUARDED_BY(mu_){};    // when the rate allows it
  bool stop_ KVSTOW_GUARDED_BY(mu_) = false;
  SendBudget budget_;
  Mutex coding_;  // held by the thread that codes
  std::vector<std::thread> threads_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REMOTE_SENDER_H_
