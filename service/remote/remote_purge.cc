#include "service/remote/remote_purge.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "service/remote/remote_answers.h"

namespace kvstow {
namespace {

constexpr Duration kWait = std::chrono::seconds(1);  // of a round

uint64_t RandomId() {
  thread_local absl::BitGen random;
  return absl::Uniform<uint64_t>(random);
}

}  // namespace

std::vector<SharedBytes> PurgeValue(const RemoteTag& space, const PurgeRecord& record) {
  ByteWriter out;
  out.Put(record.generation);
  out.Put(static_cast<uint32_t>(record.deleted.size()));
  for (const auto& [id, key] : record.deleted) {
    out.Put(id);
    out.PutString16(key);
  }
  return FramedValue(space, RemoteKind::kPurge, 0, SharedBytes::Take(std::move(out).Take()));
}

absl::StatusOr<PurgeRecord> ParsePurgeValue(const RemoteTag& space, const SharedBytes& value) {
  KVSTOW_ASSIGN_OR_RETURN(const FramedBody framed, OpenFramed(space, RemoteKind::kPurge, 0, value));
  ByteReader in(framed.body.span());
  PurgeRecord record;
  record.generation = in.Get<uint64_t>();
  const auto count = in.Get<uint32_t>();
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    const auto id = in.Get<uint64_t>();
    record.deleted[id] = std::string(in.GetString16());
  }
  if (!in.ok() || in.remaining() != 0 || record.deleted.size() != count) {
    return absl::DataLossError("a purge record whose lengths contradict each other");
  }
  return record;
}

RemotePurge::RemotePurge(std::string prefix, RemoteStore& remote, Listener listener,
                         RemoteCounters& counters)
    : prefix_(std::move(prefix)),
      remote_(remote),
      listener_(std::move(listener)),
      counters_(counters) {
  if (remote_.holds_values()) thread_ = std::thread([this] { Loop(); });
}

RemotePurge::~RemotePurge() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    changed_.NotifyAll();
    while (asking_ > 0) changed_.Wait(mu_);
  }
  if (thread_.joinable()) thread_.join();
}

void RemotePurge::Generation(const SpacePtr& space, Time deadline,
                             std::function<void(std::optional<uint64_t>)> done) {
  const RemoteTag tag = SpaceTagOf(*space);
  std::optional<uint64_t> known;
  {
    MutexLock lock(mu_);
    State& state = states_[tag];
    state.space = space;
    if (state.known) known = state.record.generation;
    if (!known.has_value()) ++asking_;
  }
  if (known.has_value()) return done(known);
  remote_.Get(
      {PurgeName(prefix_, tag)}, deadline,
      [this, tag, done = std::move(done)](const std::vector<absl::StatusOr<SharedBytes>>& values) {
        std::vector<RemoteValue> unwritten;  // the thread writes it
        Merge(tag, values[0], unwritten);
        std::optional<uint64_t> generation;
        {
          MutexLock lock(mu_);
          const State& state = states_[tag];
          if (state.known) generation = state.record.generation;
        }
        done(generation);
        MutexLock lock(mu_);
        --asking_;
        changed_.NotifyAll();
      });
}

std::optional<uint64_t> RemotePurge::Known(const Space& space) {
  MutexLock lock(mu_);
  const auto it = states_.find(SpaceTagOf(space));
  if (it == states_.end() || !it->second.known) return std::nullopt;
  return it->second.record.generation;
}

size_t RemotePurge::CountLive(const Space& space, std::span<const std::string> keys) {
  MutexLock lock(mu_);
  const auto it = states_.find(SpaceTagOf(space));
  if (it == states_.end()) return keys.size();
  const auto dead = std::ranges::find_if(
      keys, [&](const std::string& key) { return it->second.deleted.contains(key); });
  return static_cast<size_t>(dead - keys.begin());
}

void RemotePurge::Erase(std::vector<std::string> names) {
  MutexLock lock(mu_);
  for (std::string& name : names) unerased_.push_back(std::move(name));
  if (unerased_.size() > kMostUnerased) {
    unerased_.erase(unerased_.begin(), unerased_.end() - kMostUnerased);
  }
  wake_ = true;
  changed_.NotifyAll();
}

void RemotePurge::EraseAll() {
  std::vector<std::string> names;
  {
    MutexLock lock(mu_);
    names.swap(unerased_);
  }
  if (names.empty()) return;
  RemoteAnswers<absl::Status> erased;
  remote_.Erase(names, Clock::Real().Now() + kWait, erased.Take());
  const std::vector<absl::Status> results = erased.Wait();
  MutexLock lock(mu_);
  for (size_t i = 0; i < names.size(); ++i) {
    if (!results[i].ok()) unerased_.push_back(std::move(names[i]));
  }
}

void RemotePurge::Delete(const Space& space, const std::string& key) {
  const uint64_t id = RandomId();
  MutexLock lock(mu_);
  State& state = states_[SpaceTagOf(space)];
  if (state.record.deleted.size() >= kMostDeleted) {
    state.drop = true;
    state.known = false;
  } else {
    state.record.deleted[id] = key;
    state.seen[id] = Clock::Real().Now();
    state.deleted.insert(key);
  }
  state.dirty = wake_ = true;
  changed_.NotifyAll();
}

void RemotePurge::Drop(const Space& space) {
  MutexLock lock(mu_);
  State& state = states_[SpaceTagOf(space)];
  state.space = nullptr;
  state.drop = true;
  state.known = false;  // until the generation has risen, nothing of it is used
  state.dirty = wake_ = true;
  changed_.NotifyAll();
}

