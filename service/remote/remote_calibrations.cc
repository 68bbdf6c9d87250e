#include "service/remote/remote_calibrations.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "service/remote/remote_answers.h"
#include "service/remote/remote_frame.h"
#include "service/spaces/space_recipe.h"

namespace kvstow {
namespace {

constexpr size_t kPartsAtOnce = 4;
constexpr Duration kAfterRefusal = std::chrono::hours(1);
constexpr uint32_t kLeastPart = 1 << 10;  // else a small value could name very many parts

// What says that a blob is there.
struct Manifest {
  uint64_t bytes = 0;
  uint32_t part_bytes = 0;
};

SharedBytes ManifestBody(const Manifest& manifest) {
  ByteWriter out;
  out.Put(manifest.bytes);
  out.Put(manifest.part_bytes);
  return SharedBytes::Take(std::move(out).Take());
}

absl::StatusOr<Manifest> ParseManifest(const RemotePlace& place, const SharedBytes& value) {
  KVSTOW_ASSIGN_OR_RETURN(const FramedBody framed,
                          OpenFramed(place, RemoteKind::kCalibration, 0, value));
  ByteReader in(framed.body.span());
  Manifest out;
  out.bytes = in.Get<uint64_t>();
  out.part_bytes = in.Get<uint32_t>();
  if (!in.ok() || in.remaining() != 0 || out.bytes > Calibrations::kMaxTablesBytes ||
      out.part_bytes < kLeastPart) {
    return absl::DataLossError("a remote calibration says impossible sizes of itself");
  }
  return out;
}

absl::StatusOr<Manifest> ReadManifest(RemoteStore& remote, const RemotePlace& place,
                                      const std::string& prefix, Time deadline) {
  RemoteAnswers<absl::StatusOr<SharedBytes>> read;
  remote.Get({CalibrationName(prefix, place.tag)}, deadline, read.Take());
  KVSTOW_ASSIGN_OR_RETURN(const SharedBytes value, std::move(read.Wait()[0]));
  return ParseManifest(place, value);
}

// Says whether tables that pages of the tenant name would be kept here, by what they say of
// themselves. Their parts may be large.
absl::Status CheckTables(const absl::StatusOr<Manifest>& manifest, const std::string& tenant,
                         const Calibrations& calibrations) {
  KVSTOW_RETURN_IF_ERROR(manifest.status());
  KVSTOW_RETURN_IF_ERROR(calibrations.CanKeep(tenant));
  const uint64_t room = calibrations.RoomFor(FitName{});
  if (manifest->bytes <= room) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "tables of ", manifest->bytes, " bytes that another server fitted: there is room for ", room,
      ": drop spaces that nobody needs"));
}

CalibrationId IdOf(absl::string_view blob) {
  const Sha256Digest digest = Sha256(AsBytes(blob));
  CalibrationId id;
  std::copy_n(digest.begin(), id.size(), id.begin());
  return id;
}

}  // namespace

RemoteCalibrations::RemoteCalibrations(Options options, RemoteStore& remote, RemoteKeys& keys,
                                       const Spaces& spaces, Calibrations& calibrations,
                                       RemoteCounters& counters)
    : options_(std::move(options)),
      remote_(remote),
      keys_(keys),
      spaces_(spaces),
      calibrations_(calibrations),
      counters_(counters) {
  if (remote_.holds_values()) thread_ = std::thread([this] { Loop(); });
}

RemoteCalibrations::~RemoteCalibrations() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void RemoteCalibrations::Wake() {
  MutexLock lock(mu_);
  ++asked_;
  changed_.NotifyAll();
}

void RemoteCalibrations::Flush() {
  if (!thread_.joinable()) return;
  MutexLock lock(mu_);
  const uint64_t until = ++asked_;
  changed_.NotifyAll();
  while (!stop_ && looked_ < until) changed_.Wait(mu_);
}

bool RemoteCalibrations::stopping() {
  MutexLock lock(mu_);
  return stop_;
}

void RemoteCalibrations::Loop() {
  for (;;) {
    {
      MutexLock lock(mu_);
      const Time until = Clock::Real().Now() + kEvery;
      for (Time now; !stop_ && asked_ == looked_ && (now = Clock::Real().Now()) < until;) {
        changed_.WaitFor(mu_, until - now);
      }
      if (stop_) return;
      begun_ = asked_;
    }
    Look();
    MutexLock lock(mu_);
    looked_ = begun_;
    changed_.NotifyAll();
  }
}

void RemoteCalibrations::Want(const std::string& tenant, const CalibrationId& id) {
  if (calibrations_.store().Find(id) != nullptr) return;
  MutexLock lock(mu_);
  if (wanted_.size() >= kMostWanted) wanted_.clear();  // whose pages are asked for says so again
  if (!wanted_.emplace(tenant, id).second) return;
  ++asked_;
  changed_.NotifyAll();
}

