#include "service/api/sending_places.h"

#include <algorithm>

namespace kvstow {

struct SendingPlaces::Place::Entry {
  SendingPlaces& all;
  const std::weak_ptr<Stream> stream;
  const bool of_tenant;
  const Time begun;
  std::atomic<Time> moved;
};

void SendingPlaces::Place::Leave::operator()(Entry* entry) const {
  {
    MutexLock lock(entry->all.mu_);
    entry->all.streams_.remove(entry);
  }
  entry->all.calibrations_.EndSending();
  delete entry;
}

void SendingPlaces::Place::Moved() {
  if (entry_ != nullptr) entry_->moved = entry_->all.clock_.Now();
}

std::optional<SendingPlaces::Place> SendingPlaces::Take(const Caller& caller,
                                                        const std::weak_ptr<Stream>& stream) {
  const bool of_tenant = !IsOperator(caller);
  std::optional<Place> place = TakeFree(of_tenant, stream);
  if (place.has_value()) return place;
  for (const std::shared_ptr<Stream>& other : WhoseTurnIsOver(of_tenant)) {
    if (other != nullptr && other->GiveWay()) return TakeFree(of_tenant, stream);
  }
  return std::nullopt;
}

std::optional<SendingPlaces::Place> SendingPlaces::TakeFree(bool of_tenant,
                                                            const std::weak_ptr<Stream>& stream) {
  const Time now = clock_.Now();
  MutexLock lock(mu_);
  const auto tenants =
      std::ranges::count_if(streams_, [](const Entry* entry) { return entry->of_tenant; });
  if (of_tenant && tenants >= Calibrations::kMaxSending - 1) return std::nullopt;
  if (!calibrations_.BeginSending()) return std::nullopt;
  streams_.push_back(new Entry{*this, stream, of_tenant, now, now});
  return Place(streams_.back());
}

std::vector<std::shared_ptr<SendingPlaces::Stream>> SendingPlaces::WhoseTurnIsOver(bool to_tenant) {
  const Time now = clock_.Now();
  std::vector<std::shared_ptr<Stream>> out;  // the last owner of one may not hold the lock
  MutexLock lock(mu_);
  for (const Entry* const entry : streams_) {
    if (to_tenant && !entry->of_tenant) continue;
    const bool over = now - entry->begun >= kTurn || now - entry->moved.load() >= kGrace;
    if (over) out.push_back(entry->stream.lock());
  }
  return out;
}

}  // namespace kvstow
