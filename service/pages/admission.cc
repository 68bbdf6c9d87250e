#include "service/pages/admission.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/bytes.h"

namespace kvstow {
namespace {

constexpr Time::rep kBusy = 0;  // in the place of the time since when a stream is idle

// A page as it came, and as it is coded.
constexpr uint64_t Twice(uint64_t bytes) { return 2 * bytes; }

absl::Status Draining(Metrics& metrics) {
  metrics.CountRefusedCall("draining");
  return absl::UnavailableError("the server drains: use another one");
}

}  // namespace

ByteBudget::Payer PayerOf(TenantTable* tenants, const std::string& tenant) {
  if (tenants == nullptr) return {};
  return {.tenant = tenants->IdOf(tenant), .weight = tenants->LimitsOf(tenant).weight};
}

struct Admission::Place::Entry {
  Admission& all;
  const StreamKind kind;
  const std::weak_ptr<AdmittedStream> stream;
  std::atomic<Time::rep> idle_since;
  std::atomic<bool> holding = false;
  bool ending = false;                     // of whoever has the lock
  std::list<Entry*>::iterator place = {};  // in streams_
};

void Admission::Place::Leave::operator()(Entry* entry) const {
  Admission& all = entry->all;
  all.metrics_.AddStreams(entry->kind, -1);  // whoever waits for the streams to go counts them then
  {
    MutexLock lock(all.mu_);
    all.streams_.erase(entry->place);
    all.left_.NotifyAll();
    if (!entry->ending) --all.open_[static_cast<size_t>(entry->kind)];
  }
  delete entry;
}

void Admission::Place::Moved(bool busy, bool holding) {
  if (entry_ == nullptr) return;
  entry_->holding = holding;
  entry_->idle_since = busy ? kBusy : entry_->all.clock_.Now().time_since_epoch().count();
}

Admission::Admission(const AdmissionLimits& limits, Metrics& metrics, const Clock& clock)
    : limits_(limits),
      metrics_(metrics),
      clock_(clock),
      gets_(limits.get_bytes),
      requests_(limits.get_bytes / 4),
      windows_(limits.put_bytes / 2),
      puts_(limits.put_bytes / 2) {}

Admission::~Admission() = default;

absl::StatusOr<Admission::Place> Admission::Admit(StreamKind kind,
                                                  std::weak_ptr<AdmittedStream> stream) {
  if (draining_) return Draining(metrics_);
  std::unique_ptr<Entry> entry(new Entry{
      *this, kind, std::move(stream), clock_.Now().time_since_epoch().count(), false, false, {}});
  std::weak_ptr<AdmittedStream> makes_way;
  bool admitted = true;
  {
    MutexLock lock(mu_);
    uint64_t& open = open_[static_cast<size_t>(kind)];
    if (open >= limits_.streams) makes_way = MakeWay(kind, /*holding=*/false);
    admitted = open < limits_.streams;
    if (admitted) {
      ++open;
      entry->place = streams_.insert(streams_.end(), entry.get());
    }
  }
  End(makes_way, "crowded");
  if (!admitted) {
    return Refuse("too_many_streams",
                  absl::StrCat("there are ", limits_.streams, " streams of this kind"));
  }
  metrics_.AddStreams(kind, 1);
  return Place(entry.release());
}

absl::StatusOr<Admission::Bytes> Admission::TakeWindow(uint64_t most_bytes, uint64_t page_bytes) {
  auto window = windows_.TryShare(Twice(2 * page_bytes), Twice(most_bytes));
  if (!window.has_value()) window = windows_.Try(Twice(page_bytes));
  if (window.has_value()) return *std::move(window);
  std::weak_ptr<AdmittedStream> makes_way;
  {
    MutexLock lock(mu_);
    makes_way = MakeWay(StreamKind::kPut, /*holding=*/true);
  }
  End(makes_way, "crowded");
  return Refuse("put_memory",
                absl::StrCat("the memory for pages on their way in, ",
                             FormatSize(limits_.put_bytes), ", is given to other streams"));
}

absl::StatusOr<Admission::Bytes> Admission::TakePut(uint64_t page_bytes, ByteBudget::Payer payer) {
  auto bytes = puts_.WaitFor(Twice(page_bytes), limits_.patience, payer);
  if (bytes.has_value()) return *std::move(bytes);
  return Refuse("put_memory", "the memory for pages on their way in is spent");
}

absl::StatusOr<Admission::Bytes> Admission::TakeGet(uint64_t bytes, ByteBudget::Payer payer) {
  auto held = gets_.WaitFor(bytes, limits_.patience, payer);
  if (held.has_value()) return *std::move(held);
  return Refuse("get_memory", "the memory for pages on their way out is spent");
}

absl::StatusOr<Admission::Bytes> Admission::TakeRequest(uint64_t bytes) {
  auto held = requests_.Try(bytes);
  if (held.has_value()) return *std::move(held);
  std::weak_ptr<AdmittedStream> makes_way;
  {
    MutexLock lock(mu_);
    makes_way = MakeWay(StreamKind::kGet, /*holding=*/true);
  }
  End(makes_way, "crowded");
  return Refuse(
      "get_memory",
      "the memory for pages that were asked for without credit is given to other streams");
}

absl::Status Admission::CheckTakesPuts() const {
  return draining_ ? Draining(metrics_) : absl::OkStatus();
}

void Admission::WaitForNone(Duration patience) {
  const Time end = Clock::Real().Now() + patience;
  MutexLock lock(mu_);
  while (!streams_.empty()) {
    const Duration left = end - Clock::Real().Now();
    if (left <= Duration::zero()) return;
    left_.WaitFor(mu_, left);
  }
}

size_t Admission::EndStreams(Duration grace) {
  constexpr Duration kMoment = std::chrono::seconds(1);
  WaitForNone(grace);
  std::vector<std::weak_ptr<AdmittedStream>> rest;
  {
    MutexLock lock(mu_);
    for (Entry* const entry : streams_) {
      if (!entry->ending) rest.push_back(ToEnd(*entry));
    }
  }
  for (const auto& stream : rest) {
    if (const auto found = stream.lock()) {
      metrics_.CountEndedStream("draining");
      found->End(absl::UnavailableError("the server drains: use another one"));
    }
  }
  WaitForNone(kMoment);
  return rest.size();
}

void Admission::Reap() {
  const bool wanted = gets_.waiting() > 0;
  std::vector<std::weak_ptr<AdmittedStream>> idle, crowded;
  {
    MutexLock lock(mu_);
    for (Entry* const entry : streams_) {
      const Duration idle_for = IdleFor(*entry);
      if (entry->ending) continue;
      if (idle_for >= limits_.idle) {
        idle.push_back(ToEnd(*entry));
      } else if (wanted && entry->kind == StreamKind::kGet && entry->holding &&
                 idle_for >= limits_.grace) {
        crowded.push_back(ToEnd(*entry));
      }
    }
  }
  for (const auto& stream : idle) End(stream, "idle");
  for (const auto& stream : crowded) End(stream, "crowded");
}

Duration Admission::IdleFor(const Entry& entry) const {
  const Time::rep since = entry.idle_since;
  return since == kBusy ? Duration::zero() : clock_.Now() - Time(Duration(since));
}

std::weak_ptr<AdmittedStream> Admission::MakeWay(StreamKind kind, bool holding) {
  Entry* longest = nullptr;
  for (Entry* const entry : streams_) {
    if (entry->kind != kind || entry->ending || (holding && !entry->holding)) continue;
    if (IdleFor(*entry) < limits_.grace) continue;
    if (longest == nullptr || IdleFor(*entry) > IdleFor(*longest)) longest = entry;
  }
  return longest == nullptr ? std::weak_ptr<AdmittedStream>() : ToEnd(*longest);
}

std::weak_ptr<AdmittedStream> Admission::ToEnd(Entry& entry) {
  entry.ending = true;
  --open_[static_cast<size_t>(entry.kind)];
  return entry.stream;
}

void Admission::End(const std::weak_ptr<AdmittedStream>& stream, const char* reason) {
  const auto found = stream.lock();
  if (found == nullptr) return;
  metrics_.CountEndedStream(reason);
  found->End(absl::ResourceExhaustedError(
      absl::StrCat("nothing moved on the stream (", reason,
                   "): open another one when there is something to send or to take")));
}

absl::Status Admission::Refuse(const char* reason, absl::string_view what) {
  metrics_.CountRefusedCall(reason);
  return absl::ResourceExhaustedError(absl::StrCat(what, ": try again later"));
}

}  // namespace kvstow
