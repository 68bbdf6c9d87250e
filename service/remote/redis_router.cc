#include "service/remote/redis_router.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace kvstow {
namespace {

using std::chrono::milliseconds;
using Verb = RedisCommand::Verb;

constexpr int kRedirects = 5;  // of one command
constexpr int kLostTwice = 3;  // lost connections that one command may see
constexpr auto kMapEvery = milliseconds(10'000);
constexpr auto kMapEveryInTrouble = milliseconds(300);  // while a primary is out
constexpr auto kMapAtMost = milliseconds(50);           // between two questions
constexpr auto kMapDeadline = milliseconds(500);
constexpr auto kFirstRetry = milliseconds(10);
constexpr int kLongestRetry = 5;  // doublings

// What a call has in the place of a result that is to come.
absl::Status ToCome() { return absl::UnknownError("to come"); }

Duration Later(int times) { return Duration(kFirstRetry) * (1 << std::min(times, kLongestRetry)); }

absl::StatusOr<SharedBytes> ResultOf(Verb verb, RedisReply reply) {
  using Kind = RedisReply::Kind;
  if (verb == Verb::kGet && reply.kind == Kind::kBulk) return std::move(reply.bytes);
  if (verb == Verb::kSet && reply.kind == Kind::kStatus) return SharedBytes();
  if (verb == Verb::kUnlink && reply.kind == Kind::kInteger) return SharedBytes();
  if (verb == Verb::kExists && reply.kind == Kind::kInteger && reply.integer > 0) {
    return SharedBytes();
  }
  const bool missing = (verb == Verb::kGet && reply.kind == Kind::kNil) ||
                       (verb == Verb::kExists && reply.kind == Kind::kInteger);
  if (missing) return absl::NotFoundError("no such value");
  return absl::UnavailableError("the server gave an answer that its command never gets");
}

}  // namespace

RedisRouter::RedisRouter(RedisConfig config, RedisCounters& counters, std::function<void()> wake)
    : config_(std::move(config)),
      counters_(counters),
      wake_(std::move(wake)),
      random_(std::random_device{}()) {
  for (const RedisAddress& seed : config_.seeds) NodeAt(seed);
}

// Calls and their results.

void RedisRouter::Begin(std::shared_ptr<RedisCall> call, std::vector<RedisCommand> commands,
                        Time now) {
  call->alarm = alarms_.emplace(call->deadline, call);
  for (auto& result : call->results) {
    if (result.ok()) result = ToCome();
  }
  for (RedisCommand& command : commands) Route(std::move(command), now);
}

void RedisRouter::Answer(const RedisCommand& command, Result result) {
  if (command.call->over) return;
  command.call->results[command.index] = std::move(result);
  if (--command.call->left == 0) Finish(command.call);
}

void RedisRouter::Refuse(const RedisCommand& command, absl::Status why) {
  if (command.call->over) return;
  if (command.verb != Verb::kSlots) ++counters_.refused;
  Answer(command, std::move(why));
}

void RedisRouter::Finish(const std::shared_ptr<RedisCall>& held) {
  const std::shared_ptr<RedisCall> call = held;  // what holds it may go meanwhile
  call->over = true;
  alarms_.erase(call->alarm);
  call->done(std::move(call->results));
}

void RedisRouter::AnswerLate(Time now) {
  bool any = false;
  while (!alarms_.empty() && alarms_.begin()->first <= now) {
    any = true;
    const std::shared_ptr<RedisCall> call = alarms_.begin()->second;
    const absl::Status late = absl::DeadlineExceededError(
        call->last_trouble.ok() ? "redis: no answer in time"
                                : absl::StrCat("redis: no answer in time, last of all: ",
                                               call->last_trouble.message()));
    for (auto& result : call->results) {
      if (absl::IsUnknown(result.status())) result = late;
    }
    Finish(call);
  }
  if (!any) return;
  const auto over = [](const RedisCommand& command) { return command.call->over; };
  std::erase_if(without_map_, over);
  std::erase_if(later_, [&](const auto& entry) { return over(entry.second); });
  for (auto& [text, node] : nodes_) node->DropLate(now);
}

void RedisRouter::CancelAll() {
  while (!alarms_.empty()) {
    const std::shared_ptr<RedisCall> call = alarms_.begin()->second;
    for (auto& result : call->results) {
      if (absl::IsUnknown(result.status())) {
        result = absl::CancelledError("the remote store is closed");
      }
    }
    Finish(call);
  }
}

// Commands on their way.

void RedisRouter::Route(RedisCommand command, Time now) {
  if (command.call->over) return;
  if (map_.empty()) {
    if (!trouble_.ok()) return Refuse(command, trouble_);
    if (without_map_.size() >= config_.limits.queue_commands) {
      return Refuse(command, absl::ResourceExhaustedError("redis: too many calls wait for a map"));
    }
    without_map_.push_back(std::move(command));
    return;
  }
  const RedisShard* const shard = map_.Find(command.slot);
  if (shard == nullptr) {
    WantMap(now);
    return TryLater(std::move(command),
                    absl::UnavailableError("redis: no node has the slot of the name"), now);
  }
  RedisNode* const node = Choose(*shard, command);
  if (node == nullptr) return Refuse(command, WhyOut(shard->primary));
  GiveTo(*node, std::move(command));
}

void RedisRouter::GiveTo(RedisNode& node, RedisCommand command) {
  if (node.Take(command)) return;
  Refuse(command, absl::ResourceExhaustedError(
                      absl::StrCat("redis ", node.address().text(), ": the queue to it is full")));
}

// Reads go to replicas in turn with the primary, where that is wanted, and else when the primary is
// not well.
RedisNode* RedisRouter::Choose(const RedisShard& shard, const RedisCommand& command) {
  RedisNode* const primary = NodeAt(shard.primary);
  if (!command.reads()) {
    return primary != nullptr && primary->takes_commands() ? primary : nullptr;
  }
  const size_t all = shard.replicas.size() + 1;
  const size_t first = config_.replica_reads ? random_() % all : 0;
  RedisNode* second_best = nullptr;
  for (size_t i = 0; i < all; ++i) {
    const size_t at = (first + i) % all;
    RedisNode* const node = at == 0 ? primary : NodeAt(shard.replicas[at - 1]);
    if (node == nullptr || !node->takes_commands()) continue;
    if (node->healthy()) return node;
    if (second_best == nullptr) second_best = node;
  }
  return second_best;
}

absl::Status RedisRouter::WhyOut(const RedisAddress& address) {
  RedisNode* const node = NodeAt(address);
  if (node == nullptr) return absl::UnavailableError("redis: there are too many nodes");
  const absl::Status& why = node->last_failure();
  const bool login = absl::IsPermissionDenied(why) || absl::IsUnauthenticated(why);
  return absl::Status(login ? absl::StatusCode::kPermissionDenied : absl::StatusCode::kUnavailable,
                      absl::StrCat(why.message(), "; it is left alone for a while"));
}

void RedisRouter::TryLater(RedisCommand command, absl::Status why, Time now) {
  command.call->last_trouble = why;
  if (later_.size() >= config_.limits.queue_commands) return Refuse(command, std::move(why));
  const Time at = now + Later(command.retries++);
  command.asking = false;
  later_.emplace(at, std::move(command));
}

void RedisRouter::TakeProgress(RedisNode& node, RedisNode::Progress progress, Time now) {
  for (RedisNode::Answer& answer : progress.answers) {
    if (answer.command.verb == Verb::kAsking || answer.command.call->over) continue;
    TakeReply(node, std::move(answer.command), std::move(answer.reply), now);
  }
  if (progress.failed) WantMap(now);
  for (RedisCommand& command : progress.lost) TakeLost(node, std::move(command), now);
}

void RedisRouter::TakeLost(RedisNode& node, RedisCommand command, Time now) {
  if (command.call->over) return;
  if (command.verb == Verb::kSlots || command.retries >= kLostTwice) {
    return Answer(command, WhyOut(node.address()));
  }
  command.call->last_trouble = node.last_failure();
  command.asking = false;
  if (command.retries++ > 0 && node.takes_commands()) {
    return TryLater(std::move(command), node.last_failure(), now);
  }
  Route(std::move(command), now);
}

void RedisRouter::TakeReply(RedisNode& node, RedisCommand command, RedisReply reply, Time now) {
  if (command.verb == Verb::kSlots) {
    TakeMap(node, reply, now);
    return Answer(command, SharedBytes());
  }
  ++counters_.commands;
  if (reply.is_error()) return TakeError(node, std::move(command), reply.text, now);
  Result result = ResultOf(command.verb, std::move(reply));
  if (!result.ok()) {
    ++counters_.failed;
  } else if (command.verb == Verb::kSet) {
    counters_.bytes_out += command.value_bytes();
  } else {
    counters_.bytes_in += result->size();
  }
  Answer(command, std::move(result));
}

void RedisRouter::TakeError(RedisNode& node, RedisCommand command, const std::string& error,
                            Time now) {
  const auto redirect = ParseRedisRedirect(error, node.address().host);
  if (redirect.has_value()) return Follow(node, std::move(command), *redirect, now);
  ++counters_.failed;
  absl::Status status = StatusOfRedisError(node.address().text(), error);
  const bool replica = absl::StartsWith(error, "READONLY");
  if (!RedisErrorPasses(error) || (replica && single_)) return Answer(command, std::move(status));
  if (!absl::StartsWith(error, "TRYAGAIN")) WantMap(now);
  TryLater(std::move(command), std::move(status), now);
}

void RedisRouter::Follow(RedisNode& node, RedisCommand command, const RedisRedirect& redirect,
                         Time now) {
  ++counters_.redirects;
  if (++command.redirects > kRedirects) {
    ++counters_.failed;
    return Answer(command, absl::UnavailableError(absl::StrCat(
                               "redis ", node.address().text(), ": the slot moved more than ",
                               kRedirects, " times for one command")));
  }
  if (!redirect.ask) {
    map_.Move(command.slot, redirect.to);
    WantMap(now);
  }
  RedisNode* const to = NodeAt(redirect.to);
  if (to == nullptr || !to->takes_commands()) {
    return TryLater(std::move(command), WhyOut(redirect.to), now);
  }
  command.asking = redirect.ask;
  GiveTo(*to, std::move(command));
}

// The map of slots.

void RedisRouter::WantMap(Time now) {
  ask_at_ = std::min(ask_at_, std::max(now, asked_at_ + Duration(kMapAtMost)));
}

RedisNode* RedisRouter::ChooseForMap() {
  std::vector<RedisNode*> good, fair;
  for (auto& [text, node] : nodes_) {
    if (!node->takes_commands()) continue;
    (node->connected() && node->healthy() ? good : fair).push_back(node.get());
  }
  for (auto* const list : {&good, &fair}) {
    if (map_failures_ > 0 && list->size() + (list == &good ? fair.size() : 0) > 1) {
      std::erase(*list, asked_last_);
    }
    if (!list->empty()) return (*list)[random_() % list->size()];
  }
  return nullptr;
}

void RedisRouter::AskForMap(Time now) {
  if (asking_for_map_ != nullptr || now < ask_at_) return;
  RedisNode* const node = ChooseForMap();
  if (node == nullptr) {
    return NoMap(nodes_.empty() ? absl::UnavailableError("redis: there is no node")
                                : WhyOut(nodes_.begin()->second->address()),
                 now);
  }
  asked_last_ = node;
  asked_at_ = now;
  ask_at_ = now + kMapEvery;
  asking_for_map_ = std::make_shared<RedisCall>();
  asking_for_map_->deadline = now + kMapDeadline;
  asking_for_map_->left = 1;
  asking_for_map_->results.push_back(ToCome());
  asking_for_map_->alarm = alarms_.emplace(asking_for_map_->deadline, asking_for_map_);
  asking_for_map_->done = [this](const RedisCall::Results& results) {
    asking_for_map_ = nullptr;
    if (!results[0].ok() && !absl::IsCancelled(results[0].status())) {
      NoMap(absl::OkStatus(), Clock::Real().Now());
    }
  };
  RedisCommand command{.call = asking_for_map_, .verb = Verb::kSlots};
  node->Take(command, /*first=*/true);
}

void RedisRouter::TakeMap(RedisNode& node, const RedisReply& reply, Time now) {
  if (reply.is_error()) {
    // A single Redis, or a proxy before one, knows no slots.
    single_ = absl::StrContains(reply.text, "cluster support disabled") ||
              absl::StartsWith(reply.text, "ERR unknown command");
    if (single_) return UseMap(RedisSlotMap::Single(node.address()), now);
    const absl::Status why = StatusOfRedisError(node.address().text(), reply.text);
    return NoMap(RedisErrorPasses(reply.text) ? absl::OkStatus() : why, now);
  }
  auto map = RedisSlotMap::Parse(reply, node.address().host);
  if (!map.ok()) {
    return NoMap(absl::UnavailableError(
                     absl::StrCat("redis ", node.address().text(), ": ", map.status().message())),
                 now);
  }
  // A node that has just begun knows nobody.
  if (map->empty()) return NoMap(absl::OkStatus(), now);
  single_ = false;
  UseMap(*std::move(map), now);
}

void RedisRouter::UseMap(RedisSlotMap map, Time now) {
  if (map_.empty()) {
    Log().info("remote store: {} is there: {} primaries",
               single_ ? "a single redis" : "the redis cluster", map.shards().size());
  }
  map_ = std::move(map);
  map_failures_ = 0;
  trouble_ = absl::OkStatus();
  in_map_.clear();
  for (const RedisShard& shard : map_.shards()) {
    in_map_.push_back(NodeAt(shard.primary));
    for (const RedisAddress& replica : shard.replicas) in_map_.push_back(NodeAt(replica));
  }
  std::erase(in_map_, nullptr);
  DropUnused();
  const bool trouble =
      std::any_of(map_.shards().begin(), map_.shards().end(), [&](const RedisShard& shard) {
        const auto node = nodes_.find(shard.primary.text());
        return node != nodes_.end() && !node->second->healthy();
      });
  const Duration wait = trouble ? Duration(kMapEveryInTrouble) : Duration(kMapEvery);
  ask_at_ = now + wait * (80 + static_cast<int>(random_() % 41)) / 100;
  RouteWaiting(now);
}

// `why` tells calls that wait for the first map; OK = they wait on.
void RedisRouter::NoMap(absl::Status why, Time now) {
  ask_at_ = now + Later(map_failures_);
  ++map_failures_;
  if (why.ok() || !map_.empty()) return;
  trouble_ = std::move(why);
  for (RedisCommand& command : std::exchange(without_map_, {})) Refuse(command, trouble_);
}

void RedisRouter::RouteWaiting(Time now) {
  for (RedisCommand& command : std::exchange(without_map_, {})) Route(std::move(command), now);
}

// Forgets the nodes that are not in the map, nor seeds, and have nothing to do.
void RedisRouter::DropUnused() {
  std::map<std::string, bool> used;
  for (const RedisAddress& seed : config_.seeds) used[seed.text()] = true;
  for (const RedisShard& shard : map_.shards()) {
    used[shard.primary.text()] = true;
    for (const RedisAddress& replica : shard.replicas) used[replica.text()] = true;
  }
  for (auto& [text, node] : nodes_) {
    // The node whose reply this is stays until the reply is done with.
    if (!used.contains(text) && node->idle() && node.get() != asked_last_) used[text] = false;
  }
  for (const auto& [text, in_use] : used) {
    const auto node = nodes_.find(text);
    if (in_use || node == nodes_.end()) continue;
    reconnects_ += node->second->reconnects();
    unused_.push_back(std::move(node->second));
    nodes_.erase(node);
  }
}

RedisNode* RedisRouter::NodeAt(const RedisAddress& address) {
  const std::string text = address.text();
  if (const auto node = nodes_.find(text); node != nodes_.end()) return node->second.get();
  if (nodes_.size() >= kMaxRedisNodes) return nullptr;
  auto login = RedisLoginOf(config_, address);
  if (!login.ok()) {
    Log().warn("remote store: redis {}: {}", text, login.status().ToString());
    return nullptr;
  }
  auto node = std::make_unique<RedisNode>(address, *std::move(login), config_.limits, wake_);
  return (nodes_[text] = std::move(node)).get();
}

// The I/O thread's round.

void RedisRouter::AddPolls(std::vector<pollfd>& polls) {
  polled_.clear();
  for (auto& [text, node] : nodes_) {
    const auto [descriptor, events] = node->waits_for();
    polls.push_back({.fd = descriptor, .events = events, .revents = 0});
    polled_.push_back(node.get());
  }
}

Time RedisRouter::wakes_at() const {
  Time at = asking_for_map_ == nullptr ? ask_at_ : Time::max();
  if (!alarms_.empty()) at = std::min(at, alarms_.begin()->first);
  if (!later_.empty()) at = std::min(at, later_.begin()->first);
  for (const auto& [text, node] : nodes_) at = std::min(at, node->wakes_at());
  return at;
}

void RedisRouter::Advance(std::span<const pollfd> polls, Time now) {
  // Nodes may come as replies are taken, but none goes before the end of the round.
  for (size_t i = 0; i < polls.size() && i < polled_.size(); ++i) {
    TakeProgress(*polled_[i], polled_[i]->Advance(polls[i].revents, now), now);
  }
  AnswerLate(now);
  while (!later_.empty() && later_.begin()->first <= now) {
    RedisCommand command = std::move(later_.begin()->second);
    later_.erase(later_.begin());
    Route(std::move(command), now);
  }
  AskForMap(now);
  polled_.clear();
  unused_.clear();
  Count();
}

void RedisRouter::Count() {
  uint64_t connected = 0, reconnects = reconnects_;
  for (const auto& [text, node] : nodes_) reconnects += node->reconnects();
  for (const RedisNode* const node : in_map_) connected += node->connected() ? 1 : 0;
  counters_.nodes = in_map_.empty() ? nodes_.size() : in_map_.size();
  counters_.connected = connected;
  counters_.reconnects = reconnects;
}

}  // namespace kvstow
