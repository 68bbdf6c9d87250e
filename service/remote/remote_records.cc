#include "service/remote/remote_records.h"

#include <algorithm>
#include <utility>

#include "service/remote/remote_page.h"

namespace kvstow {

std::optional<RemoteRecord> RemoteRecords::Known(const RemoteTag& tag) {
  const Time now = clock_.Now();
  MutexLock lock(mu_);
  const auto it = beliefs_.find(tag);
  if (it == beliefs_.end() || it->second.until <= now) return std::nullopt;
  return it->second.record;
}

void RemoteRecords::Learn(const RemoteTag& tag, RemoteRecord record) {
  const bool missed = record == nullptr;
  const Time now = clock_.Now(), until = now + (missed ? kMissedFor : kFoundFor);
  MutexLock lock(mu_);
  Order& order = missed ? missed_ : found_;
  order.emplace_back(until, tag);
  beliefs_[tag] = {std::move(record), until};
  if (order.size() > kMost) ForgetOldest(order);
  for (Order* const each : {&found_, &missed_}) {
    while (!each->empty() && each->front().first <= now) ForgetOldest(*each);
  }
}

void RemoteRecords::ForgetOldest(Order& order) {
  const auto& [until, tag] = order.front();
  const auto it = beliefs_.find(tag);
  // It may have been learnt again.
  if (it != beliefs_.end() && it->second.until == until) beliefs_.erase(it);
  order.pop_front();
}

// Returns nothing when nobody can say whether there is a record.
std::optional<RemoteRecord> RemoteRecords::Read(const Page& page,
                                                absl::StatusOr<SharedBytes> value) {
  if (absl::IsNotFound(value.status())) {
    Learn(page.place.tag, nullptr);
    return RemoteRecord();
  }
  if (!value.ok()) return std::nullopt;
  absl::StatusOr<PageRecord> record = ParseRecordValue(page.place, page.key, *value);
  if (record.ok()) {
    auto shared = std::make_shared<const PageRecord>(*std::move(record));
    Learn(page.place.tag, shared);
    return shared;
  }
  // A record of a later version is somebody else's to read.
  if (absl::IsDataLoss(record.status())) {
    ++counters_.damaged_values;
    remote_.Erase({RecordName(prefix_, page.place.tag)}, clock_.Now() + std::chrono::seconds(1),
                  [](const std::vector<absl::Status>&) {});
  }
  Learn(page.place.tag, nullptr);
  return RemoteRecord();
}

void RemoteRecords::Find(std::vector<Page> pages, Time deadline,
                         std::function<void(std::vector<RemoteRecord>)> done) {
  std::vector<RemoteRecord> records;
  std::vector<Page> unknown;   // to be asked for
  std::vector<size_t> places;  // of them in `records`
  std::vector<std::string> names;
  for (Page& page : pages) {
    std::optional<RemoteRecord> known = Known(page.place.tag);
    if (known.has_value() && *known == nullptr) break;
    if (!known.has_value()) {
      places.push_back(records.size());
      names.push_back(RecordName(prefix_, page.place.tag));
      unknown.push_back(std::move(page));
    }
    records.push_back(known.value_or(nullptr));
  }
  if (names.empty()) return done(std::move(records));
  remote_.Get(
      std::move(names), deadline,
      [this, records = std::move(records), unknown = std::move(unknown), places = std::move(places),
       done = std::move(done)](std::vector<absl::StatusOr<SharedBytes>> values) mutable {
        bool late = false;
        for (size_t i = 0; i < unknown.size(); ++i) {
          auto record = Read(unknown[i], std::move(values[i]));
          late = late || !record.has_value();
          records[places[i]] = std::move(record).value_or(nullptr);
        }
        if (late) ++counters_.late_lookups;
        records.erase(std::ranges::find(records, nullptr), records.end());
        done(std::move(records));
      });
}

}  // namespace kvstow
