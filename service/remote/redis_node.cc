#include "service/remote/redis_node.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace kvstow {
namespace {

using std::chrono::milliseconds;

constexpr size_t kInFlight = 64;              // commands of one connection
constexpr size_t kUnsentBytes = 1 << 20;      // in a connection, before more are given to it
constexpr auto kSilence = milliseconds(100);  // that counts when a call passes its deadline
constexpr auto kStall = milliseconds(2000);   // of silence, whatever the deadlines are
constexpr auto kFirstBackoff = milliseconds(10);
constexpr auto kOpenBackoff = milliseconds(100);
constexpr auto kLongestBackoff = milliseconds(2000);

}  // namespace

uint64_t RedisCommand::value_bytes() const {
  uint64_t bytes = 0;
  for (const SharedBytes& part : parts) bytes += part.size();
  return bytes;
}

RedisBytes RedisCommand::Encode() const {
  const auto words = [](std::initializer_list<absl::string_view> list) {
    return RedisCommandOf({list.begin(), list.size()});
  };
  switch (verb) {
    case Verb::kGet:
      return words({"GET", name});
    case Verb::kSet:
      return RedisSetOf(name, parts, ttl);
    case Verb::kExists:
      return words({"EXISTS", name});
    case Verb::kUnlink:
      return words({"UNLINK", name});
    case Verb::kSlots:
      return words({"CLUSTER", "SLOTS"});
    case Verb::kAsking:
      break;
  }
  return words({"ASKING"});
}

RedisNode::RedisNode(RedisAddress address, RedisLogin login, RedisLimits limits,
                     std::function<void()> wake)
    : address_(std::move(address)),
      login_(std::move(login)),
      limits_(limits),
      wake_(std::move(wake)),
      random_(std::random_device{}()) {}

bool RedisNode::Take(RedisCommand& command, bool first) {
  const uint64_t bytes = command.value_bytes();
  const bool own = command.verb == RedisCommand::Verb::kSlots;
  if (!own && (waiting_.size() + sent_.size() >= command.call->MostOf(limits_.queue_commands) ||
               (bytes_ > 0 && bytes_ + bytes > limits_.queue_bytes))) {
    return false;
  }
  bytes_ += bytes;
  if (first) {
    waiting_.push_front(std::move(command));
  } else {
    waiting_.push_back(std::move(command));
  }
  return true;
}

bool RedisNode::can_send() const {
  return connected() && !waiting_.empty() && sent_.size() < kInFlight &&
         connection_->unsent_bytes() < kUnsentBytes;
}

std::pair<int, int16_t> RedisNode::waits_for() const {
  if (connection_ == nullptr) return {-1, 0};
  return {connection_->descriptor(), connection_->waits_for()};
}

Time RedisNode::quiet_since() const { return std::max(last_life_, sent_.front().sent_at); }

Time RedisNode::wakes_at() const {
  if (more_ || can_send() || silences_ >= kRedisFailures) return Time::min();
  if (connection_ == nullptr) {
    if (lookup_ != nullptr) return give_up_at_;
    return waiting_.empty() && takes_commands() ? Time::max() : try_at_;
  }
  if (!connection_->ready()) return give_up_at_;
  return sent_.empty() ? Time::max() : quiet_since() + kStall;
}

RedisNode::Progress RedisNode::Advance(int16_t events, Time now) {
  Progress progress;
  if (connection_ == nullptr) {
    const bool wanted = !waiting_.empty() || !takes_commands() || lookup_ != nullptr;
    if (!wanted || now < try_at_) return progress;
    Connect(now, progress);
  } else if (events != 0 || wakes_at() <= now) {
    Move(events, now, progress);
  }
  return progress;
}

void RedisNode::Connect(Time now, Progress& progress) {
  if (lookup_ == nullptr) {
    lookup_ = RedisLookup::Begin(address_, wake_);
    give_up_at_ = now + limits_.connect_timeout;
  }
  const auto answer = lookup_->answer();
  if (!answer.has_value()) {
    if (now < give_up_at_) return;
    give_up_at_ = now + limits_.connect_timeout;  // the lookup goes on
    Fail(absl::UnavailableError(
             absl::StrCat("redis ", address_.text(), ": its host does not resolve in time")),
         false, now, progress);
    return;
  }
  lookup_ = nullptr;
  if (!answer->ok()) return Fail(answer->status(), false, now, progress);
  const SocketAddresses& list = **answer;
  auto connection = RedisConnection::Begin(list[turn_++ % list.size()], login_);
  if (!connection.ok()) return Fail(connection.status(), false, now, progress);
  connection_ = *std::move(connection);
  moved_ = 0;
  last_life_ = now;
  give_up_at_ = now + limits_.connect_timeout;
}

