#include "service/remote/redis_cluster.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "service/remote/redis_config.h"
#include "service/remote/redis_router.h"

namespace kvstow {
namespace {

using Verb = RedisCommand::Verb;
using Results = RedisCall::Results;

// An eventfd. Lookups that outlive the store may still ring it.
class Bell {
 public:
  Bell() : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~Bell() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  int descriptor() const { return descriptor_; }
  void Ring() const {
    const uint64_t one = 1;
    (void)!write(descriptor_, &one, sizeof(one));
  }
  void Silence() const {
    uint64_t count = 0;
    (void)!read(descriptor_, &count, sizeof(count));
  }

 private:
  const int descriptor_;
};

absl::Status Closed() { return absl::CancelledError("the remote store is closed"); }

class RedisCluster final : public RemoteStore {
 public:
  explicit RedisCluster(RedisConfig config)
      : name_(NameOf(config)),
        limits_(config.limits),
        router_(std::move(config), counters_, [bell = bell_] { bell->Ring(); }) {}
  ~RedisCluster() override;
  absl::Status Start();

  std::string name() const override { return name_; }
  bool holds_values() const override { return true; }
  void Get(std::vector<std::string> names, Time deadline, GetDone done) override {
    Submit(CommandsOf(Verb::kGet, std::move(names)), deadline, std::move(done));
  }
  void Put(std::vector<RemoteValue> values, Duration ttl, Time deadline, Done done) override;
  void Exists(std::vector<std::string> names, Time deadline, Done done) override {
    Submit(CommandsOf(Verb::kExists, std::move(names)), deadline, WithoutValues(std::move(done)));
  }
  void Erase(std::vector<std::string> names, Time deadline, Done done) override {
    Submit(CommandsOf(Verb::kUnlink, std::move(names)), deadline, WithoutValues(std::move(done)));
  }
  Counters counters() const override;

 private:
  struct Incoming {
    std::shared_ptr<RedisCall> call;
    std::vector<RedisCommand> commands;
  };

  static std::string NameOf(const RedisConfig& config);
  static std::vector<RedisCommand> CommandsOf(Verb verb, std::vector<std::string> names);
  static GetDone WithoutValues(Done done);
  void Submit(std::vector<RedisCommand> commands, Time deadline, GetDone done);
  // Why the commands cannot come in: OK = they can.
  absl::Status TakeIn(Incoming& incoming, uint64_t bytes) KVSTOW_EXCLUDES(mu_);
  void Run();
  bool TakeIncoming(Time now);

