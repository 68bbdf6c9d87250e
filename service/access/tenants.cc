#include "service/access/tenants.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"

namespace kvstow {
namespace {

constexpr double kMostWeight = 1e6;

TenantShare ShareOf(const TenantLimits& limits) {
  return {.limit = limits.limit,
          .guarantee = limits.guarantee,
          .weight = limits.weight,
          .pages = limits.pages};
}

}  // namespace

absl::Status CheckLimits(const TenantLimits& limits) {
  if (!(limits.weight > 0 && limits.weight <= kMostWeight)) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight is ", limits.weight, ": use more than 0 and at most ", kMostWeight));
  }
  for (const TierId t : kAllTiers) {
    const uint64_t limit = limits.limit[static_cast<size_t>(t)];
    const uint64_t guarantee = limits.guarantee[static_cast<size_t>(t)];
    if (limit == 0 || guarantee <= limit) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the guarantee of ", FormatSize(guarantee), " in ", TierName(t),
                     " is more than the limit there, ", FormatSize(limit)));
  }
  return absl::OkStatus();
}

TenantTable::TenantTable(const Clock& clock)
    : clock_(clock), streams_(std::make_shared<Streams>()) {
  MutexLock lock(mu_);
  At("");
}

TenantTable::Entry& TenantTable::At(const std::string& tenant) {
  const auto [it, is_new] = ids_.emplace(tenant, static_cast<TenantId>(entries_.size()));
  if (is_new) {
    Entry& entry = entries_.emplace_back();
    entry.row.tenant = tenant;
    entry.row.id = it->second;
    MutexLock lock(streams_->mu);
    streams_->open.push_back(0);
  }
  return entries_[it->second];
}

TenantId TenantTable::IdOf(const std::string& tenant) {
  MutexLock lock(mu_);
  return At(tenant).row.id;
}

void TenantTable::TellStore(Tell tell) {
  MutexLock telling(telling_);
  tell_ = std::move(tell);
  std::vector<TenantId> ids;
  {
    MutexLock lock(mu_);
    for (const Entry& entry : entries_) {
      if (entry.row.limits != TenantLimits()) ids.push_back(entry.row.id);
    }
  }
  TellShares(ids);
}

void TenantTable::TellShares(const std::vector<TenantId>& ids) {
  if (tell_ == nullptr || ids.empty()) return;
  std::vector<std::pair<TenantId, TenantShare>> shares;
  {
    MutexLock lock(mu_);
    for (const TenantId id : ids) shares.emplace_back(id, ShareOf(entries_[id].row.limits));
  }
  tell_(shares);
}

void TenantTable::SetLimits(const std::map<std::string, TenantLimits>& limits) {
  MutexLock telling(telling_);
  std::vector<TenantId> changed;
  {
    MutexLock lock(mu_);
    for (const auto& [tenant, unused] : limits) At(tenant);
    for (Entry& entry : entries_) {
      const auto it = limits.find(entry.row.tenant);
      const TenantLimits wanted = it == limits.end() ? TenantLimits() : it->second;
      if (wanted == entry.row.limits) continue;
      entry.row.limits = wanted;
      changed.push_back(entry.row.id);
    }
  }
  TellShares(changed);
}

absl::Status TenantTable::SetLimitsOf(const std::string& tenant, const TenantLimits& limits) {
  if (const absl::Status s = CheckLimits(limits); !s.ok()) return s;
  MutexLock telling(telling_);
  TenantId id;
  {
    MutexLock lock(mu_);
    Entry& entry = At(tenant);
    entry.row.limits = limits;
    id = entry.row.id;
  }
  TellShares({id});
  return absl::OkStatus();
}

TenantLimits TenantTable::LimitsOf(const std::string& tenant) const {
  MutexLock lock(mu_);
  const auto it = ids_.find(tenant);
  return it == ids_.end() ? TenantLimits() : entries_[it->second].row.limits;
}

absl::StatusOr<TenantTable::Stream> TenantTable::OpenStream(const std::string& tenant) {
  MutexLock lock(mu_);
  Entry& entry = At(tenant);
  const TenantId id = entry.row.id;
  const uint64_t limit = entry.row.limits.streams;
  MutexLock counting(streams_->mu);
  uint64_t& open = streams_->open[id];
  if (limit > 0 && open >= limit) {
    ++entry.row.refused;
    return absl::ResourceExhaustedError(absl::StrCat(
        "tenant '", tenant, "' has ", open, " streams, which is its limit: try again later"));
  }
  ++open;
  Stream stream;
  stream.place_ = std::shared_ptr<void>(nullptr, [streams = streams_, id](void*) {
    MutexLock counting(streams->mu);
    --streams->open[id];
  });
  return stream;
}

// A clock that goes back fills nothing, and counts from there.
void TenantTable::Fill(Bucket& bucket, uint64_t rate) {
  const Time now = clock_.Now();
  const auto full = static_cast<double>(rate);
  if (bucket.filled == Time{}) {
    bucket.left = full;
  } else if (now > bucket.filled) {
    const double seconds = std::chrono::duration<double>(now - bucket.filled).count();
    bucket.left += full * seconds;
  }
  bucket.left = std::min(bucket.left, full);
  bucket.filled = now;
}

absl::Status TenantTable::Refuse(Entry& entry, const Bucket& bucket, uint64_t rate,
                                 absl::string_view what) {
  ++entry.row.refused;
  const auto ms = static_cast<int64_t>(-bucket.left / static_cast<double>(rate) * 1e3) + 1;
  return absl::ResourceExhaustedError(absl::StrCat("tenant '", entry.row.tenant, "' may ", what,
                                                   " ", FormatSize(rate),
                                                   "/s, and has: try again in ", ms, " ms"));
}

absl::Status TenantTable::TakePut(const std::string& tenant, uint64_t payload_bytes) {
  MutexLock lock(mu_);
  Entry& entry = At(tenant);
  if (const uint64_t rate = entry.row.limits.put_bytes_per_second; rate > 0) {
    Fill(entry.puts, rate);
    if (entry.puts.left <= 0) return Refuse(entry, entry.puts, rate, "put");
    entry.puts.left -= static_cast<double>(payload_bytes);
  }
  entry.row.put_bytes += payload_bytes;
  return absl::OkStatus();
}

absl::Status TenantTable::CheckGet(const std::string& tenant) {
  MutexLock lock(mu_);
  Entry& entry = At(tenant);
  const uint64_t rate = entry.row.limits.get_bytes_per_second;
  if (rate == 0) return absl::OkStatus();
  Fill(entry.gets, rate);
  if (entry.gets.left <= 0) return Refuse(entry, entry.gets, rate, "get");
  return absl::OkStatus();
}

void TenantTable::TakeGet(const std::string& tenant, uint64_t payload_bytes) {
  MutexLock lock(mu_);
  Entry& entry = At(tenant);
  if (entry.row.limits.get_bytes_per_second > 0) {
    entry.gets.left -= static_cast<double>(payload_bytes);
  }
  entry.row.get_bytes += payload_bytes;
}

std::vector<TenantTable::Row> TenantTable::All() const {
  std::vector<Row> rows;
  MutexLock lock(mu_);
  MutexLock counting(streams_->mu);
  for (const Entry& entry : entries_) {
    rows.push_back(entry.row);
    rows.back().streams = streams_->open[entry.row.id];
  }
  return rows;
}

}  // namespace kvstow
