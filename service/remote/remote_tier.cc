#include "service/remote/remote_tier.h"

#include <algorithm>
#include <utility>

namespace kvstow {

RemoteTier::RemoteTier(Options options, std::unique_ptr<RemoteStore> remote, TieredStore& store,
                       const Spaces& spaces, MakeColdForm cold)
    : options_(std::move(options)),
      owned_(std::move(remote)),
      remote_(owned_ == nullptr ? NoRemoteStore() : *owned_),
      spaces_(spaces),
      records_(options_.prefix, remote_, counters_, *options_.clock),
      fetches_({options_.prefix, options_.fetch_wait, options_.ahead_bytes}, remote_, records_,
               store, counters_, *options_.clock),
      sender_({.prefix = options_.prefix,
               .wait = options_.fetch_wait,
               .ttl = options_.ttl,
               .bytes_per_second = options_.bytes_per_second},
              remote_, records_, store, spaces, std::move(cold), counters_) {}

RemoteTier::~RemoteTier() {
  MutexLock lock(mu_);
  while (look_ups_ > 0) ended_.Wait(mu_);
}

FoundPage RemoteTier::Describe(const PageRecord& record) const {
  FoundPage page{.tokens = record.tokens,
                 .segments = static_cast<uint16_t>(record.facts.size()),
                 .remote = true};
  page.stored_bytes = record.header.size();
  for (const SegmentFacts& facts : record.facts) page.stored_bytes += facts.bytes;
  if (options_.count_levels != nullptr) {
    page.levels = options_.count_levels(record.header.span(), record.facts.size());
  }
  return page;
}

void RemoteTier::Extend(const std::shared_ptr<const Space>& space, std::vector<std::string> keys,
                        std::function<void(std::vector<FoundPage>)> done) {
  if (!on() || keys.empty() || space->promise.is_private) return done({});
  counters_.asked_keys += keys.size();
  std::vector<RemoteRecords::Page> pages;
  pages.reserve(keys.size());
  for (const std::string& key : keys) pages.push_back({key, TagOf(*space, key)});
  {
    MutexLock lock(mu_);
    ++look_ups_;
  }
  records_.Find(pages, options_.clock->Now() + options_.lookup_wait,
                [this, space, pages, done = std::move(done)](std::vector<RemoteRecord> found) {
                  counters_.found_keys += found.size();
                  std::vector<FoundPage> out;
                  out.reserve(found.size());
                  for (const RemoteRecord& record : found) out.push_back(Describe(*record));
                  done(std::move(out));
                  for (size_t i = 0; i < found.size(); ++i) {
                    fetches_.Ahead(space, pages[i].key, pages[i].tag, found[i]);
                  }
                  MutexLock lock(mu_);
                  if (--look_ups_ == 0) ended_.NotifyAll();
                });
}

absl::Status RemoteTier::Fetch(const Space& space, const std::string& key) {
  const auto shared = on() && !space.promise.is_private ? spaces_.Find(space.id) : nullptr;
  if (shared == nullptr) return absl::NotFoundError("the page is not stored");
  const absl::Status status = fetches_.Fetch(shared, key, TagOf(space, key));
  if (!status.ok()) ++counters_.missed_fetches;
  return status;
}

bool RemoteTier::MayFetch(const Space& space, const std::string& key) {
  if (!on() || space.promise.is_private) return false;
  const auto known = records_.Known(TagOf(space, key));
  return !known.has_value() || *known != nullptr;
}

void RemoteTier::Forget(const Space& space, const std::string& key, size_t segments) {
  if (!on() || space.promise.is_private) return;
  const RemoteTag tag = TagOf(space, key);
  if (const auto known = records_.Known(tag); known.has_value() && *known != nullptr) {
    segments = std::max(segments, (*known)->facts.size());
  }
  records_.Learn(tag, nullptr);
  std::vector<std::string> names = {RecordName(options_.prefix, tag)};
  for (size_t i = 0; i < segments; ++i) names.push_back(SegmentName(options_.prefix, tag, i));
  remote_.Erase(std::move(names), options_.clock->Now() + std::chrono::seconds(1),
                [](const std::vector<absl::Status>&) {});
}

}  // namespace kvstow
