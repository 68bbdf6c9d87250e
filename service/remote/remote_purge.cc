#include "service/remote/remote_purge.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/random/random.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "service/remote/remote_answers.h"
#include "service/remote/remote_frame.h"

namespace kvstow {
namespace {

constexpr Duration kWait = std::chrono::seconds(1);  // of a round

uint64_t RandomId() {
  thread_local absl::BitGen random;
  return absl::Uniform<uint64_t>(random);
}

}  // namespace

std::vector<SharedBytes> PurgeValue(const RemotePlace& space, const PurgeRecord& record) {
  ByteWriter out;
  out.Put(record.generation);
  out.Put(static_cast<uint32_t>(record.deleted.size()));
  for (const auto& [id, key] : record.deleted) {
    out.Put(id);
    out.PutString16(key);
  }
  return FramedValue(space, RemoteKind::kPurge, 0,
                     Digested(SharedBytes::Take(std::move(out).Take())));
}

absl::StatusOr<PurgeRecord> ParsePurgeValue(const RemotePlace& space, const SharedBytes& value) {
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

RemotePurge::RemotePurge(std::string prefix, RemoteStore& remote, RemoteKeys& keys,
                         Listener listener, RemoteCounters& counters)
    : prefix_(std::move(prefix)),
      remote_(remote),
      keys_(keys),
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

void RemotePurge::Find(const SpacePtr& space, RemoteKeys::Use use, Time deadline, Found done) {
  const RemoteTag tag = SpaceTagOf(*space);
  std::optional<RemoteEra> known;
  {
    MutexLock lock(mu_);
    State& state = states_[tag];
    state.space = space;
    state.tenant = space->tenant;
    known = EraOf(state);
    if (!known.has_value()) ++asking_;
  }
  if (known.has_value()) return done(*std::move(known));
  keys_.Find(space->tenant, use, deadline,
             [this, tag, deadline, done = std::move(done)](absl::StatusOr<RemoteKeyPtr> key) {
               if (key.ok()) return Ask(tag, *std::move(key), deadline, done);
               done(key.status());
               EndAsking();
             });
}

// Reads the space's record.
void RemotePurge::Ask(const RemoteTag& tag, RemoteKeyPtr key, Time deadline, Found done) {
  const RemotePlace place = PlaceAt(tag, std::move(key));
  remote_.Get({PurgeName(prefix_, place.tag)}, deadline,
              [this, tag, place,
               done = std::move(done)](const std::vector<absl::StatusOr<SharedBytes>>& values) {
                std::vector<RemoteValue> unwritten;  // the thread writes it
                Merge(tag, place, values[0], unwritten);
                absl::StatusOr<RemoteEra> era =
                    absl::UnavailableError("the remote store does not answer");
                {
                  MutexLock lock(mu_);
                  const auto it = states_.find(tag);
                  if (it != states_.end() && it->second.known && it->second.key == place.key) {
                    era = RemoteEra{it->second.record.generation, place.key};
                  }
                }
                done(std::move(era));
                EndAsking();
              });
}

void RemotePurge::EndAsking() {
  MutexLock lock(mu_);
  --asking_;
  changed_.NotifyAll();
}

std::optional<RemoteEra> RemotePurge::EraOf(const State& state) {
  if (!state.known || keys_.Known(state.tenant) != state.key) return std::nullopt;
  return RemoteEra{state.record.generation, state.key};
}

std::optional<RemoteEra> RemotePurge::Known(const Space& space) {
  MutexLock lock(mu_);
  const auto it = states_.find(SpaceTagOf(space));
  return it == states_.end() ? std::nullopt : EraOf(it->second);
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
  state.tenant = space.tenant;
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

void RemotePurge::Drop(const Space& space, bool ends) {
  MutexLock lock(mu_);
  State& state = states_[SpaceTagOf(space)];
  state.tenant = space.tenant;
  state.space = nullptr;
  state.drop = true;
  state.ends = ends;
  state.known = false;  // until the generation has risen, nothing of it is used
  state.dirty = wake_ = true;
  changed_.NotifyAll();
}

void RemotePurge::ForgetTenant(const std::string& tenant) {
  MutexLock lock(mu_);
  absl::erase_if(states_, [&](const auto& one) { return one.second.tenant == tenant; });
}

void RemotePurge::Flush() {
  MutexLock lock(mu_);
  wake_ = true;
  changed_.NotifyAll();
  // The round that runs now may have looked before, and the next may find that a key turns.
  const uint64_t until = rounds_ + (keys_.seals() ? 3 : 2);
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
    const std::vector<std::string> turning = keys_.Look();
    MakeKeys();
    Poll(turning);
    for (const std::string& tenant : turning) Turn(tenant);
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
void RemotePurge::Merge(const RemoteTag& tag, const RemotePlace& place,
                        const absl::StatusOr<SharedBytes>& value, std::vector<RemoteValue>& out) {
  if (!value.ok() && !absl::IsNotFound(value.status())) return;
  PurgeRecord there;
  if (value.ok()) {
    absl::StatusOr<PurgeRecord> parsed = ParsePurgeValue(place, *value);
    if (!parsed.ok()) ++counters_.damaged_values;  // it is written anew
    there = std::move(parsed).value_or(PurgeRecord());
  }
  std::vector<std::string> deleted;
  MutexLock lock(mu_);
  const auto it = states_.find(tag);
  if (it == states_.end()) return;  // it was just forgotten
  State& state = it->second;
  if (keys_.Known(state.tenant) != place.key) return;  // the key has just turned
  if (state.key != place.key) {
    state.key = place.key;
    state.record.generation = 0;
  }
  const bool older = Adopt(there, state, deleted);
  state.known = true;
  state.dirty = state.drop = false;
  const bool lacks = std::ranges::any_of(
      state.record.deleted, [&](const auto& one) { return !there.deleted.contains(one.first); });
  if (there.generation < state.record.generation || lacks) {
    out.push_back({PurgeName(prefix_, place.tag), PurgeValue(place, state.record)});
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

// Forgets a key that is no more the tenant's.
void RemotePurge::Turn(const std::string& tenant) {
  keys_.Turn(tenant);
  MutexLock lock(mu_);
  for (auto& [tag, state] : states_) {
    if (state.tenant != tenant || keys_.Known(tenant) == state.key) continue;
    state.key = nullptr;
    state.known = false;
  }
}

// Makes the keys that it takes to tell what was deleted here.
void RemotePurge::MakeKeys() {
  std::set<std::string> tenants;
  {
    MutexLock lock(mu_);
    for (const auto& [tag, state] : states_) {
      if (state.dirty && !keys_.Known(state.tenant).has_value()) tenants.insert(state.tenant);
    }
  }
  for (const std::string& tenant : tenants) {
    KeyOf(keys_, tenant, RemoteKeys::Use::kWrite, Clock::Real().Now() + kWait).IgnoreError();
  }
}

std::vector<RemotePurge::Asked> RemotePurge::ToAsk(const std::vector<std::string>& turning) {
  std::vector<Asked> out;
  MutexLock lock(mu_);
  for (const auto& [tag, state] : states_) {
    const std::optional<RemoteKeyPtr> key = keys_.Known(state.tenant);
    if (!key.has_value()) continue;
    const bool turns = std::ranges::find(turning, state.tenant) != turning.end();
    // The server tells of these drops and deletes under the next key.
    if (turns && (state.drop || state.key != *key)) continue;
    out.push_back({tag, PlaceAt(tag, *key), turns, state.ends});
  }
  return out;
}

// Reads the records of all spaces. Those of tenants whose key turns are read for the last time.
void RemotePurge::Poll(const std::vector<std::string>& turning) {
  const std::vector<Asked> asked = ToAsk(turning);
  if (asked.empty()) return;
  std::vector<std::string> names;
  for (const Asked& one : asked) names.push_back(PurgeName(prefix_, one.place.tag));
  RemoteAnswers<absl::StatusOr<SharedBytes>> read;
  remote_.Get(std::move(names), Clock::Real().Now() + kWait, read.Take());
  const auto values = read.Wait();
  std::vector<RemoteValue> lacking, last;
  for (size_t i = 0; i < asked.size(); ++i) {
    const auto& [tag, place, turns, ends] = asked[i];
    if (!turns) {
      Merge(tag, place, values[i], ends ? last : lacking);
      continue;
    }
    std::vector<RemoteValue> unwritten;
    Merge(tag, place, values[i], unwritten);
    if (values[i].ok()) last.push_back({PurgeName(prefix_, place.tag), {*values[i]}});
    MutexLock lock(mu_);
    const auto it = states_.find(tag);
    if (!unwritten.empty() && it != states_.end()) it->second.dirty = true;
  }
  {
    MutexLock lock(mu_);
    wake_ = false;  // it is done in this round
  }
  Write(std::move(lacking), Duration(0));
  Write(std::move(last), kKept);
}

void RemotePurge::Write(std::vector<RemoteValue> values, Duration ttl) {
  if (values.empty()) return;
  RemoteAnswers<absl::Status> written;
  remote_.Put(std::move(values), ttl, Clock::Real().Now() + kWait, written.Take());
  for (const absl::Status& one : written.Wait()) {
    if (!one.ok()) ++counters_.unwritten_purges;
  }
}

absl::StatusOr<RemoteEra> EraOf(RemotePurge& purge, const std::shared_ptr<const Space>& space,
                                RemoteKeys::Use use, Time deadline) {
  RemoteAnswers<absl::StatusOr<RemoteEra>> answer;
  purge.Find(space, use, deadline,
             [done = answer.Take()](absl::StatusOr<RemoteEra> era) { done({std::move(era)}); });
  return std::move(answer.Wait()[0]);
}

}  // namespace kvstow