void RemotePurge::Flush() {
  MutexLock lock(mu_);
  wake_ = true;
  changed_.NotifyAll();
  // The round that runs now may have looked before.
  const uint64_t until = rounds_ + 2;
  while (thread_.joinable() && !stop_ && rounds_ < until) {
    changed_.WaitFor(mu_, std::chrono::milliseconds(10));
    wake_ = true;
    changed_.NotifyAll();
  }
}

void RemotePurge::Loop() {
  for (;;) {
    {
      MutexLock lock(mu_);
      const Time until = Clock::Real().Now() + kPoll;
      for (Time now; !stop_ && !wake_ && (now = Clock::Real().Now()) < until;) {
        changed_.WaitFor(mu_, until - now);
      }
      if (stop_) return;
      wake_ = false;
    }
    Poll();
    RunActions();
    EraseAll();
    MutexLock lock(mu_);
    ++rounds_;
    changed_.NotifyAll();
  }
}

// Takes over what is new in the remote store. Returns whether the pages that are here are those of
// an older generation; adds the keys of new deletions.
bool RemotePurge::Adopt(const PurgeRecord& there, State& state, std::vector<std::string>& deleted) {
  const Time now = Clock::Real().Now();
  const bool older = there.generation > state.record.generation;
  if (older) {
    if (state.known) state.record.deleted.clear();
    state.record.generation = there.generation;
  }
  if (state.drop) state.record = {.generation = state.record.generation + 1};
  if (there.generation == state.record.generation) {
    for (const auto& [id, key] : there.deleted) {
      if (!state.seen.try_emplace(id, now).second) continue;
      state.record.deleted[id] = key;
      deleted.push_back(key);
    }
  }
  // Every server has met these by now.
  std::erase_if(state.record.deleted, [&](const auto& one) {
    const auto seen = state.seen.find(one.first);
    return seen == state.seen.end() || seen->second < now - kKept;
  });
  absl::erase_if(state.seen, [&](const auto& one) { return one.second < now - 2 * kKept; });
  state.deleted.clear();
  for (const auto& [id, key] : state.record.deleted) state.deleted.insert(key);
  return older && !state.drop;
}

// Adds to `out` what the remote store lacks, and to actions_ what its record asks for.
void RemotePurge::Merge(const RemoteTag& tag, const absl::StatusOr<SharedBytes>& value,
                        std::vector<RemoteValue>& out) {
  if (!value.ok() && !absl::IsNotFound(value.status())) return;
  PurgeRecord there;
  if (value.ok()) {
    absl::StatusOr<PurgeRecord> parsed = ParsePurgeValue(tag, *value);
    if (!parsed.ok()) ++counters_.damaged_values;  // it is written anew
    there = std::move(parsed).value_or(PurgeRecord());
  }
  std::vector<std::string> deleted;
  MutexLock lock(mu_);
  State& state = states_[tag];
  const bool older = Adopt(there, state, deleted);
  state.known = true;
  state.dirty = state.drop = false;
  const bool lacks = std::ranges::any_of(
      state.record.deleted, [&](const auto& one) { return !there.deleted.contains(one.first); });
  if (there.generation < state.record.generation || lacks) {
    out.push_back({PurgeName(prefix_, tag), PurgeValue(tag, state.record)});
  } else if (state.space == nullptr) {
    states_.erase(tag);  // all is told, and nobody uses the space here
    return;
  }
  if (const SpacePtr space = state.space; space != nullptr) {
    if (older) actions_.push_back([this, space] { listener_.dropped(space); });
    for (std::string& key : deleted) {
      actions_.push_back([this, space, key = std::move(key)] { listener_.deleted(space, key); });
    }
  }
  if (!actions_.empty() || !out.empty()) wake_ = true;
}

void RemotePurge::RunActions() {
  std::vector<std::function<void()>> actions;
  {
    MutexLock lock(mu_);
    actions.swap(actions_);
  }
  for (const auto& action : actions) action();
}

void RemotePurge::Poll() {
  std::vector<RemoteTag> tags;
  std::vector<std::string> names;
  {
    MutexLock lock(mu_);
    for (const auto& [tag, state] : states_) {
      if (!state.known && !state.dirty) continue;
      tags.push_back(tag);
      names.push_back(PurgeName(prefix_, tag));
    }
  }
  if (tags.empty()) return;
  RemoteAnswers<absl::StatusOr<SharedBytes>> read;
  remote_.Get(std::move(names), Clock::Real().Now() + kWait, read.Take());
  const auto values = read.Wait();
  std::vector<RemoteValue> out;
  for (size_t i = 0; i < tags.size(); ++i) Merge(tags[i], values[i], out);
  {
    MutexLock lock(mu_);
    wake_ = false;  // it is done in this round
  }
  if (out.empty()) return;
  RemoteAnswers<absl::Status> written;
  remote_.Put(std::move(out), Duration(0), Clock::Real().Now() + kWait, written.Take());
  for (const absl::Status& one : written.Wait()) {
    if (!one.ok()) ++counters_.unwritten_purges;
  }
}

std::optional<uint64_t> GenerationOf(RemotePurge& purge, const std::shared_ptr<const Space>& space,
                                     Time deadline) {
  RemoteAnswers<std::optional<uint64_t>> answer;
  purge.Generation(space, deadline, [done = answer.Take()](std::optional<uint64_t> generation) {
    done({generation});
  });
  return answer.Wait()[0];
}

}  // namespace kvstow