// Returns what spaces name that are open here, in their recipes or in what was fitted to them, and
// what pages were found to need.
std::set<RemoteCalibrations::Wanted> RemoteCalibrations::Named() {
  std::set<Wanted> all;
  for (const auto& space : spaces_.All()) {
    if (space->promise.is_private) continue;
    std::vector<CalibrationId> ids = NamedCalibrations(space->pipeline);
    if (const auto fitted = space->fitted == nullptr ? nullptr : space->fitted->codec()) {
      for (const CalibrationId& id : NamedCalibrations(fitted->recipe().pipeline())) {
        ids.push_back(id);
      }
    }
    for (const CalibrationId& id : ids) all.emplace(space->tenant, id);
  }
  MutexLock lock(mu_);
  std::erase_if(wanted_, [&](const Wanted& wanted) {
    return calibrations_.store().Find(wanted.second) != nullptr;
  });
  all.insert(wanted_.begin(), wanted_.end());
  return all;
}

// Sends what is here, and fetches what is not.
void RemoteCalibrations::Look() {
  const std::set<Wanted> all = Named();
  for (const Wanted& wanted : all) {
    if (stopping()) return;
    const bool here = calibrations_.store().Find(wanted.second) != nullptr;
    // For what is not here it is the time of a refusal.
    const auto refused = here ? sent_.end() : sent_.find(wanted);
    if (refused != sent_.end() && Clock::Real().Now() - refused->second < kAfterRefusal) continue;
    const absl::Status done = here ? Send(wanted) : FetchOne(wanted);
    if (!here && absl::IsAborted(done)) sent_[wanted] = Clock::Real().Now();
    if (!done.ok() && here) {
      Log().warn("remote: calibration {} is not sent yet: {}", HexOf(wanted.second),
                 std::string(done.message()));
    }
  }
}

absl::StatusOr<RemotePlace> RemoteCalibrations::PlaceOf(const Wanted& wanted, RemoteKeys::Use use) {
  KVSTOW_ASSIGN_OR_RETURN(RemoteKeyPtr key,
                          KeyOf(keys_, wanted.first, use, Clock::Real().Now() + options_.wait));
  return PlaceAt(CalibrationTagOf(wanted.first, wanted.second), std::move(key));
}

std::vector<std::string> RemoteCalibrations::PartNames(const RemotePlace& place, uint64_t bytes,
                                                       uint32_t part_bytes) const {
  std::vector<std::string> out;
  for (uint64_t at = 0; at < bytes; at += part_bytes) {
    out.push_back(CalibrationPartName(options_.prefix, place.tag, out.size()));
  }
  return out;
}

// Returns whether all values of the calibration are there.
bool RemoteCalibrations::IsThere(const RemotePlace& place) {
  const Time deadline = Clock::Real().Now() + options_.wait;
  const absl::StatusOr<Manifest> manifest = ReadManifest(remote_, place, options_.prefix, deadline);
  if (!manifest.ok()) return false;
  RemoteAnswers<absl::Status> there;
  remote_.Exists(PartNames(place, manifest->bytes, manifest->part_bytes), deadline, there.Take());
  return std::ranges::all_of(there.Wait(), [](const absl::Status& one) { return one.ok(); });
}

absl::Status RemoteCalibrations::Write(std::vector<RemoteValue> values) {
  RemoteAnswers<absl::Status> written;
  remote_.Put(std::move(values), options_.ttl, Clock::Real().Now() + options_.wait, written.Take());
  absl::Status all;
  for (const absl::Status& one : written.Wait()) all.Update(one);
  return all;
}

