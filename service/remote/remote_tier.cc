#include "service/remote/remote_tier.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "service/remote/remote_answers.h"
#include "service/remote/remote_frame.h"
#include "service/spaces/space_record.h"

namespace kvstow {
namespace {

PageNumber LastNumber(Residency& residency) {
  const std::vector<PageRef> oldest_first = residency.PageRefs();
  return oldest_first.empty() ? 0 : oldest_first.back().number;
}

}  // namespace

RemoteTier::RemoteTier(Options options, std::unique_ptr<RemoteStore> remote,
                       std::shared_ptr<MasterKeys> masters, TieredStore& store,
                       const Spaces& spaces, Calibrations& calibrations, MakeColdForm cold)
    : options_(std::move(options)),
      owned_(std::move(remote)),
      remote_(owned_ == nullptr ? NoRemoteStore() : *owned_),
      store_(store),
      spaces_(spaces),
      last_from_disk_(remote_.holds_values() ? LastNumber(store.residency()) : 0),
      keys_(
          options_.prefix, remote_, std::move(masters),
          [this](const std::string& tenant) {
            for (const SpacePtr& space : spaces_.All()) {
              if (space->tenant == tenant) Publish(*space);
            }
          },
          counters_),
      calibrations_({.prefix = options_.prefix, .wait = options_.fetch_wait, .ttl = options_.ttl},
                    remote_, keys_, spaces, calibrations, counters_),
      records_(options_.prefix, remote_, counters_, *options_.clock),
      purge_(options_.prefix, remote_, keys_,
             {.dropped = std::bind_front(&RemoteTier::ForgetAllHere, this),
              .deleted =
                  [this](const SpacePtr& space, const std::string& key, RemotePurge::Pages pages) {
                    ForgetHere(space, key, pages);
                    // Before the first reading nothing was sent from here.
                    if (pages == RemotePurge::Pages::kAll) EraseThere(*space, key, 0);
                  },
              .current = std::bind_front(&RemoteTier::SaveEra, this)},
             counters_, *options_.clock),
      fetches_(
          {options_.prefix, options_.fetch_wait, options_.ahead_bytes}, remote_, records_, store,
          counters_, *options_.clock,
          [this](const Space& space, const std::string& key, const RemotePlace& place) {
            const auto era = purge_.Known(space);
            return era.has_value() && PlaceOf(space, *era, key).tag == place.tag &&
                   purge_.CountLive(space, {&key, 1}) == 1;
          },
          [this](const Space& space, const CalibrationId& id) {
            calibrations_.Want(space.tenant, id);
          }),
      sender_({.prefix = options_.prefix,
               .wait = options_.fetch_wait,
               .ttl = options_.ttl,
               .bytes_per_second = options_.bytes_per_second,
               .limit_of = options_.limit_of},
              remote_, purge_, store, spaces, std::move(cold), counters_) {}

RemoteTier::~RemoteTier() { calls_.EndAll(); }

FoundPage RemoteTier::Describe(const PageRecord& record) const {
  FoundPage page{.tokens = record.tokens,
                 .segments = static_cast<uint16_t>(record.facts.size()),
                 .remote = true};
  page.stored_bytes = StoredBytes(record);
  if (options_.count_levels != nullptr) {
    page.levels = options_.count_levels(record.header.span(), record.facts.size());
  }
  return page;
}

bool RemoteTier::Shares(const Space& space) const { return on() && !space.promise.is_private; }

bool RemoteTier::Calls::Begin() {
  MutexLock lock(mu_);
  if (!over_) ++calls_;
  return !over_;
}

void RemoteTier::Calls::End() {
  MutexLock lock(mu_);
  if (--calls_ == 0) ended_.NotifyAll();
}

void RemoteTier::Calls::EndAll() {
  MutexLock lock(mu_);
  over_ = true;
  while (calls_ > 0) ended_.Wait(mu_);
}

void RemoteTier::Flush() {
  calibrations_.Flush();
  sender_.Flush();
  purge_.Flush();
}

void RemoteTier::Extend(const SpacePtr& space, std::vector<std::string> keys,
                        std::function<void(std::vector<FoundPage>)> done) {
  if (keys.empty() || !Shares(*space) || !calls_.Begin()) return done({});
  if (keys.size() > kMostAsked) keys.resize(kMostAsked);
  counters_.asked_keys += keys.size();
  const Time deadline = options_.clock->Now() + options_.lookup_wait;
  purge_.Find(space, RemoteKeys::Use::kRead, deadline,
              [this, space, keys = std::move(keys), deadline,
               done = std::move(done)](const absl::StatusOr<RemoteEra>& era) {
                if (era.ok()) {
                  const auto live = std::span(keys).first(purge_.CountLive(*space, keys));
                  return Find(space, *era, live, deadline, done);
                }
                if (absl::IsUnavailable(era.status())) ++counters_.late_lookups;
                done({});
                calls_.End();
              });
}

void RemoteTier::Find(const SpacePtr& space, const RemoteEra& era,
                      std::span<const std::string> keys, Time deadline,
                      std::function<void(std::vector<FoundPage>)> done) {
  std::vector<RemoteRecords::Page> pages;
  pages.reserve(keys.size());
  for (const std::string& key : keys) pages.push_back({key, PlaceOf(*space, era, key)});
  records_.Find(pages, deadline,
                [this, space, pages, done = std::move(done)](std::vector<RemoteRecord> found) {
                  counters_.found_keys += found.size();
                  std::vector<FoundPage> out;
                  out.reserve(found.size());
                  for (const RemoteRecord& record : found) out.push_back(Describe(*record));
                  done(std::move(out));
                  for (size_t i = 0; i < found.size(); ++i) {
                    fetches_.Ahead(space, pages[i], found[i]);
                  }
                  calls_.End();
                });
}

absl::Status RemoteTier::Fetch(const Space& space, const std::string& key) {
  const SpacePtr shared = Shares(space) ? spaces_.Find(space.id) : nullptr;
  if (shared == nullptr) return absl::NotFoundError("the page is not stored");
  const Time deadline = options_.clock->Now() + options_.lookup_wait;
  const auto era = EraOf(purge_, shared, RemoteKeys::Use::kRead, deadline);
  absl::Status status = era.status();
  if (purge_.CountLive(space, {&key, 1}) == 0) {
    status = absl::NotFoundError("the page was deleted");
  } else if (era.ok()) {
    status = fetches_.Fetch(shared, {key, PlaceOf(space, *era, key)});
  }
  if (!status.ok()) ++counters_.missed_fetches;
  return status;
}

void RemoteTier::Publish(const Space& space) {
  if (!Shares(space) || !calls_.Begin()) return;
  Space nobodys = space;
  nobodys.id = 1;  // every server gives its own
  const Time deadline = options_.clock->Now() + options_.fetch_wait;
  keys_.Find(
      space.tenant, RemoteKeys::Use::kWrite, deadline,
      [this, tag = NameTagOf(space.tenant, space.name),
       record = SharedBytes::Take(SerializeSpace(nobodys)),
       deadline](const absl::StatusOr<RemoteKeyPtr>& key) {
        if (key.ok()) {
          const RemotePlace place = PlaceAt(tag, *key);
          const std::string name = SpaceName(options_.prefix, place.tag);
          purge_.Unerase(name);  // an older space may have had it
          std::vector<RemoteValue> values;
          values.push_back({name, FramedValue(place, RemoteKind::kSpace, 0, Digested(record))});
          remote_.Put(std::move(values), Duration(0), deadline,
                      [](const std::vector<absl::Status>&) {});
        }
        calls_.End();
      });
  calibrations_.Wake();
}

absl::StatusOr<SharedBytes> RemoteTier::FindSpace(const std::string& tenant,
                                                  const std::string& name) {
  if (!on()) return absl::NotFoundError("there is no remote tier");
  const Time deadline = options_.clock->Now() + options_.fetch_wait;
  const auto key = KeyOf(keys_, tenant, RemoteKeys::Use::kReadNow, deadline);
  if (!key.ok()) return absl::NotFoundError(key.status().message());
  const RemotePlace place = PlaceAt(NameTagOf(tenant, name), *key);
  RemoteAnswers<absl::StatusOr<SharedBytes>> answer;
  remote_.Get({SpaceName(options_.prefix, place.tag)}, deadline, answer.Take());
  const auto value = std::move(answer.Wait()[0]);
  if (!value.ok()) return absl::NotFoundError(value.status().message());
  absl::StatusOr<FramedBody> framed = OpenFramed(place, RemoteKind::kSpace, 0, *value);
  if (framed.ok()) return std::move(framed->body);
  // A record of a later version is somebody else's to read.
  if (absl::IsDataLoss(framed.status())) {
    ++counters_.damaged_values;
    remote_.Erase({SpaceName(options_.prefix, place.tag)}, deadline,
                  [](const std::vector<absl::Status>&) {});
  }
  return absl::NotFoundError(framed.status().message());
}

bool RemoteTier::MayFetch(const Space& space, const std::string& key) {
  if (!Shares(space)) return false;
  const std::optional<RemoteEra> era = purge_.Known(space);
  if (!era.has_value()) return true;
  const auto known = records_.Known(PlaceOf(space, *era, key).tag);
  return !known.has_value() || *known != nullptr;
}

void RemoteTier::Forget(const Space& space, const std::string& key, size_t segments) {
  const SpacePtr shared = Shares(space) ? spaces_.Find(space.id) : nullptr;
  if (shared == nullptr) return;
  purge_.Delete(space, key);
  // It may have come from there between its deletion and that word.
  ForgetHere(shared, key, RemotePurge::Pages::kAll);
  EraOf(purge_, shared, RemoteKeys::Use::kRead, options_.clock->Now() + options_.lookup_wait)
      .IgnoreError();
  EraseThere(space, key, segments);
}

void RemoteTier::Drop(const Space& space) {
  if (!Shares(space)) return;
  purge_.Drop(space);
  const std::optional<RemoteKeyPtr> key = keys_.Known(space.tenant);
  if (!key.has_value() || !calls_.Begin()) return;
  // Nobody is to open it by its name any more. At once: a space that is made next may have it.
  const std::string name =
      SpaceName(options_.prefix, PlaceAt(NameTagOf(space.tenant, space.name), *key).tag);
  remote_.Erase({name}, options_.clock->Now() + options_.fetch_wait,
                [this, name](const std::vector<absl::Status>& erased) {
                  if (!erased[0].ok()) purge_.Erase({name});
                  calls_.End();
                });
}

void RemoteTier::WatchTenants(std::span<const std::string> tenants) {
  keys_.Watch(tenants);
  if (!on()) return;
  calibrations_.Wake();
  absl::flat_hash_map<SpaceId, SavedEra> saved;
  for (const SpaceRecord& record : store_.recovered_spaces()) {
    saved[record.id] = EraOfSpace(record.bytes.span());
  }
  for (const SpacePtr& space : spaces_.All()) {
    if (Shares(*space)) purge_.Watch(space, saved[space->id]);
  }
}

absl::Status RemoteTier::RotateKey(const std::string& tenant) {
  if (!seals()) return absl::OkStatus();
  const absl::Status dropped = keys_.Drop(tenant);
  purge_.Flush();  // it meets the missing record
  purge_.Turn(tenant);
  return dropped;
}

absl::Status RemoteTier::DropTenant(const std::string& tenant, std::span<const SpacePtr> spaces) {
  if (!seals()) return absl::OkStatus();
  const Time deadline = options_.clock->Now() + options_.fetch_wait;
  const auto key = KeyOf(keys_, tenant, RemoteKeys::Use::kReadNow, deadline);
  if (key.ok()) {
    std::vector<std::string> names;
    for (const SpacePtr& space : spaces) {
      if (Shares(*space)) purge_.Drop(*space, /*ends=*/true);
      const RemotePlace place = PlaceAt(NameTagOf(tenant, space->name), *key);
      names.push_back(SpaceName(options_.prefix, place.tag));
    }
    purge_.Erase(std::move(names));
    purge_.Flush();  // the others are told, while they have the key
  }
  const absl::Status dropped = RotateKey(tenant);
  purge_.ForgetTenant(tenant);
  return dropped;
}

std::vector<MetricRow> RemoteTier::Rows() const {
  if (!on()) return {};
  const RemoteCounters& c = counters_;
  const RemoteKeys::Counts keys = keys_.counts();
  const RemoteStore::Counters s = remote_.counters();
  return {
      {"remote_asked_keys_total", "keys of look-ups that were not here", c.asked_keys},
      {"remote_found_keys_total", "of them, those that the remote tier had", c.found_keys},
      {"remote_late_lookups_total", "look-ups that the remote tier did not answer in time",
       c.late_lookups},
      {"remote_fetched_pages_total", "pages that came from the remote tier", c.fetched_pages},
      {"remote_fetched_bytes_total", "and their encoded bytes", c.fetched_bytes},
      {"remote_coarser_pages_total", "of them, those with fewer levels", c.coarser_pages},
      {"remote_missed_fetches_total", "pages that a get wanted and that did not come",
       c.missed_fetches},
      {"remote_sent_pages_total", "pages that were sent to the remote tier", c.sent_pages},
      {"remote_sent_bytes_total", "and their encoded bytes", c.sent_bytes},
      {"remote_already_there_total", "pages that another server had sent", c.already_there},
      {"remote_unsent_pages_total", "pages that could not be sent", c.unsent_pages},
      {"remote_over_budget_pages_total", "pages of tenants that sent all that they may",
       c.over_budget},
      {"remote_damaged_values_total", "values that failed a check", c.damaged_values},
      {"remote_unwritten_purges_total", "attempts to tell what was deleted here that failed",
       c.unwritten_purges},
      {"remote_sent_calibrations_total", "calibrations that were sent to the remote tier",
       c.sent_calibrations},
      {"remote_fetched_calibrations_total", "calibrations that came from there",
       c.fetched_calibrations},
      {"remote_keys", "tenants whose key in the remote store is in use here", keys.keys},
      {"remote_locked_keys", "tenants whose key there no master key here unwraps", keys.locked},
      {"remote_queued_pages", "pages that wait to be sent", sender_.queued()},
      {"remote_commands_total", "commands to the remote store", s.commands},
      {"remote_failed_commands_total", "commands that were not answered with a value", s.failed},
      {"remote_nodes", "nodes of the remote store", s.nodes},
      {"remote_connected_nodes", "nodes that the server is connected to", s.connected},
      {"remote_redirects_total", "answers that named another node", s.redirects},
      {"remote_reconnects_total", "connections that were opened again", s.reconnects},
      {"remote_refused_commands_total", "commands that were not sent", s.refused},
  };
}

// Returns whether the page is gone, if it was concerned at all.
bool RemoteTier::ForgetHere(const SpacePtr& space, const std::string& key,
                            RemotePurge::Pages pages) {
  const PageName name{.space = space->id, .key = key};
  if (pages == RemotePurge::Pages::kFromDisk) {
    const auto facts = store_.residency().Find(name);
    if (!facts.ok() || facts->number > last_from_disk_) return true;
  }
  const absl::Status deleted = store_.Delete(name, /*force=*/true);
  return deleted.ok() || absl::IsNotFound(deleted);
}

bool RemoteTier::ForgetAllHere(const SpacePtr& space, RemotePurge::Pages pages,
                               const std::function<bool()>& stopping) {
  bool gone = true;
  for (const PageName& page : store_.residency().Pages(space->id)) {
    if (stopping()) return false;
    gone = ForgetHere(space, page.key, pages) && gone;
  }
  return gone;
}

// Without the era, a restart drops what the disk has of the space: an error costs no more.
void RemoteTier::SaveEra(const SpacePtr& space, const SavedEra& era) {
  if (spaces_.Find(space->id) == nullptr) return;
  store_
      .SaveSpace({.id = space->id,
                  .bytes = SharedBytes::Take(SerializeSpace(*space, era)),
                  .tenant = space->tenant})
      .IgnoreError();
  // It may have been dropped meanwhile.
  if (spaces_.Find(space->id) == nullptr) store_.DropSpace(space->id).IgnoreError();
}

// Erases a page that has so many segments, or as many as are known of.
void RemoteTier::EraseThere(const Space& space, const std::string& key, size_t segments) {
  const std::optional<RemoteEra> era = purge_.Known(space);
  if (!era.has_value()) return;
  const RemoteTag tag = PlaceOf(space, *era, key).tag;
  if (const auto known = records_.Known(tag); known.has_value() && *known != nullptr) {
    segments = std::max(segments, (*known)->facts.size());
  }
  records_.Learn(tag, nullptr);
  std::vector<std::string> names = {RecordName(options_.prefix, tag)};
  for (size_t i = 0; i < segments; ++i) names.push_back(SegmentName(options_.prefix, tag, i));
  purge_.Erase(std::move(names));
}

}  // namespace kvstow
