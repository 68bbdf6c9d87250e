#include "service/remote/remote_sender.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "service/remote/remote_answers.h"

namespace kvstow {
namespace {

constexpr size_t kBatch = 32;  // pages of one question

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
      counters_(counters) {
  if (remote_.holds_values()) thread_ = std::thread([this] { Loop(); });
}

RemoteSender::~RemoteSender() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void RemoteSender::Offer(PageName name) {
  if (!remote_.holds_values()) return;
  const auto space = spaces_.Find(name.space);
  if (space == nullptr || space->promise.is_private) return;
  MutexLock lock(mu_);
  if (queue_.size() >= options_.most_queued) {
    ++counters_.unsent_pages;
    return;
  }
  queue_.push_back(std::move(name));
  changed_.NotifyAll();
}

void RemoteSender::Flush() {
  MutexLock lock(mu_);
  while (!stop_ && (!queue_.empty() || sending_)) changed_.Wait(mu_);
}

uint64_t RemoteSender::queued() const {
  MutexLock lock(mu_);
  return queue_.size();
}

void RemoteSender::Loop() {
  for (;;) {
    std::vector<PageName> batch = NextBatch();
    if (batch.empty()) return;
    Send(std::move(batch));
    MutexLock lock(mu_);
    sending_ = false;
    changed_.NotifyAll();
  }
}

// Returns nothing at the end.
std::vector<PageName> RemoteSender::NextBatch() {
  std::vector<PageName> batch;
  MutexLock lock(mu_);
  while (!stop_ && queue_.empty()) changed_.Wait(mu_);
  if (stop_) return batch;
  while (!queue_.empty() && batch.size() < kBatch) {
    batch.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  sending_ = true;
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
    const auto generation = GenerationOf(purge_, space, deadline);
    if (!generation.has_value()) {
      ++counters_.unsent_pages;
      continue;
    }
    const RemoteTag tag = TagOf(*space, *generation, name.key);
    names.push_back(RecordName(options_.prefix, tag));
    asked.push_back({std::move(name), tag});
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
  Outgoing out{.tag = page.tag};
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
  const Time until =
      Clock::Real().Now() +
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
          static_cast<double>(bytes) / static_cast<double>(options_.bytes_per_second)));
  MutexLock lock(mu_);
  for (Time now; !stop_ && (now = Clock::Real().Now()) < until;) changed_.WaitFor(mu_, until - now);
}

// Sends a page whole. NOT_FOUND: it is not here any longer.
absl::Status RemoteSender::SendPage(const Queued& queued, uint64_t& bytes) {
  const std::optional<Outgoing> page = Load(queued);
  if (!page.has_value()) return absl::NotFoundError("the page is gone");
  std::vector<RemoteValue> values;
  std::vector<std::string> names = {RecordName(options_.prefix, page->tag)};
  for (size_t i = 0; i < page->bodies.size(); ++i) {
    bytes += page->bodies[i].size();
    names.push_back(SegmentName(options_.prefix, page->tag, i));
    values.push_back(
        {names.back(), SegmentValue(page->tag, i, page->record.facts[i], page->bodies[i])});
  }
  KVSTOW_RETURN_IF_ERROR(Write(std::move(values)));
  std::vector<RemoteValue> record;
  record.push_back({names[0], RecordValue(page->tag, page->record)});
  KVSTOW_RETURN_IF_ERROR(Write(std::move(record)));
  // A page that was deleted meanwhile must not come back from there.
  if (store_.residency().Find(queued.name).ok()) return absl::OkStatus();
  purge_.Erase(std::move(names));
  return absl::NotFoundError("the page went while it was sent");
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
    } else if (!absl::IsNotFound(sent)) {
      ++counters_.unsent_pages;
    }
    Pace(bytes);
  }
}

}  // namespace kvstow
