// RemoteSender: sends pages of this server to the remote store, one batch after the other.
//
// A page is sent once, in the form that it has when it is cold. What another server sent already is
// not sent again: the sender asks first. The record of a page goes last, so that whoever finds it
// finds the rest. Pages of private spaces stay here. The queue is bounded: pages beyond it, and
// those that the remote store does not take, are counted and stay here.
//
// Thread-safe. The destructor gives up what was not sent yet.
#ifndef KVSTOW_SERVICE_REMOTE_REMOTE_SENDER_H_
#define KVSTOW_SERVICE_REMOTE_REMOTE_SENDER_H_

#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "service/remote/remote_counters.h"
#include "service/remote/remote_page.h"
#include "service/remote/remote_purge.h"
#include "service/remote/remote_store.h"
#include "service/spaces/spaces.h"
#include "storage/store/tiered_store.h"

namespace kvstow {

class RemoteSender {
 public:
  struct Options {
    std::string prefix;
    Duration wait;                  // of one batch
    Duration ttl;                   // of values; 0 = the engine decides
    uint64_t bytes_per_second = 0;  // 0 = as fast as it goes
    size_t most_queued = 65536;
  };
  // All of them outlive this.
  RemoteSender(Options options, RemoteStore& remote, RemotePurge& purge, TieredStore& store,
               const Spaces& spaces, MakeColdForm cold, RemoteCounters& counters);
  ~RemoteSender();

  void Offer(PageName name);
  // Waits until everything that was offered is sent, or given up.
  void Flush();
  uint64_t queued() const;

 private:
  // A page as it is to be sent.
  struct Outgoing {
    RemoteTag tag;
    PageRecord record;
    std::vector<SharedBytes> bodies;
  };
  void Loop();
  std::vector<PageName> NextBatch();
  void Send(std::vector<PageName> batch);
  struct Queued {
    PageName name;
    RemoteTag tag;
  };
  std::vector<Queued> NotThereYet(std::vector<PageName> batch);
  std::optional<Outgoing> Load(const Queued& page);
  absl::Status SendPage(const Queued& queued, uint64_t& bytes);
  absl::Status Write(std::vector<RemoteValue> values);
  void Pace(uint64_t bytes);

  const Options options_;
  RemoteStore& remote_;
  RemotePurge& purge_;
  TieredStore& store_;
  const Spaces& spaces_;
  const MakeColdForm cold_;
  RemoteCounters& counters_;
  mutable Mutex mu_;
  CondVar changed_;
  std::deque<PageName> queue_ KVSTOW_GUARDED_BY(mu_);
  bool sending_ KVSTOW_GUARDED_BY(mu_) = false;
  bool stop_ KVSTOW_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REMOTE_SENDER_H_
