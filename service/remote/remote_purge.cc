#include "service/remote/remote_purge.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <set>
#include <utility>

#include "absl/random/random.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "service/remote/remote_answers.h"
#include "service/remote/remote_frame.h"

namespace kvstow {
namespace {

constexpr Duration kWait = std::chrono::seconds(1);  // of a round
constexpr size_t kErasedAtOnce = 1024;               // names

uint64_t RandomId() {
  thread_local absl::BitGen random;
  return absl::Uniform<uint64_t>(random);
}

// A round comes every kPoll, for every space: one warning a minute is enough for all.
void WarnOfUnread(const std::string& name, const absl::Status& why, Time now) {
  static std::atomic<Time> last = Time::min();
  Time before = last;
  // A clock that is before the last one is another clock, of a test.
  if (before <= now && now < before + std::chrono::minutes(1)) return;
  if (!last.compare_exchange_strong(before, now)) return;
  Log().warn(
      "remote: the purge record {} is not read here: {}. Pages of its space there are misses, and "
      "deletes are not told. Upgrade this server; or delete the value, if no newer kvstow "
      "writes there",
      name, std::string(why.message()));
}

uint64_t IdOf(const RemoteKeyPtr& key) { return key == nullptr ? 0 : key->id(); }

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
    const absl::string_view key = in.GetString16();
    if (key.empty() || key.size() > kMaxKeyBytes) {
      return absl::DataLossError("a purge record with a key of no page");
    }
    record.deleted[id] = std::string(key);
  }
  if (!in.ok() || in.remaining() != 0 || record.deleted.size() != count) {
    return absl::DataLossError("a purge record whose lengths contradict each other");
  }
  return record;
}