// Sends a calibration that the remote store lacks. What says that it is there goes last.
absl::Status RemoteCalibrations::Send(const Wanted& wanted) {
  KVSTOW_ASSIGN_OR_RETURN(const RemotePlace place, PlaceOf(wanted, RemoteKeys::Use::kWrite));
  const auto sent = sent_.find(wanted);
  const bool fades = options_.ttl > Duration(0) && sent != sent_.end() &&
                     Clock::Real().Now() - sent->second > options_.ttl / 2;
  if (!fades && IsThere(place)) return absl::OkStatus();
  KVSTOW_ASSIGN_OR_RETURN(const SharedBytes blob, calibrations_.Blob(wanted.second));
  const std::vector<std::string> names = PartNames(place, blob.size(), options_.part_bytes);
  for (size_t i = 0; i < names.size(); ++i) {
    if (stopping()) return absl::CancelledError("the server stops");
    const size_t at = i * options_.part_bytes;
    SharedBytes part = blob.Slice(at, std::min<size_t>(options_.part_bytes, blob.size() - at));
    std::vector<RemoteValue> values;
    values.push_back(
        {names[i], FramedValue(place, RemoteKind::kCalibrationPart, i, Digested(std::move(part)))});
    KVSTOW_RETURN_IF_ERROR(Write(std::move(values)));
  }
  std::vector<RemoteValue> manifest;
  manifest.push_back({CalibrationName(options_.prefix, place.tag),
                      FramedValue(place, RemoteKind::kCalibration, 0,
                                  Digested(ManifestBody({blob.size(), options_.part_bytes})))});
  KVSTOW_RETURN_IF_ERROR(Write(std::move(manifest)));
  sent_[wanted] = Clock::Real().Now();
  ++counters_.sent_calibrations;
  Log().info("remote: calibration {} was sent, {} bytes", HexOf(wanted.second), blob.size());
  return absl::OkStatus();
}

size_t RemoteCalibrations::Fetch(const std::string& tenant, absl::string_view recipe) {
  size_t came = 0;
  for (const CalibrationId& id : NamedCalibrations(recipe)) {
    if (calibrations_.store().Find(id) == nullptr && FetchOne({tenant, id}).ok()) ++came;
  }
  return came;
}

absl::StatusOr<std::string> RemoteCalibrations::Read(const RemotePlace& place) {
  KVSTOW_ASSIGN_OR_RETURN(
      const Manifest manifest,
      ReadManifest(remote_, place, options_.prefix, Clock::Real().Now() + options_.wait));
  const std::vector<std::string> names = PartNames(place, manifest.bytes, manifest.part_bytes);
  std::string blob;
  for (size_t i = 0; i < names.size(); i += kPartsAtOnce) {
    if (stopping()) return absl::CancelledError("the server stops");
    const size_t end = std::min(names.size(), i + kPartsAtOnce);
    RemoteAnswers<absl::StatusOr<SharedBytes>> read;
    remote_.Get(
        {names.begin() + static_cast<ptrdiff_t>(i), names.begin() + static_cast<ptrdiff_t>(end)},
        Clock::Real().Now() + options_.wait, read.Take());
    const auto values = read.Wait();
    for (size_t k = 0; k < values.size(); ++k) {
      KVSTOW_RETURN_IF_ERROR(values[k].status());
      KVSTOW_ASSIGN_OR_RETURN(const FramedBody part,
                              OpenFramed(place, RemoteKind::kCalibrationPart, i + k, *values[k]));
      absl::StrAppend(&blob, AsString(part.body.span()));
      if (blob.size() > manifest.bytes)
        return absl::DataLossError("a remote calibration is longer than it says");
    }
  }
  return blob;
}

// Counts what failed a check, and erases what says that it is there: whoever has it sends it again.
// ABORTED: all of it came, and is refused here.
absl::Status RemoteCalibrations::FetchOne(const Wanted& wanted) {
  KVSTOW_ASSIGN_OR_RETURN(const RemotePlace place, PlaceOf(wanted, RemoteKeys::Use::kReadNow));
  if (!calibrations_.BeginSending()) {
    return absl::ResourceExhaustedError("other calibrations come now: try again later");
  }
  const auto of_pages = [&] {
    MutexLock lock(mu_);
    return wanted_.contains(wanted);
  };
  absl::Status wants;
  if (of_pages()) {
    const Time deadline = Clock::Real().Now() + options_.wait;
    wants = CheckTables(ReadManifest(remote_, place, options_.prefix, deadline), wanted.first,
                        calibrations_);
  }
  absl::StatusOr<std::string> blob = wants.ok() ? Read(place) : wants;
  if (blob.ok() && IdOf(*blob) != wanted.second) {
    blob = absl::DataLossError("a remote calibration has another SHA-256 than its name");
  }
  absl::Status added = blob.status();
  if (blob.ok()) added = calibrations_.AddOf(wanted.first, AsBytes(*blob)).status();
  if (blob.ok() && !added.ok()) added = absl::AbortedError(added.message());
  calibrations_.EndSending();
  if (absl::IsDataLoss(blob.status())) {
    ++counters_.damaged_values;
    remote_.Erase({CalibrationName(options_.prefix, place.tag)},
                  Clock::Real().Now() + options_.wait, [](const std::vector<absl::Status>&) {});
  }
  if (added.ok()) {
    ++counters_.fetched_calibrations;
  } else if (!absl::IsNotFound(added)) {
    Log().warn("remote: calibration {} does not come: {}", HexOf(wanted.second),
               std::string(added.message()));
  }
  return added;
}

}  // namespace kvstow
