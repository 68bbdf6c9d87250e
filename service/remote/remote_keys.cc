#include "service/remote/remote_keys.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/log.h"
#include "service/remote/remote_answers.h"

namespace kvstow {
namespace {

constexpr Duration kWait = std::chrono::seconds(1);  // of one round trip

absl::Status NoKey() { return absl::NotFoundError("the tenant has no key in the remote store"); }

absl::Status NoAnswer(const absl::Status& why) {
  return absl::UnavailableError(absl::StrCat("the remote store does not answer: ", why.message()));
}

// Once for each value: a round comes several times a second.
void WarnOfUnread(const std::string& tenant, const std::string& name,
                  std::span<const uint8_t> value, const absl::Status& why, uint64_t& named) {
  const uint64_t id = Xxh3(value);
  if (std::exchange(named, id) == id) return;
  Log().warn(
      "remote: the key of tenant '{}', value {}, is not read here: {}. The tenant's pages there "
      "are misses. Upgrade this server; or delete the value, if no newer kvstow writes there",
      tenant, name, std::string(why.message()));
}

}  // namespace

RemoteKeys::RemoteKeys(std::string prefix, RemoteStore& remote, std::shared_ptr<MasterKeys> masters,
                       Renewed renewed, RemoteCounters& counters)
    : prefix_(std::move(prefix)),
      remote_(remote),
      masters_(remote.holds_values() ? std::move(masters) : nullptr),
      renewed_(std::move(renewed)),
      counters_(counters) {}

std::string RemoteKeys::NameOf(const std::string& tenant) const {
  return KeyName(prefix_, KeyTagOf(tenant));
}

std::optional<RemoteKeyPtr> RemoteKeys::Known(const std::string& tenant) const {
  if (!seals()) return RemoteKeyPtr();
  MutexLock lock(mu_);
  const auto it = tenants_.find(tenant);
  if (it == tenants_.end() || it->second.key == nullptr) return std::nullopt;
  return it->second.key;
}

void RemoteKeys::Find(const std::string& tenant, Use use, Time deadline, Found done) {
  if (!seals()) return done(RemoteKeyPtr());
  absl::StatusOr<RemoteKeyPtr> known = NoKey();
  {
    MutexLock lock(mu_);
    const State& state = tenants_[tenant];
    known = state.key == nullptr ? absl::StatusOr<RemoteKeyPtr>(state.none) : state.key;
  }
  const bool asks = absl::IsUnavailable(known.status()) ||
                    (use != Use::kRead && absl::IsNotFound(known.status()));
  if (!asks) return done(std::move(known));
  remote_.Get({NameOf(tenant)}, deadline,
              [this, tenant, use, deadline,
               done = std::move(done)](const std::vector<absl::StatusOr<SharedBytes>>& values) {
                absl::StatusOr<RemoteKeyPtr> key = Take(tenant, values[0]);
                const bool make = use == Use::kWrite && absl::IsNotFound(key.status());
                make ? Make(tenant, deadline, done) : done(std::move(key));
              });
}

// Two that make a key at once here make the same.
void RemoteKeys::Make(const std::string& tenant, Time deadline, Found done) {
  const std::vector<MasterKey> masters = masters_->Current();
  if (masters.empty()) {
    return done(absl::UnavailableError("there is no master key: see what the log says of it"));
  }
  std::vector<RemoteValue> record;
  {
    MutexLock lock(mu_);
    State& state = tenants_[tenant];
    if (state.made == nullptr) state.made = RemoteKey::Random();
    record.push_back(
        {NameOf(tenant), KeyRecordValue(tenant, Wrap(masters.front(), tenant, *state.made))});
  }
  remote_.Put(
      std::move(record), Duration(0), deadline,
      [this, tenant, deadline, done = std::move(done)](const std::vector<absl::Status>& written) {
        if (!written[0].ok()) return done(NoAnswer(written[0]));
        {
          MutexLock lock(mu_);
          tenants_[tenant].dropping = false;  // what was there is written over
        }
        remote_.Get({NameOf(tenant)}, deadline,
                    [this, tenant, done](const std::vector<absl::StatusOr<SharedBytes>>& values) {
                      absl::StatusOr<RemoteKeyPtr> key = Take(tenant, values[0]);
                      if (absl::IsNotFound(key.status())) key = NoAnswer(key.status());
                      done(std::move(key));
                    });
      });
}

// Returns the key that is to be used after the record was read.
absl::StatusOr<RemoteKeyPtr> RemoteKeys::Take(const std::string& tenant,
                                              const absl::StatusOr<SharedBytes>& value) {
  Round round;
  absl::StatusOr<RemoteKeyPtr> key = NoKey();
  {
    MutexLock lock(mu_);
    State& state = tenants_[tenant];
    key = Judge(tenant, value, state, round);
    if (state.key != nullptr) {
      key = state.key;
    } else if (key.ok()) {
      Adopt(tenant, *key, state, round);
    }
  }
  for (const std::string& one : round.renewed) renewed_(one);
  return key;
}

void RemoteKeys::Adopt(const std::string& tenant, RemoteKeyPtr key, State& state, Round& round) {
  if (std::exchange(state.renewed, false)) round.renewed.push_back(tenant);
  state.key = std::move(key);
  state.made = nullptr;
  state.turning = false;
  ++state.changes;
}

// Returns the key of a record as it was read, and notes why there is none.
absl::StatusOr<RemoteKeyPtr> RemoteKeys::Judge(const std::string& tenant,
                                               const absl::StatusOr<SharedBytes>& value,
                                               State& state, Round& round) {
  absl::StatusOr<RemoteKeyPtr> key = NoKey();
  if (value.ok()) {
    const absl::StatusOr<KeyRecord> record = ParseKeyRecord(tenant, *value);
    key = record.ok() ? Open(tenant, *record, state, round)
                      : absl::StatusOr<RemoteKeyPtr>(record.status());
    if (absl::IsFailedPrecondition(record.status())) {
      WarnOfUnread(tenant, NameOf(tenant), value->span(), record.status(), state.named);
    }
    const bool damaged = absl::IsDataLoss(key.status());
    if (!std::exchange(state.damaged, damaged) && damaged) ++counters_.damaged_values;
    if (damaged) key = NoKey();
  } else if (!absl::IsNotFound(value.status())) {
    return NoAnswer(value.status());
  }
  if (!value.ok() || absl::IsFailedPrecondition(key.status())) state.dropping = false;
  if (absl::IsNotFound(key.status())) state.renewed = true;
  if (!key.ok()) state.none = key.status();
  return key;
}

absl::StatusOr<RemoteKeyPtr> RemoteKeys::Open(const std::string& tenant, const KeyRecord& record,
                                              State& state, Round& round) {
  if (state.shed.contains(record.id)) {
    round.erase.push_back(tenant);
    return NoKey();
  }
  const std::vector<MasterKey> masters = masters_->Current();
  const bool same = state.key != nullptr && state.key->id() == record.id;
  absl::StatusOr<RemoteKeyPtr> key = same ? state.key : Unwrap(masters, tenant, record);
  if (absl::IsUnavailable(key.status())) {
    if (std::exchange(state.named, record.id) != record.id) {
      Log().error(
          "remote: the key of tenant '{}', value {}, was wrapped by a master key that is not here: "
          "the tenant's pages there are misses. Give the server that master key, or another "
          "--remote-prefix than the fleet that has it",
          tenant, NameOf(tenant));
    }
    return absl::FailedPreconditionError(
        absl::StrCat("the tenant's key in the remote store, value ", NameOf(tenant),
                     ", was wrapped by a master key that is not here"));
  }
  const bool made_here = state.made != nullptr && state.made->id() == record.id;
  if (key.ok() && state.dropping && !made_here) {
    state.shed.insert(record.id);
    round.erase.push_back(tenant);
    return NoKey();
  }
  if (key.ok() && state.wrap_anew) {
    const bool by_another = !masters.empty() && masters.front().id != record.master;
    by_another ? round.wrap_anew.push_back(tenant) : void(state.wrap_anew = false);
  }
  return key;
}

void RemoteKeys::Note(const std::string& tenant, uint64_t changes,
                      const absl::StatusOr<SharedBytes>& value, Round& round) {
  MutexLock lock(mu_);
  State& state = tenants_[tenant];
  if (state.changes != changes) return;  // the value may be older than the key
  const absl::StatusOr<RemoteKeyPtr> key = Judge(tenant, value, state, round);
  if (absl::IsUnavailable(key.status())) return;
  const RemoteKeyPtr there = key.ok() ? *key : nullptr;
  if (state.key == nullptr) {
    if (there != nullptr) Adopt(tenant, there, state, round);
  } else if (there != state.key) {
    state.next = there;
    state.renewed = state.turning = true;
    round.turning.push_back(tenant);
  }
}

std::vector<std::string> RemoteKeys::Look() {
  if (!seals()) return {};
  std::vector<std::pair<std::string, uint64_t>> tenants;
  std::vector<std::string> names;
  {
    MutexLock lock(mu_);
    for (const auto& [tenant, state] : tenants_) {
      tenants.emplace_back(tenant, state.changes);
      names.push_back(NameOf(tenant));
    }
  }
  if (tenants.empty()) return {};
  RemoteAnswers<absl::StatusOr<SharedBytes>> read;
  remote_.Get(std::move(names), Clock::Real().Now() + kWait, read.Take());
  const auto values = read.Wait();
  Round round;
  for (size_t i = 0; i < tenants.size(); ++i) {
    Note(tenants[i].first, tenants[i].second, values[i], round);
  }
  for (const std::string& tenant : round.renewed) renewed_(tenant);
  EraseRecords(round.erase);
  WrapAnew(round.wrap_anew);
  return std::move(round.turning);
}

void RemoteKeys::EraseRecords(const std::vector<std::string>& tenants) {
  if (tenants.empty()) return;
  std::vector<std::string> names;
  for (const std::string& tenant : tenants) names.push_back(NameOf(tenant));
  RemoteAnswers<absl::Status> erased;
  remote_.Erase(std::move(names), Clock::Real().Now() + kWait, erased.Take());
  const std::vector<absl::Status> results = erased.Wait();
  MutexLock lock(mu_);
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].ok()) tenants_[tenants[i]].dropping = false;
  }
}