RemotePurge::RemotePurge(std::string prefix, RemoteStore& remote, RemoteKeys& keys,
                         Listener listener, RemoteCounters& counters, const Clock& clock)
    : prefix_(std::move(prefix)),
      remote_(remote),
      keys_(keys),
      listener_(std::move(listener)),
      counters_(counters),
      clock_(clock) {
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

bool RemotePurge::stopping() {
  MutexLock lock(mu_);
  return stop_;
}

void RemotePurge::Watch(const SpacePtr& space, const SavedEra& saved) {
  MutexLock lock(mu_);
  State& state = states_[SpaceTagOf(*space)];
  state.space = space;
  state.tenant = space->tenant;
  if (state.saved_of == space->id) return;  // it knows better
  state.saved_of = space->id;
  state.saved = saved;
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
                    era = RemoteEra{it->second.generation, place.key};
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
  return RemoteEra{state.generation, state.key};
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
  while (unerased_.size() > kMostUnerased) unerased_.pop_front();
  wake_ = true;
  changed_.NotifyAll();
}

void RemotePurge::Unerase(const std::string& name) {
  MutexLock lock(mu_);
  std::erase(unerased_, name);
  erasing_.erase(name);
}

// Few at a time: others use the remote store meanwhile.
void RemotePurge::EraseAll() {
  for (bool all_erased = true; all_erased;) {
    std::vector<std::string> names;
    {
      MutexLock lock(mu_);
      const auto end = unerased_.begin() + std::min(unerased_.size(), kErasedAtOnce);
      std::move(unerased_.begin(), end, std::back_inserter(names));
      unerased_.erase(unerased_.begin(), end);
      if (names.empty() || stop_) return;
      erasing_ = {names.begin(), names.end()};
    }
    RemoteAnswers<absl::Status> erased;
    remote_.Erase(names, Clock::Real().Now() + kWait, erased.Take());
    const std::vector<absl::Status> results = erased.Wait();
    MutexLock lock(mu_);
    for (size_t i = 0; i < names.size(); ++i) {
      if (results[i].ok() || !erasing_.contains(names[i])) continue;
      all_erased = false;
      unerased_.push_back(std::move(names[i]));
    }
  }
}

void RemotePurge::Delete(const Space& space, const std::string& key) {
  MutexLock lock(mu_);
  State& state = states_[SpaceTagOf(space)];
  state.tenant = space.tenant;
  if (state.waiting.size() >= kMostWaiting) {
    state.drop = true;
    state.known = false;
  } else {
    state.waiting.push_back(key);
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
  while (thread_.joinable() && !stop_ && (rounds_ < until || acting_ > 0)) {
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
    EraseAll();
    MutexLock lock(mu_);
    ++rounds_;
    changed_.NotifyAll();
  }
}

// Returns what takes the place of a record that cannot be read; fails when it is as if nobody had
// answered. `knows`: the generation.
absl::StatusOr<PurgeRecord> RemotePurge::InPlaceOf(const absl::Status& unread,
                                                   const SharedBytes& value, bool knows,
                                                   State& state) {
  const Time now = clock_.Now();
  if (!absl::IsDataLoss(unread)) {
    state.known = false;
    return unread;
  }
  if (!state.damaged.has_value()) {
    ++counters_.damaged_values;
    state.damaged = now;
  }
  if (knows) return PurgeRecord();
  if (now < *state.damaged + kKept) return unread;
  return PurgeRecord{.generation = (uint64_t{1} << 63) | (Xxh3(value.span()) >> 1)};
}

// Takes over what is new in the remote store.
void RemotePurge::Adopt(const PurgeRecord& there, State& state, Met& met) {
  const Time now = clock_.Now();
  const bool older = there.generation > state.generation;
  state.generation = std::max(state.generation, there.generation);
  if (state.drop) ++state.generation;
  if (state.drop || (older && state.known)) {
    // The pages are gone with their generation.
    for (auto& [id, deletion] : state.deletions) {
      deletion.until = std::min(deletion.until, now);
      deletion.lately = false;
    }
    state.waiting.clear();
    state.deleted.clear();
  }
  if (there.generation == state.generation) {
    for (const auto& [id, key] : there.deleted) {
      auto [it, is_new] = state.deletions.try_emplace(id, Deletion{.key = key});
      Deletion& deletion = it->second;
      if (deletion.until == Time::max()) deletion.until = now + kKept;
      if (!is_new) continue;
      state.deleted.insert(key);
      met.deleted.push_back(key);
    }
  }
  met.dropped = older && !state.drop;
  met.pages = state.met ? Pages::kAll : Pages::kFromDisk;
}

// Has the era saved where the space's record on disk has another.
void RemotePurge::NoteEra(State& state, Met& met) {
  if (state.space == nullptr) return;
  const SavedEra era =
      state.generation == 0 ? SavedEra{} : SavedEra{IdOf(state.key), state.generation};
  if (std::exchange(state.saved_of, state.space->id) != state.space->id) state.saved = {};
  if (std::exchange(state.saved, era) != era) met.era = era;
}

// Forgets the deletions that every server has met by now. What the remote store still has, or may
// get from a late writer, is kept in mind, so that it is no new one.
void RemotePurge::ForgetOld(const PurgeRecord& there, State& state) {
  const Time now = clock_.Now();
  bool any = false;
  for (auto& [id, deletion] : state.deletions) {
    if (deletion.until > now || !deletion.lately) continue;
    deletion.lately = false;
    any = true;
  }
  absl::erase_if(state.deletions, [&](const auto& one) {
    return one.second.until <= now - kKept && !there.deleted.contains(one.first);
  });
  if (!any) return;
  state.deleted = {state.waiting.begin(), state.waiting.end()};
  for (const auto& [id, deletion] : state.deletions) {
    if (deletion.lately) state.deleted.insert(deletion.key);
  }
}

// Returns the record as it should be there. Keys that wait enter while there is room.
PurgeRecord RemotePurge::ToWrite(const PurgeRecord& there, State& state) {
  PurgeRecord out{.generation = state.generation};
  for (const auto& [id, deletion] : state.deletions) {
    const bool is_there = there.generation == state.generation && there.deleted.contains(id);
    if (deletion.lately && (deletion.here || is_there)) out.deleted[id] = deletion.key;
  }
  while (!state.waiting.empty() && out.deleted.size() < kMostDeleted) {
    const uint64_t id = RandomId();
    state.deletions[id] = {.key = state.waiting.front(), .here = true};
    out.deleted[id] = std::move(state.waiting.front());
    state.waiting.pop_front();
  }
  return out;
}

// Adds to `out` what the remote store lacks, and does what its record asks for.
void RemotePurge::Merge(const RemoteTag& tag, const RemotePlace& place,
                        const absl::StatusOr<SharedBytes>& value, std::vector<RemoteValue>& out) {
  if (!value.ok() && !absl::IsNotFound(value.status())) return;
  absl::StatusOr<PurgeRecord> there = PurgeRecord();
  if (value.ok()) there = ParsePurgeValue(place, *value);
  MutexLock lock(mu_);
  const auto it = states_.find(tag);
  if (it == states_.end()) return;  // it was just forgotten
  State& state = it->second;
  if (keys_.Known(state.tenant) != place.key) return;  // the key has just turned
  const bool damaged = !there.ok();
  if (damaged) {
    there = InPlaceOf(there.status(), *value, state.met && state.key == place.key, state);
    if (absl::IsFailedPrecondition(there.status())) {
      WarnOfUnread(PurgeName(prefix_, place.tag), there.status(), clock_.Now());
      if (state.dirty) ++counters_.unwritten_purges;
    }
    if (!there.ok()) return;
  } else {
    state.damaged.reset();
  }
  if (state.key != place.key || !state.met) {
    state.key = place.key;
    const bool saved = !state.met && state.saved.key == IdOf(place.key);
    // A record that was lost is generation 0 for all that start.
    state.generation = saved ? std::min(state.saved.generation, there->generation) : 0;
  }
  Met met{.space = state.space};
  Adopt(*there, state, met);
  NoteEra(state, met);
  state.known = state.met = true;
  state.dirty = state.drop = false;
  ForgetOld(*there, state);
  const PurgeRecord record = ToWrite(*there, state);
  if (damaged || record != *there) {
    out.push_back({PurgeName(prefix_, place.tag), PurgeValue(place, record)});
    state.told = clock_.Now();
    wake_ = true;
  } else if (state.space == nullptr && state.told + kKept <= clock_.Now()) {
    states_.erase(tag);  // all is told, and nobody uses the space here
    return;
  }
  const bool nothing = !met.dropped && met.deleted.empty() && !met.era.has_value();
  if (met.space == nullptr || nothing) return;
  ++acting_;
  actor_.Submit([this, met = std::move(met)] { Act(met); });
}

void RemotePurge::Act(const Met& met) {
  const bool gone =
      !met.dropped || listener_.dropped(met.space, met.pages, [this] { return stopping(); });
  if (gone && met.era.has_value()) listener_.current(met.space, *met.era);
  for (const std::string& key : met.deleted) {
    if (stopping()) break;
    listener_.deleted(met.space, key, met.pages);
  }
  MutexLock lock(mu_);
  --acting_;
  changed_.NotifyAll();
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
