#include "tests/service/remote/memory_remote_store.h"

#include <iterator>
#include <utility>

namespace kvstow {
namespace {

SharedBytes Joined(const std::vector<SharedBytes>& parts) {
  std::string out;
  for (const SharedBytes& part : parts) {
    out.append(reinterpret_cast<const char*>(part.data()), part.size());
  }
  return SharedBytes::Take(std::move(out));
}

std::string TextOf(const SharedBytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

MemoryRemoteStore::MemoryRemoteStore(Options options) : options_(options), random_(options.seed) {}

MemoryRemoteStore::~MemoryRemoteStore() {
  std::vector<Held> held;
  {
    MutexLock lock(mu_);
    held.swap(held_);
  }
  for (Held& h : held) {
    h.done(Results(h.results.size(), absl::CancelledError("the remote store is closed")));
  }
}

absl::Status MemoryRemoteStore::BeginCall(size_t names) {
  counters_.commands += names;
  if (fail_calls_ > 0) {
    --fail_calls_;
    return fail_next_;
  }
  return fail_all_;
}

absl::Status MemoryRemoteStore::Trouble(const absl::Status& of_call,
                                        const std::string& name) const {
  if (!of_call.ok()) return of_call;
  const auto it = fail_names_.find(name);
  return it == fail_names_.end() ? absl::OkStatus() : it->second;
}

const MemoryRemoteStore::Value* MemoryRemoteStore::Find(const std::string& name) {
  const auto it = values_.find(name);
  if (it == values_.end()) return nullptr;
  if (it->second.until.has_value() && *it->second.until <= options_.clock->Now()) {
    Remove(name);
    return nullptr;
  }
  return &it->second;
}

bool MemoryRemoteStore::Remove(const std::string& name) {
  const auto it = values_.find(name);
  if (it == values_.end()) return false;
  bytes_ -= it->second.bytes.size();
  values_.erase(it);
  return true;
}

void MemoryRemoteStore::Store(const std::string& name, Value value) {
  Remove(name);
  while (!values_.empty() && bytes_ + value.bytes.size() > options_.capacity_bytes) {
    const auto any = std::next(values_.begin(), static_cast<int64_t>(random_() % values_.size()));
    Remove(std::string(any->first));
  }
  bytes_ += value.bytes.size();
  values_[name] = std::move(value);
}

void MemoryRemoteStore::Answer(Results results, Time deadline, GetDone done) {
  {
    MutexLock lock(mu_);
    for (const auto& result : results) counters_.failed += result.ok() ? 0 : 1;
    if (holds_) {
      held_.push_back({std::move(results), deadline, std::move(done)});
      return;
    }
  }
  done(std::move(results));
}

RemoteStore::GetDone MemoryRemoteStore::WithoutValues(Done done) {
  return [done = std::move(done)](Results results) {
    std::vector<absl::Status> out;
    for (const auto& result : results) out.push_back(result.status());
    done(std::move(out));
  };
}

void MemoryRemoteStore::Get(std::vector<std::string> names, Time deadline, GetDone done) {
  Results results;
  {
    MutexLock lock(mu_);
    const absl::Status of_call = BeginCall(names.size());
    for (const std::string& name : names) {
      const absl::Status trouble = Trouble(of_call, name);
      const Value* const value = trouble.ok() ? Find(name) : nullptr;
      if (value == nullptr) {
        results.push_back(trouble.ok() ? absl::NotFoundError("no such value") : trouble);
        continue;
      }
      counters_.bytes_in += value->bytes.size();
      results.push_back(value->bytes);
    }
  }
  Answer(std::move(results), deadline, std::move(done));
}

void MemoryRemoteStore::Put(std::vector<RemoteValue> values, Duration ttl, Time deadline,
                            Done done) {
  Results results;
  {
    MutexLock lock(mu_);
    const absl::Status of_call = BeginCall(values.size());
    for (const RemoteValue& value : values) {
      const absl::Status trouble = Trouble(of_call, value.name);
      SharedBytes bytes = Joined(value.parts);
      if (!trouble.ok()) {
        results.push_back(trouble);
      } else if (bytes.size() > options_.capacity_bytes) {
        results.push_back(absl::ResourceExhaustedError("the value is larger than the store"));
      } else {
        counters_.bytes_out += bytes.size();
        const auto until =
            ttl.count() > 0 ? std::optional(options_.clock->Now() + ttl) : std::nullopt;
        Store(value.name, {std::move(bytes), until});
        results.push_back(SharedBytes());
      }
    }
  }
  Answer(std::move(results), deadline, WithoutValues(std::move(done)));
}

void MemoryRemoteStore::Exists(std::vector<std::string> names, Time deadline, Done done) {
  Results results;
  {
    MutexLock lock(mu_);
    const absl::Status of_call = BeginCall(names.size());
    for (const std::string& name : names) {
      absl::Status status = Trouble(of_call, name);
      if (status.ok() && Find(name) == nullptr) status = absl::NotFoundError("no such value");
      if (status.ok()) {
        results.push_back(SharedBytes());
      } else {
        results.push_back(status);
      }
    }
  }
  Answer(std::move(results), deadline, WithoutValues(std::move(done)));
}

void MemoryRemoteStore::Erase(std::vector<std::string> names, Time deadline, Done done) {
  Results results;
  {
    MutexLock lock(mu_);
    const absl::Status of_call = BeginCall(names.size());
    for (const std::string& name : names) {
      if (const absl::Status trouble = Trouble(of_call, name); !trouble.ok()) {
        results.push_back(trouble);
        continue;
      }
      Remove(name);
      results.push_back(SharedBytes());
    }
  }
  Answer(std::move(results), deadline, WithoutValues(std::move(done)));
}

RemoteStore::Counters MemoryRemoteStore::counters() const {
  MutexLock lock(mu_);
  Counters out = counters_;
  out.nodes = out.connected = 1;
  return out;
}

void MemoryRemoteStore::FailNext(absl::Status status, int calls) {
  MutexLock lock(mu_);
  fail_next_ = std::move(status);
  fail_calls_ = calls;
}

void MemoryRemoteStore::FailName(const std::string& name, absl::Status status) {
  MutexLock lock(mu_);
  fail_names_[name] = std::move(status);
}

void MemoryRemoteStore::FailAll(absl::Status status) {
  MutexLock lock(mu_);
  fail_all_ = std::move(status);
}

void MemoryRemoteStore::Hold() {
  MutexLock lock(mu_);
  holds_ = true;
}

void MemoryRemoteStore::Release() {
  Tick();
  std::vector<Held> held;
  {
    MutexLock lock(mu_);
    holds_ = false;
    held.swap(held_);
  }
  for (Held& h : held) h.done(std::move(h.results));
}

void MemoryRemoteStore::Tick() {
  std::vector<Held> late;
  {
    MutexLock lock(mu_);
    const Time now = options_.clock->Now();
    for (auto it = held_.begin(); it != held_.end();) {
      if (it->deadline > now) {
        ++it;
        continue;
      }
      late.push_back(std::move(*it));
      it = held_.erase(it);
    }
  }
  for (Held& h : late) {
    h.done(Results(h.results.size(), absl::DeadlineExceededError("no answer in time")));
  }
}

size_t MemoryRemoteStore::held() const {
  MutexLock lock(mu_);
  return held_.size();
}

bool MemoryRemoteStore::Drop(const std::string& name) {
  MutexLock lock(mu_);
  return Remove(name);
}

bool MemoryRemoteStore::Corrupt(const std::string& name, size_t at) {
  MutexLock lock(mu_);
  const auto it = values_.find(name);
  if (it == values_.end() || it->second.bytes.empty()) return false;
  std::string bytes = TextOf(it->second.bytes);  // readers of the old bytes keep those
  bytes[at % bytes.size()] ^= 1;
  it->second.bytes = SharedBytes::Take(std::move(bytes));
  return true;
}

bool MemoryRemoteStore::Swap(const std::string& a, const std::string& b) {
  MutexLock lock(mu_);
  const auto x = values_.find(a), y = values_.find(b);
  if (x == values_.end() || y == values_.end()) return false;
  std::swap(x->second, y->second);
  return true;
}

bool MemoryRemoteStore::Truncate(const std::string& name, size_t bytes) {
  MutexLock lock(mu_);
  const auto it = values_.find(name);
  if (it == values_.end() || it->second.bytes.size() < bytes) return false;
  bytes_ -= it->second.bytes.size() - bytes;
  it->second.bytes = it->second.bytes.Slice(0, bytes);
  return true;
}

void MemoryRemoteStore::DropAll() {
  MutexLock lock(mu_);
  values_.clear();
  bytes_ = 0;
}

std::vector<std::string> MemoryRemoteStore::names() const {
  MutexLock lock(mu_);
  std::vector<std::string> out;
  for (const auto& [name, value] : values_) out.push_back(name);
  return out;
}

std::optional<std::string> MemoryRemoteStore::Peek(const std::string& name) const {
  MutexLock lock(mu_);
  const auto it = values_.find(name);
  return it == values_.end() ? std::nullopt : std::optional(TextOf(it->second.bytes));
}

}  // namespace kvstow
