#include "service/remote/remote_sender.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "service/remote/remote_answers.h"

namespace kvstow {
namespace {

constexpr size_t kBatch = 8;  // pages of one question

}  // namespace

RemoteSender::RemoteSender(Options options, RemoteStore& remote, RemotePurge& purge,
                           TieredStore& store, const Spaces& spaces, MakeColdForm cold,
                           RemoteCounters& counters)
    : options_(std::move(options)),
      remote_(remote),
      purge_(purge),
      store_(store),
      spaces_(spaces),
      cold_(std::move(cold)),
      counters_(counters),
      queue_(options_.most_queued),
      budget_(options_.ttl > Duration(0) ? options_.ttl : std::chrono::hours(24)) {
  if (!remote_.holds_values()) return;
  for (size_t i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Loop(); });
}

RemoteSender::~RemoteSender() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void RemoteSender::Offer(const PageName& name, absl::string_view parent) {
  if (!remote_.holds_values()) return;
  const auto space = spaces_.Find(name.space);
  if (space == nullptr || space->promise.is_private) return;
  MutexLock lock(mu_);
  const PageName before{.space = name.space, .key = std::string(parent)};
  if (queue_.Add(name, before)) ++counters_.unsent_pages;
  queued_ = queue_.size();
  changed_.NotifyAll();
}

void RemoteSender::Use(const PageName& name) {
  if (queued() == 0) return;
  MutexLock lock(mu_);
  queue_.Use(name);
}

void RemoteSender::Flush() {
  MutexLock lock(mu_);
  while (!stop_ && (queue_.size() > 0 || sending_ > 0)) changed_.Wait(mu_);
}

void RemoteSender::Loop() {
  for (;;) {
    std::vector<PageName> batch = NextBatch();
    if (batch.empty()) return;
    Send(std::move(batch));
    MutexLock lock(mu_);
    --sending_;
    changed_.NotifyAll();
  }
}

// Returns nothing at the end.
std::vector<PageName> RemoteSender::NextBatch() {
  MutexLock lock(mu_);
  while (!stop_ && queue_.size() == 0) changed_.Wait(mu_);
  if (stop_) return {};
  std::vector<PageName> batch = queue_.Take(kBatch);
  queued_ = queue_.size();
  ++sending_;
  return batch;
}

// Asks for all of them at once.
std::vector<RemoteSender::Queued> RemoteSender::NotThereYet(std::vector<PageName> batch) {
  const Time deadline = Clock::Real().Now() + options_.wait;
  std::vector<Queued> asked;
  std::vector<std::string> names;
  for (PageName& name : batch) {
    const auto space = spaces_.Find(name.space);
    if (space == nullptr) continue;
    const auto era = EraOf(purge_, space, RemoteKeys::Use::kWrite, deadline);
    if (!era.ok()) {
      ++counters_.unsent_pages;
      continue;
    }
    RemotePlace place = PlaceOf(*space, *era, name.key);
    names.push_back(RecordName(options_.prefix, place.tag));
    asked.push_back({std::move(name), std::move(place)});
  }
  if (asked.empty()) return asked;
  RemoteAnswers<absl::Status> answers;
  remote_.Exists(std::move(names), deadline, answers.Take());
  const std::vector<absl::Status> there = answers.Wait();
  std::vector<Queued> out;
  for (size_t i = 0; i < asked.size(); ++i) {
    if (there[i].ok()) {
      ++counters_.already_there;
    } else if (absl::IsNotFound(there[i])) {
      out.push_back(std::move(asked[i]));
    } else {
      ++counters_.unsent_pages;
    }
  }
  return out;
}

// Returns nothing when the page is gone.
std::optional<RemoteSender::Outgoing> RemoteSender::Load(const Queued& page) {
  const PageName& name = page.name;
  const auto facts = store_.residency().Find(name);
  if (!facts.ok()) return std::nullopt;
  std::vector<uint16_t> indices(facts->segments.size());
  std::iota(indices.begin(), indices.end(), uint16_t{0});
  Outgoing out{.place = page.place};
  for (auto& body : store_.Read(name, facts->number, indices)) {
    if (!body.ok()) break;
    out.bodies.push_back(*std::move(body));
  }
  const bool cut = out.bodies.size() < facts->segments.size();
  if (out.bodies.empty() || (facts->whole && cut)) return std::nullopt;
  out.record = {.name = name,
                .header = facts->header,
                .raw_digest = facts->raw_digest,
                .raw_bytes = facts->raw_bytes,
                .first_position = facts->first_position,
                .tokens = facts->tokens,
                .whole = facts->whole,
                .facts = facts->segments};
  out.record.facts.resize(out.bodies.size());
  if (!facts->hot) return out;
  MutexLock one_codes(coding_);
  if (std::optional<ColdForm> cold = cold_(name, out.record.header, out.bodies)) {
    out.record.header = cold->header;
    out.record.whole = cold->whole;
    out.record.facts = std::move(cold->facts);
    out.bodies = std::move(cold->bodies);
  }
  return out;
}