  const std::string name_;
  const RedisLimits limits_;
  RedisCounters counters_;
  const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  Mutex mu_;
  std::vector<Incoming> incoming_ KVSTOW_GUARDED_BY(mu_);
  size_t incoming_commands_ KVSTOW_GUARDED_BY(mu_) = 0;
  uint64_t incoming_bytes_ KVSTOW_GUARDED_BY(mu_) = 0;
  bool stop_ KVSTOW_GUARDED_BY(mu_) = false;
  RedisRouter router_;  // of the thread
  std::thread thread_;
};

absl::Status RedisCluster::Start() {
  if (bell_->descriptor() < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("no eventfd: ", std::strerror(errno)));
  }
  KVSTOW_ASSIGN_OR_RETURN(thread_, StartThread("redis", [this] { Run(); }));
  return absl::OkStatus();
}

RedisCluster::~RedisCluster() {
  {
    MutexLock lock(mu_);
    stop_ = true;
  }
  bell_->Ring();
  if (thread_.joinable()) thread_.join();
}

std::string RedisCluster::NameOf(const RedisConfig& config) {
  std::string name = config.tls ? "redis (TLS)" : "redis";
  for (size_t i = 0; i < config.seeds.size(); ++i) {
    absl::StrAppend(&name, i == 0 ? " " : ", ", config.seeds[i].text());
  }
  return name;
}

std::vector<RedisCommand> RedisCluster::CommandsOf(Verb verb, std::vector<std::string> names) {
  std::vector<RedisCommand> commands(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    commands[i].verb = verb;
    commands[i].name = std::move(names[i]);
  }
  return commands;
}

RemoteStore::GetDone RedisCluster::WithoutValues(Done done) {
  return [done = std::move(done)](const Results& results) {
    std::vector<absl::Status> out;
    out.reserve(results.size());
    for (const auto& result : results) out.push_back(result.status());
    done(std::move(out));
  };
}

void RedisCluster::Put(std::vector<RemoteValue> values, Duration ttl, Time deadline, Done done) {
  std::vector<RedisCommand> commands(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    commands[i].verb = Verb::kSet;
    commands[i].name = std::move(values[i].name);
    commands[i].parts = std::move(values[i].parts);
    commands[i].ttl = ttl;
  }
  Submit(std::move(commands), deadline, WithoutValues(std::move(done)));
}

void RedisCluster::Submit(std::vector<RedisCommand> commands, Time deadline, GetDone done) {
  Incoming incoming{.call = std::make_shared<RedisCall>()};
  RedisCall& call = *incoming.call;
  call.deadline = deadline;
  call.results.resize(commands.size(), SharedBytes());
  uint64_t bytes = 0;
  for (size_t i = 0; i < commands.size(); ++i) {
    RedisCommand& command = commands[i];
    if (command.name.size() > kMaxRedisNameBytes || command.value_bytes() > kMaxRedisValueBytes) {
      call.results[i] = absl::InvalidArgumentError(
          absl::StrCat("redis takes no name of ", command.name.size(), " bytes with a value of ",
                       command.value_bytes(), " bytes: at most ", kMaxRedisNameBytes, " and ",
                       kMaxRedisValueBytes));
      continue;
    }
    bytes += command.value_bytes();
    command.call = incoming.call;
    command.index = i;
    command.slot = RedisSlotOf(command.name);
    incoming.commands.push_back(std::move(command));
  }
  call.left = incoming.commands.size();
  if (call.left == 0) return done(std::move(call.results));
  call.done = std::move(done);
  const absl::Status refused = TakeIn(incoming, bytes);
  if (refused.ok()) return;
  for (const RedisCommand& command : incoming.commands) call.results[command.index] = refused;
  call.done(std::move(call.results));
}

absl::Status RedisCluster::TakeIn(Incoming& incoming, uint64_t bytes) {
  {
    MutexLock lock(mu_);
    if (stop_) return Closed();
    const size_t commands = incoming.commands.size();
    const size_t most = incoming.call->MostOf(limits_.queue_commands);
    if (incoming_commands_ > 0 &&
        (incoming_commands_ + commands > most || incoming_bytes_ + bytes > limits_.queue_bytes)) {
      counters_.refused += commands;
      return absl::ResourceExhaustedError(absl::StrCat(name_, ": too many calls wait"));
    }
    incoming_commands_ += commands;
    incoming_bytes_ += bytes;
    incoming_.push_back(std::move(incoming));
  }
  bell_->Ring();
  return absl::OkStatus();
}

RemoteStore::Counters RedisCluster::counters() const {
  return {.commands = counters_.commands,
          .failed = counters_.failed,
          .bytes_out = counters_.bytes_out,
          .bytes_in = counters_.bytes_in,
          .redirects = counters_.redirects,
          .reconnects = counters_.reconnects,
          .refused = counters_.refused,
          .nodes = counters_.nodes,
          .connected = counters_.connected};
}

// Returns false when the store closes.
bool RedisCluster::TakeIncoming(Time now) {
  std::vector<Incoming> incoming;
  bool stop = false;
  {
    MutexLock lock(mu_);
    incoming.swap(incoming_);
    incoming_commands_ = incoming_bytes_ = 0;
    stop = stop_;
  }
  for (Incoming& in : incoming) {
    router_.Begin(std::move(in.call), std::move(in.commands), now);
  }
  return !stop;
}

void RedisCluster::Run() {
  std::vector<pollfd> polls;
  while (TakeIncoming(Clock::Real().Now())) {
    polls.assign(1, {.fd = bell_->descriptor(), .events = POLLIN, .revents = 0});
    router_.AddPolls(polls);
    const Time now = Clock::Real().Now(), wake = router_.wakes_at();
    timespec wait{};
    if (wake > now) {
      const Duration left = std::min<Duration>(wake - now, std::chrono::seconds(60));
      wait.tv_sec = left / std::chrono::seconds(1);
      wait.tv_nsec = (left % std::chrono::seconds(1)).count();
    }
    ppoll(polls.data(), polls.size(), &wait, nullptr);
    if (polls[0].revents != 0) bell_->Silence();
    router_.Advance(std::span(polls).subspan(1), Clock::Real().Now());
  }
  router_.CancelAll();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RemoteStore>> OpenRedis(const RedisOptions& options) {
  KVSTOW_ASSIGN_OR_RETURN(RedisConfig config, ReadRedisOptions(options));
  auto store = std::make_unique<RedisCluster>(std::move(config));
  KVSTOW_RETURN_IF_ERROR(store->Start());
  return store;
}

}  // namespace kvstow