void RemoteKeys::WrapAnew(const std::vector<std::string>& tenants) {
  const std::vector<MasterKey> masters = masters_->Current();
  std::vector<std::string> wrapped;
  std::vector<RemoteValue> records;
  for (const std::string& tenant : tenants) {
    const std::optional<RemoteKeyPtr> key = Known(tenant);
    if (!key.has_value() || masters.empty()) continue;
    wrapped.push_back(tenant);
    records.push_back({NameOf(tenant), KeyRecordValue(tenant, Wrap(masters[0], tenant, **key))});
  }
  if (records.empty()) return;
  RemoteAnswers<absl::Status> written;
  remote_.Put(std::move(records), Duration(0), Clock::Real().Now() + kWait, written.Take());
  const std::vector<absl::Status> results = written.Wait();
  MutexLock lock(mu_);
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].ok()) tenants_[wrapped[i]].wrap_anew = false;
  }
}

void RemoteKeys::Turn(const std::string& tenant) {
  Round round;
  {
    MutexLock lock(mu_);
    State& state = tenants_[tenant];
    if (!std::exchange(state.turning, false)) return;
    RemoteKeyPtr next = std::exchange(state.next, nullptr);
    state.key = nullptr;
    ++state.changes;
    if (next != nullptr) Adopt(tenant, std::move(next), state, round);
  }
  for (const std::string& one : round.renewed) renewed_(one);
}

