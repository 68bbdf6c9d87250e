// One server of a cluster: its connection, what waits for it, and whether it is worth asking.
//
// A node connects when there is something to send, and again by itself after it was lost. After
// kRedisFailures failures in a row it is out (its breaker is open) and takes nothing; then it tries
// to log in now and then, and is back when that succeeds. Failures are: it cannot be reached, it
// hangs up, or calls reach their deadline while it is silent. What a lost connection had in flight
// comes back to the owner.
//
// Only the store's I/O thread uses a node.
#ifndef KVSTOW_SERVICE_REMOTE_REDIS_NODE_H_
#define KVSTOW_SERVICE_REMOTE_REDIS_NODE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "service/remote/redis_connection.h"
#include "service/remote/redis_resolver.h"
#include "service/remote/remote_store.h"

namespace kvstow {

inline constexpr int kRedisFailures = 3;
inline constexpr size_t kRedisSmallCall = 256;  // names

// A call of the store's, while some of its results are not there.
struct RedisCall {
  using Results = std::vector<absl::StatusOr<SharedBytes>>;
  Time deadline;
  size_t left = 0;  // results to come
  Results results;  // in the order of the names
  std::function<void(Results)> done;
  absl::Status last_trouble;  // why there is no result yet
  std::multimap<Time, std::shared_ptr<RedisCall>>::iterator alarm;
  bool over = false;  // it was answered

  // Returns how many of the places of a queue the call may fill. Few large calls leave room for the
  // small ones of everybody else.
  size_t MostOf(size_t places) const {
    return results.size() > kRedisSmallCall ? places - places / 4 : places;
  }
};

// What is done for one name of a call.
struct RedisCommand {
  enum class Verb : uint8_t { kGet, kSet, kExists, kUnlink, kSlots, kAsking };
  std::shared_ptr<RedisCall> call;  // null for kAsking
  size_t index = 0;                 // of the name in its call
  Verb verb = Verb::kGet;
  uint16_t slot = 0;
  std::string name;
  std::vector<SharedBytes> parts = {};
  Duration ttl{0};
  int redirects = 0, retries = 0;
  bool asking = false;  // sent to where its slot is on the way to
  Time sent_at{};

  bool reads() const { return verb == Verb::kGet || verb == Verb::kExists; }
  uint64_t value_bytes() const;
  RedisBytes Encode() const;
};

struct RedisLimits {
  uint64_t queue_bytes = uint64_t{256} << 20;  // of values that wait or are on their way
  size_t queue_commands = 16384;
  Duration connect_timeout = std::chrono::seconds(1);
};

class RedisNode {
 public:
  // `wake` may be called on any thread, also after the node is gone.
  RedisNode(RedisAddress address, RedisLogin login, RedisLimits limits, std::function<void()> wake);

  const RedisAddress& address() const { return address_; }
  // False while the breaker is open.
  bool takes_commands() const { return failures_ < kRedisFailures; }
  bool healthy() const { return failures_ == 0 && silences_ == 0; }
  // Logged in.
  bool connected() const { return connection_ != nullptr && connection_->ready(); }
  const absl::Status& last_failure() const { return last_failure_; }
  uint64_t reconnects() const { return reconnects_; }
  bool idle() const { return waiting_.empty() && sent_.empty(); }

  // Takes a command, or gives it back with false when its queue is full.
  bool Take(RedisCommand& command, bool first = false);

  // What to poll for; descriptor -1 = nothing.
  std::pair<int, int16_t> waits_for() const;
  // When Advance has something to do without an event.
  Time wakes_at() const;

  struct Answer {
    RedisCommand command;
    RedisReply reply;
  };
  struct Progress {
    std::vector<Answer> answers;
    std::vector<RedisCommand> lost;  // what a lost connection had in flight, and what waited
    bool failed = false;
  };
  // Goes as far as it can without waiting.
  Progress Advance(int16_t events, Time now);
  // Some call passed its deadline: forgets what waits for it, and looks whether the node is silent.
  void DropLate(Time now);

 private:
  void Connect(Time now, Progress& progress);
  void Move(int16_t events, Time now, Progress& progress);
  void TakeReplies(std::vector<RedisReply> replies, Time now, Progress& progress);
  void SendWaiting(Time now);
  bool can_send() const;
  // Since when the oldest command in flight has seen no sign of life.
  Time quiet_since() const;
  void Fail(const absl::Status& why, bool open, Time now, Progress& progress);
  Duration Backoff();

  const RedisAddress address_;
  const RedisLogin login_;
  const RedisLimits limits_;
  const std::function<void()> wake_;
  std::deque<RedisCommand> waiting_, sent_;
  uint64_t bytes_ = 0;  // of the values in both
  std::shared_ptr<RedisLookup> lookup_;
  std::unique_ptr<RedisConnection> connection_;
  size_t turn_ = 0;    // which of its addresses is next
  Time give_up_at_{};  // on connecting
  Time try_at_{};      // not before
  Time last_life_{}, last_strike_{};
  uint64_t moved_ = 0;
  int failures_ = 0;  // in a row
  int silences_ = 0;  // in a row: calls that passed their deadline in silence
  absl::Status last_failure_;
  bool was_connected_ = false;
  bool told_ = false;  // the log, that it is out
  bool more_ = false;  // there is more to read
  uint64_t reconnects_ = 0;
  std::minstd_rand random_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REDIS_NODE_H_