void RedisNode::SendWaiting(Time now) {
  while (can_send()) {
    RedisCommand command = std::move(waiting_.front());
    waiting_.pop_front();
    if (command.call->over) {
      bytes_ -= command.value_bytes();
      continue;
    }
    command.sent_at = now;
    if (command.asking) {
      sent_.push_back({.verb = RedisCommand::Verb::kAsking, .sent_at = now});
      connection_->Send(sent_.back().Encode());
    }
    connection_->Send(command.Encode());
    sent_.push_back(std::move(command));
  }
}

void RedisNode::Move(int16_t events, Time now, Progress& progress) {
  const bool was_ready = connection_->ready();
  SendWaiting(now);
  std::vector<RedisReply> replies;
  const absl::StatusOr<bool> more = connection_->Advance(events, replies);
  if (!more.ok()) {
    // A login that is refused stays refused.
    const bool refused =
        absl::IsPermissionDenied(more.status()) || absl::IsUnauthenticated(more.status());
    return Fail(more.status(), refused, now, progress);
  }
  more_ = *more;
  if (connection_->moved_bytes() != moved_) {
    moved_ = connection_->moved_bytes();
    last_life_ = now;
    silences_ = 0;
  }
  if (!connection_->ready() && now >= give_up_at_) {
    return Fail(absl::UnavailableError(
                    absl::StrCat("redis ", address_.text(), ": it lets nobody in within ",
                                 limits_.connect_timeout / milliseconds(1), " ms")),
                false, now, progress);
  }
  if (!was_ready && connection_->ready()) {
    if (was_connected_) ++reconnects_;
    was_connected_ = true;
    failures_ = 0;
    if (told_) Log().info("remote store: redis {} is back", address_.text());
    told_ = false;
  }
  TakeReplies(std::move(replies), now, progress);
}

void RedisNode::TakeReplies(std::vector<RedisReply> replies, Time now, Progress& progress) {
  for (RedisReply& reply : replies) {
    if (sent_.empty()) {
      return Fail(absl::InvalidArgumentError(absl::StrCat(
                      "redis ", address_.text(), ": it answers what nobody asked: is it a Redis?")),
                  true, now, progress);
    }
    bytes_ -= sent_.front().value_bytes();
    progress.answers.push_back({std::move(sent_.front()), std::move(reply)});
    sent_.pop_front();
  }
  const bool stalled = !sent_.empty() && now >= quiet_since() + kStall;
  if (stalled || silences_ >= kRedisFailures) {
    Fail(absl::UnavailableError(absl::StrCat("redis ", address_.text(), ": it is silent")), true,
         now, progress);
  }
}

void RedisNode::DropLate(Time now) {
  std::erase_if(waiting_, [&](const RedisCommand& command) {
    if (!command.call->over) return false;
    bytes_ -= command.value_bytes();
    return true;
  });
  if (sent_.empty() || sent_.front().call == nullptr || !sent_.front().call->over) return;
  if (now < quiet_since() + kSilence || now < last_strike_ + kSilence) return;
  last_strike_ = now;
  ++silences_;
}

void RedisNode::Fail(const absl::Status& why, bool open, Time now, Progress& progress) {
  connection_ = nullptr;
  more_ = false;
  silences_ = 0;
  last_failure_ = why;
  progress.failed = true;
  ++failures_;
  if (open) failures_ = std::max(failures_, kRedisFailures);
  for (RedisCommand& command : sent_) {
    bytes_ -= command.value_bytes();
    if (command.verb != RedisCommand::Verb::kAsking) progress.lost.push_back(std::move(command));
  }
  sent_.clear();
  try_at_ = now + Backoff();
  if (takes_commands()) return;
  std::move(waiting_.begin(), waiting_.end(), std::back_inserter(progress.lost));
  waiting_.clear();
  bytes_ = 0;
  if (!told_)
    Log().warn("remote store: redis {} is out: {}", address_.text(), std::string(why.message()));
  told_ = true;
}

Duration RedisNode::Backoff() {
  const int past = failures_ - kRedisFailures;
  const Duration wait =
      past < 0
          ? Duration(kFirstBackoff) * failures_
          : std::min<Duration>(Duration(kOpenBackoff) * (1 << std::min(past, 10)), kLongestBackoff);
  // A quarter more or less, so that servers do not come all at once.
  return wait * (75 + static_cast<int>(random_() % 51)) / 100;
}

}  // namespace kvstow