absl::Status RemoteSender::Write(std::vector<RemoteValue> values) {
  RemoteAnswers<absl::Status> answers;
  remote_.Put(std::move(values), options_.ttl, Clock::Real().Now() + options_.wait, answers.Take());
  absl::Status all;
  for (const absl::Status& one : answers.Wait()) all.Update(one);
  return all;
}

// Waits until so many bytes may have gone.
void RemoteSender::Pace(uint64_t bytes) {
  if (options_.bytes_per_second == 0) return;
  const auto takes = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
      static_cast<double>(bytes) / static_cast<double>(options_.bytes_per_second)));
  MutexLock lock(mu_);
  Time now = Clock::Real().Now();
  next_send_ = std::max(next_send_, now) + takes;
  for (const Time until = next_send_; !stop_ && now < until; now = Clock::Real().Now()) {
    changed_.WaitFor(mu_, until - now);
  }
}

// Returns whether the tenant of the space may send so many bytes, and counts them.
bool RemoteSender::MaySend(SpaceId space, uint64_t bytes) {
  const auto found = spaces_.Find(space);
  if (found == nullptr || options_.limit_of == nullptr) return true;
  const std::string& tenant = found->tenant;
  if (budget_.Take(tenant, bytes, options_.limit_of(tenant), Clock::Real().Now())) return true;
  ++counters_.over_budget;
  return false;
}

// Sends a page whole. NOT_FOUND: it is not here any longer. OUT_OF_RANGE: its tenant sent all that
// it may.
absl::Status RemoteSender::SendPage(const Queued& queued, uint64_t& bytes) {
  const std::optional<Outgoing> page = Load(queued);
  if (!page.has_value()) return absl::NotFoundError("the page is gone");
  for (const SharedBytes& body : page->bodies) bytes += body.size();
  if (!MaySend(queued.name.space, bytes)) {
    return absl::OutOfRangeError("the tenant sent all that it may");
  }
  std::vector<RemoteValue> values;
  std::vector<std::string> names = {RecordName(options_.prefix, page->place.tag)};
  for (size_t i = 0; i < page->bodies.size(); ++i) {
    names.push_back(SegmentName(options_.prefix, page->place.tag, i));
    values.push_back(
        {names.back(), SegmentValue(page->place, i, page->record.facts[i], page->bodies[i])});
  }
  KVSTOW_RETURN_IF_ERROR(Write(std::move(values)));
  std::vector<RemoteValue> record;
  record.push_back({names[0], RecordValue(page->place, page->record)});
  KVSTOW_RETURN_IF_ERROR(Write(std::move(record)));
  // A page that was deleted meanwhile must not come back from there. One that was evicted may.
  const auto space = spaces_.Find(queued.name.space);
  if (space != nullptr && purge_.CountLive(*space, {&queued.name.key, 1}) == 1) {
    return absl::OkStatus();
  }
  purge_.Erase(std::move(names));
  return absl::NotFoundError("the page was deleted while it was sent");
}

void RemoteSender::Send(std::vector<PageName> batch) {
  for (const Queued& queued : NotThereYet(std::move(batch))) {
    {
      MutexLock lock(mu_);
      if (stop_) return;
    }
    uint64_t bytes = 0;
    const absl::Status sent = SendPage(queued, bytes);
    if (sent.ok()) {
      ++counters_.sent_pages;
      counters_.sent_bytes += bytes;
    } else if (!absl::IsNotFound(sent) && !absl::IsOutOfRange(sent)) {
      ++counters_.unsent_pages;
    }
    if (!absl::IsOutOfRange(sent)) Pace(bytes);
  }
}

}  // namespace kvstow