void RemoteKeys::Watch(std::span<const std::string> tenants) {
  if (!seals()) return;
  MutexLock lock(mu_);
  for (const std::string& tenant : tenants) tenants_[tenant];
  for (auto& [tenant, state] : tenants_) {
    state.wrap_anew = true;
    state.named = 0;
  }
}

absl::Status RemoteKeys::Drop(const std::string& tenant) {
  if (!seals()) return absl::OkStatus();
  {
    MutexLock lock(mu_);
    State& state = tenants_[tenant];
    if (state.key != nullptr) state.shed.insert(state.key->id());
    state.turning = state.renewed = true;
    state.next = state.made = nullptr;
    state.none = absl::UnavailableError("the remote store did not answer");
    state.dropping = true;
  }
  Look();
  MutexLock lock(mu_);
  const State& state = tenants_[tenant];
  if (absl::IsFailedPrecondition(state.none)) {
    return absl::FailedPreconditionError(
        absl::StrCat(state.none.message(), ": it stays; delete the value to give it up"));
  }
  if (!state.dropping) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the tenant's key in the remote store, value ", NameOf(tenant),
                   ", is not erased yet: the server tries again until it is stopped"));
}

RemoteKeys::Counts RemoteKeys::counts() const {
  MutexLock lock(mu_);
  Counts out;
  for (const auto& [tenant, state] : tenants_) {
    if (state.key != nullptr) ++out.keys;
    if (state.key == nullptr && absl::IsFailedPrecondition(state.none)) ++out.locked;
  }
  return out;
}

absl::StatusOr<RemoteKeyPtr> KeyOf(RemoteKeys& keys, const std::string& tenant, RemoteKeys::Use use,
                                   Time deadline) {
  RemoteAnswers<absl::StatusOr<RemoteKeyPtr>> answer;
  keys.Find(tenant, use, deadline,
            [done = answer.Take()](absl::StatusOr<RemoteKeyPtr> key) { done({std::move(key)}); });
  return std::move(answer.Wait()[0]);
}

}  // namespace kvstow
