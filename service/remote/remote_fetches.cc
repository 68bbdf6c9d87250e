#include "service/remote/remote_fetches.h"

#include <utility>

#include "kernels/page/encoded_page.h"
#include "service/remote/remote_page.h"

namespace kvstow {

// One page on its way. The maker owns it until it asks; then the store's thread, and a worker.
struct RemoteFetches::Flight {
  const SpacePtr space;
  const std::string key;
  const RemotePlace place;
  const Time deadline;
  RemoteRecord record = nullptr;
  uint64_t bytes = 0;  // counted in ahead_
  bool landed = false;
  absl::Status status = absl::OkStatus();
};

namespace {

absl::Status NotThere() { return absl::NotFoundError("the page is not stored"); }

}  // namespace

RemoteFetches::~RemoteFetches() {
  MutexLock lock(mu_);
  while (!flights_.empty()) landed_.Wait(mu_);
}

RemoteFetches::FlightPtr RemoteFetches::Join(const SpacePtr& space, const RemoteRecords::Page& page,
                                             bool& is_new) {
  MutexLock lock(mu_);
  FlightPtr& flight = flights_[page.place.tag];
  is_new = flight == nullptr;
  if (is_new) {
    flight =
        std::make_shared<Flight>(Flight{space, page.key, page.place, clock_.Now() + options_.wait});
  }
  return flight;
}

void RemoteFetches::Ahead(const SpacePtr& space, const RemoteRecords::Page& page,
                          const RemoteRecord& record) {
  {
    MutexLock lock(mu_);
    if (ahead_ + StoredBytes(*record) > options_.ahead_bytes) return;
  }
  bool is_new = false;
  const FlightPtr flight = Join(space, page, is_new);
  if (is_new) AskForSegments(flight, record);
}

absl::Status RemoteFetches::Fetch(const SpacePtr& space, const RemoteRecords::Page& page) {
  const std::optional<RemoteRecord> known = records_.Known(page.place.tag);
  if (known.has_value() && *known == nullptr) return NotThere();
  bool is_new = false;
  const FlightPtr flight = Join(space, page, is_new);
  if (is_new) {
    // Another fetch may have ended since the caller looked.
    if (store_.residency().Find({.space = space->id, .key = page.key}).ok()) {
      Land(flight, absl::OkStatus());
    } else {
      known.has_value() ? AskForSegments(flight, *known) : FindRecord(flight);
    }
  }
  MutexLock lock(mu_);
  while (!flight->landed) landed_.Wait(mu_);
  return flight->status;
}

void RemoteFetches::FindRecord(const FlightPtr& flight) {
  records_.Find({{flight->key, flight->place}}, flight->deadline,
                [this, flight](const std::vector<RemoteRecord>& found) {
                  if (found.empty()) return Land(flight, NotThere());
                  AskForSegments(flight, found[0]);
                });
}

void RemoteFetches::AskForSegments(const FlightPtr& flight, RemoteRecord record) {
  flight->record = std::move(record);
  {
    MutexLock lock(mu_);
    ahead_ += flight->bytes = StoredBytes(*flight->record);
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < flight->record->facts.size(); ++i) {
    names.push_back(SegmentName(options_.prefix, flight->place.tag, i));
  }
  remote_.Get(std::move(names), flight->deadline,
              [this, flight](std::vector<absl::StatusOr<SharedBytes>> values) {
                auto shared = std::make_shared<decltype(values)>(std::move(values));
                workers_.Submit([=, this] { Enter(flight, std::move(*shared)); });
              });
}

void RemoteFetches::Enter(const FlightPtr& flight,
                          std::vector<absl::StatusOr<SharedBytes>> values) {
  absl::StatusOr<PageToStore> page = PageOf(*flight, std::move(values));
  // Two servers sent the page at once, and differently, or the remote store forgot a part of it:
  // somebody sends it again.
  if (absl::IsAborted(page.status())) {
    remote_.Erase({RecordName(options_.prefix, flight->place.tag)}, flight->deadline,
                  [](const std::vector<absl::Status>&) {});
  }
  absl::Status status = absl::IsAborted(page.status()) ? NotThere() : page.status();
  if (page.ok()) status = Put(*flight, *std::move(page));
  // What was believed of the page is out of date; but a full queue says nothing of it.
  const bool refused = !page.ok() && absl::IsResourceExhausted(status);
  if (!status.ok() && !refused) records_.Learn(flight->place.tag, nullptr);
  Land(flight, status);
}

// Returns the page with the segments that came. ABORTED: it is not there as its record says.
absl::StatusOr<PageToStore> RemoteFetches::PageOf(const Flight& flight,
                                                  std::vector<absl::StatusOr<SharedBytes>> values) {
  const PageRecord& record = *flight.record;
  PageToStore page;
  absl::Status missing;
  for (size_t i = 0; i < values.size() && missing.ok(); ++i) {
    auto body = std::move(values[i]);
    if (body.ok()) body = ParseSegmentValue(flight.place, i, record.facts[i], *body);
    if (absl::IsDataLoss(body.status())) {
      ++counters_.damaged_values;
      remote_.Erase({SegmentName(options_.prefix, flight.place.tag, i)}, flight.deadline,
                    [](const std::vector<absl::Status>&) {});
    }
    missing = body.status();
    if (!body.ok()) break;
    counters_.fetched_bytes += body->size();
    page.bodies.push_back(*std::move(body));
    page.facts.push_back(record.facts[i]);
  }
  if (page.bodies.empty() || (record.whole && !missing.ok())) {
    const bool gone = absl::IsNotFound(missing) || absl::IsDataLoss(missing);
    return gone ? absl::AbortedError(missing.message()) : missing;
  }
  if (!missing.ok()) ++counters_.coarser_pages;
  page.name = {.space = flight.space->id, .key = flight.key};
  page.header = record.header;
  page.raw_digest = record.raw_digest;
  page.raw_bytes = record.raw_bytes;
  page.first_position = record.first_position;
  page.tokens = record.tokens;
  page.whole = record.whole;
  return page;
}

absl::Status RemoteFetches::Put(const Flight& flight, PageToStore page) {
  const SharedBytes header_bytes = page.header;
  const PageName name = page.name;
  const absl::StatusOr<PutOutcome> stored = store_.Put(std::move(page));
  if (!stored.ok()) return stored.status();
  ++counters_.fetched_pages;
  const auto header = ParsePageHeader(header_bytes.span());
  if (header.ok() && header->calibration != CalibrationId{}) {
    needs_(*flight.space, header->calibration);
  }
  // It may have been deleted meanwhile. Whoever deletes says so first, and deletes then: either way
  // the page goes. A page that was here before is somebody else's.
  if (wanted_(*flight.space, flight.key, flight.place)) return absl::OkStatus();
  if (*stored == PutOutcome::kStored) store_.Delete(name, /*force=*/true).IgnoreError();
  return NotThere();
}

void RemoteFetches::Land(const FlightPtr& flight, const absl::Status& status) {
  MutexLock lock(mu_);
  flight->landed = true;
  flight->status = status;
  ahead_ -= flight->bytes;
  flights_.erase(flight->place.tag);
  landed_.NotifyAll();
}

}  // namespace kvstow
