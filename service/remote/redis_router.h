// Brings each command to the node that has its slot, and each reply to its call.
//
// It owns the nodes and the map of slots, follows redirections, tries again what passes by itself,
// and answers calls at their deadline. Only the store's I/O thread uses it. `done` of a call runs
// within Begin, Advance or CancelAll.
#ifndef KVSTOW_SERVICE_REMOTE_REDIS_ROUTER_H_
#define KVSTOW_SERVICE_REMOTE_REDIS_ROUTER_H_

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "service/remote/redis_config.h"
#include "service/remote/redis_node.h"
#include "service/remote/redis_slots.h"

namespace kvstow {

// RemoteStore::Counters while they count. Any thread may read.
struct RedisCounters {
  std::atomic<uint64_t> commands{0}, failed{0}, bytes_out{0}, bytes_in{0}, redirects{0};
  std::atomic<uint64_t> reconnects{0}, refused{0}, nodes{0}, connected{0};
};

class RedisRouter {
 public:
  // `wake` makes the I/O thread call Advance; any thread may call it, at any time.
  RedisRouter(RedisConfig config, RedisCounters& counters, std::function<void()> wake);

  void Begin(std::shared_ptr<RedisCall> call, std::vector<RedisCommand> commands, Time now);
  // Appends what to poll for.
  void AddPolls(std::vector<pollfd>& polls);
  // When Advance has something to do without an event.
  Time wakes_at() const;
  // `polls` are those that AddPolls appended, after poll().
  void Advance(std::span<const pollfd> polls, Time now);
  void CancelAll();

 private:
  using Result = absl::StatusOr<SharedBytes>;

  // Calls and their results.
  void Answer(const RedisCommand& command, Result result);
  void Refuse(const RedisCommand& command, absl::Status why);
  void Finish(const std::shared_ptr<RedisCall>& call);
  void AnswerLate(Time now);

  // Commands on their way.
  void Route(RedisCommand command, Time now);
  void GiveTo(RedisNode& node, RedisCommand command);
  RedisNode* Choose(const RedisShard& shard, const RedisCommand& command);
  void TryLater(RedisCommand command, absl::Status why, Time now);
  void TakeProgress(RedisNode& node, RedisNode::Progress progress, Time now);
  void TakeLost(RedisNode& node, RedisCommand command, Time now);
  void TakeReply(RedisNode& node, RedisCommand command, RedisReply reply, Time now);
  void TakeError(RedisNode& node, RedisCommand command, const std::string& error, Time now);
  void Follow(RedisNode& node, RedisCommand command, const RedisRedirect& redirect, Time now);

  // The map of slots.
  void WantMap(Time now);
  void AskForMap(Time now);
  RedisNode* ChooseForMap();
  void TakeMap(RedisNode& node, const RedisReply& reply, Time now);
  void UseMap(RedisSlotMap map, Time now);
  void NoMap(absl::Status why, Time now);
  void RouteWaiting(Time now);
  void DropUnused();

  RedisNode* NodeAt(const RedisAddress& address);
  absl::Status WhyOut(const RedisAddress& address);
  void Count();

  const RedisConfig config_;
  RedisCounters& counters_;
  const std::function<void()> wake_;
  std::map<std::string, std::unique_ptr<RedisNode>> nodes_;  // by address
  std::vector<std::unique_ptr<RedisNode>> unused_;           // gone at the end of the round
  std::vector<RedisNode*> polled_;
  std::vector<RedisNode*> in_map_;  // a seed may be one of these under another name
  uint64_t reconnects_ = 0;         // of nodes that are gone
  std::minstd_rand random_;

  std::multimap<Time, std::shared_ptr<RedisCall>> alarms_;  // of all calls, by deadline
  std::multimap<Time, RedisCommand> later_;
  std::vector<RedisCommand> without_map_;

  RedisSlotMap map_;
  bool single_ = false;  // one Redis that is no cluster
  std::shared_ptr<RedisCall> asking_for_map_;
  RedisNode* asked_last_ = nullptr;
  Time ask_at_{}, asked_at_{};
  int map_failures_ = 0;  // in a row
  absl::Status trouble_;  // why there is no map
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REDIS_ROUTER_H_
