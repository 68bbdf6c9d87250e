#include "service/operators/kv_operator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "proto/wire/spec.h"
#include "service/spaces/messages.h"

namespace kvstow {
namespace {

template <typename Keys>
absl::Status CheckKeys(const Keys& keys) {
  if (keys.size() > kMaxKeysPerCall) {
    return absl::InvalidArgumentError(absl::StrCat("keys: ", keys.size(), " are too many, at most ",
                                                   kMaxKeysPerCall, " in one call"));
  }
  size_t i = 0;
  for (const absl::string_view key : keys) {
    if (key.empty() || key.size() > kMaxKeyBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("keys[", i, "] has ", key.size(), " bytes: a key has 1 to ", kMaxKeyBytes));
    }
    ++i;
  }
  return absl::OkStatus();
}

void Add(const StoreUsage& part, StoreUsage& sum) {
  for (size_t t = 0; t < sum.tiers.size(); ++t) {
    sum.tiers[t].encoded_bytes += part.tiers[t].encoded_bytes;
    sum.tiers[t].raw_bytes += part.tiers[t].raw_bytes;
    sum.tiers[t].pages += part.tiers[t].pages;
    sum.tiers[t].segments += part.tiers[t].segments;
  }
  sum.pages += part.pages;
  sum.raw_bytes += part.raw_bytes;
  sum.encoded_bytes += part.encoded_bytes;
  sum.pinned_pages += part.pinned_pages;
}

// Returns the pages of a prompt as LiveReuse knows them.
std::vector<uint64_t> PagesOf(const Space& space, std::span<const absl::string_view> keys) {
  constexpr uint64_t kOddConstant = 0x9e3779b97f4a7c15;  // spaces share no pages
  std::vector<uint64_t> pages;
  pages.reserve(keys.size());
  for (const absl::string_view key : keys) {
    pages.push_back(Xxh3(AsBytes(key)) ^ space.id * kOddConstant);
  }
  return pages;
}

// Tells of a space of recipe `auto` in a row or a message of its own.
template <typename Message>
void TellFitted(const Space& space, const Calibrations& calibrations, Message& message) {
  if (space.fitted == nullptr) return;
  v1::FittedForm& out = *message.mutable_fitted();
  const FittedForm::State state = space.fitted->state();
  out.set_target(space.fitted->target());
  out.set_recipe(state.recipe);
  out.set_ratio(state.ratio);
  out.set_divergence(state.divergence);
  out.set_tokens(state.tokens);
  out.set_fits(state.fits);
  out.set_note(state.note);
  out.set_statistics(calibrations.StatisticsOf(FitNameOf(space)) != nullptr);
}

void ToProto(const ReuseEstimate& estimate, v1::Reuse& out) {
  out.set_references(estimate.references);
  out.set_distinct_pages(estimate.distinct_pages);
  out.set_infinite_hit_rate(estimate.infinite_hit_rate);
  out.set_sampled(estimate.sampled);
  for (const ReusePoint& point : estimate.curve) {
    v1::ReusePoint& row = *out.add_curve();
    row.set_raw_bytes(point.raw_bytes);
    row.set_hit_rate(point.hit_rate);
  }
}

}  // namespace

absl::Status KvOperator::OpenSpace(const Caller& caller, const v1::OpenSpaceRequest& in,
                                   v1::OpenSpaceResponse& out) {
  SpaceToOpen request{.name = in.space(), .spec = {}, .recipe = in.recipe(), .fidelity = {}};
  if (in.has_spec()) {
    KVSTOW_ASSIGN_OR_RETURN(request.spec, FromProto(in.spec()));
  }
  KVSTOW_ASSIGN_OR_RETURN(request.fidelity, FidelityFromProto(in.fidelity()));
  if (in.has_is_private()) request.is_private = in.is_private();
  if (!in.queries().empty() && in.queries().size() != sizeof(CalibrationId)) {
    return absl::InvalidArgumentError(absl::StrCat("queries: ", in.queries().size(),
                                                   " bytes; the name of a calibration has ",
                                                   sizeof(CalibrationId)));
  }
  request.queries = HexOf(AsBytes(in.queries()));
  request.normed_keys = in.normed_keys();
  absl::StatusOr<Spaces::Opened> result = spaces_.Open(caller, request);
  if (absl::IsResourceExhausted(result.status()) &&
      DropIdleSpaces(Duration(0), 1, &caller.tenant) > 0) {
    result = spaces_.Open(caller, request);
  }
  if (absl::IsNotFound(result.status()) && !in.has_spec()) {
    result = OpenPublished(caller, in.space(), std::move(result));
  }
  if (absl::IsFailedPrecondition(result.status()) && BringCalibrations(caller, request)) {
    result = spaces_.Open(caller, request);
  }
  KVSTOW_ASSIGN_OR_RETURN(const Spaces::Opened opened, std::move(result));
  if (opened.created) remote_.Publish(*opened.space);
  const Space& space = *opened.space;
  out.set_fingerprint(space.fingerprint.data(), space.fingerprint.size());
  out.set_created(opened.created);
  ToProto(space.spec, *out.mutable_spec());
  out.set_recipe(space.recipe);
  out.set_pipeline(space.pipeline);
  out.set_put_pipeline(space.codec->recipe().pipeline());
  out.set_fidelity(FidelityToProto(space.promise.fidelity));
  out.set_raw_bytes_per_token(BytesPerToken(space.spec));
  out.set_is_private(space.promise.is_private);
  out.set_levels((space.cold != nullptr ? space.cold : space.codec)->levels());
  out.set_wants_statistics(fits_ && space.fitted != nullptr &&
                           calibrations_.StatisticsOf(FitNameOf(space)) == nullptr);
  return absl::OkStatus();
}

absl::Status KvOperator::SendStatistics(const Caller& caller,
                                        const v1::SendStatisticsRequest& first,
                                        const std::string& blob, v1::SendStatisticsResponse& out) {
  KVSTOW_ASSIGN_OR_RETURN(
      const auto space, spaces_.Find(caller, first.space(), first.fingerprint(), SpaceUse::kWrite));
  if (space->fitted == nullptr || !fits_) {
    return absl::FailedPreconditionError(
        absl::StrCat("space '", space->name, "': nothing uses statistics of its model: ",
                     fits_ ? absl::StrCat("its recipe is ", space->recipe, ", not auto")
                           : "this server fits no cold forms (fit-bytes is 0)"));
  }
  KVSTOW_ASSIGN_OR_RETURN(
      const Calibrations::Added added,
      calibrations_.TakeStatistics(FitOwnerOf(*space), space->spec, AsBytes(blob)));
  out.set_already_there(added.already_there);
  return absl::OkStatus();
}

// Opens a space that another server published under this name; else returns `not_there`.
absl::StatusOr<Spaces::Opened> KvOperator::OpenPublished(const Caller& caller,
                                                         const std::string& name,
                                                         absl::StatusOr<Spaces::Opened> not_there) {
  const auto record = remote_.FindSpace(spaces_.OwnerOf(caller, name), name);
  if (!record.ok()) return not_there;
  const auto request = spaces_.RequestOf(record->span());
  if (!request.ok() || request->name != name) return not_there;
  remote_.FetchCalibrations(spaces_.OwnerOf(caller, name), request->recipe);
  return spaces_.Open(caller, *request);
}

// Fetches calibrations that a space lacks: those that the request names, that the space here names,
// or that the space of this name on another server names. Returns whether any came.
bool KvOperator::BringCalibrations(const Caller& caller, const SpaceToOpen& request) {
  if (!remote_.on()) return false;
  const std::string owner = spaces_.OwnerOf(caller, request.name);
  size_t came = remote_.FetchCalibrations(owner, request.recipe);
  const auto here = spaces_.Find(caller, request.name);
  if (here.ok()) came += remote_.FetchCalibrations(owner, (*here)->pipeline);
  if (came > 0 || here.ok()) return came > 0;
  const auto record = remote_.FindSpace(owner, request.name);
  if (!record.ok()) return false;
  const auto there = spaces_.RequestOf(record->span());
  return there.ok() && remote_.FetchCalibrations(owner, there->recipe) > 0;
}

absl::StatusOr<PrefixMatch> KvOperator::Lookup(const Caller& caller, const LookupQuery& query,
                                               absl::FunctionRef<CallIds()> ids) {
  const Time begin = Clock::Real().Now();
  absl::StatusOr<PrefixMatch> match = Find(caller, query);
  const Time end = Clock::Real().Now();
  metrics_.calls().Note("Lookup", query.space, absl::StatusCodeToString(match.status().code()),
                        end - begin, end, ids);
  return match;
}

absl::StatusOr<PrefixMatch> KvOperator::Find(const Caller& caller, const LookupQuery& query) {
  KVSTOW_ASSIGN_OR_RETURN(const auto space,
                          spaces_.Find(caller, query.space, query.fingerprint, SpaceUse::kRead));
  KVSTOW_RETURN_IF_ERROR(CheckKeys(query.keys));
  PrefixMatch match =
      store_.residency().Lookup(space->id, query.keys, query.lease, HolderOf(caller));
  metrics_.CountLookup(query.keys.size(), match.pages.size(), match.tokens());
  space->counters->lookup_keys += query.keys.size();
  space->counters->lookup_hit_keys += match.pages.size();
  if (match.lease_refused) metrics_.CountRefusedCall("leases");
  // All pages count as full ones.
  Prompt prompt{.pages = PagesOf(*space, query.keys),
                .raw_bytes = static_cast<uint32_t>(PageBytes(space->spec, space->spec.page_tokens)),
                .time = Clock::Real().Now()};
  MutexLock lock(mu_);
  prompts_.push_back(std::move(prompt));
  return match;
}

void KvOperator::Extend(const Caller& caller, const LookupQuery& query, PrefixMatch match,
                        std::function<void(const PrefixMatch&)> done) {
  if (!remote_.on() || match.pages.size() == query.keys.size()) return done(match);
  const auto space = spaces_.Find(caller, query.space, query.fingerprint, SpaceUse::kRead);
  if (!space.ok()) return done(match);  // it was just dropped
  std::vector<std::string> rest;
  for (size_t i = match.pages.size(); i < query.keys.size(); ++i) {
    rest.emplace_back(query.keys[i]);
  }
  remote_.Extend(*space, std::move(rest),
                 [match = std::move(match),
                  done = std::move(done)](const std::vector<FoundPage>& more) mutable {
                   match.pages.insert(match.pages.end(), more.begin(), more.end());
                   done(match);
                 });
}

void KvOperator::CatchUp() {
  store_.residency().CatchUp();
  RecordPrompts();
}

void KvOperator::RecordPrompts() {
  MutexLock recording(recording_);
  std::vector<Prompt> prompts;
  {
    MutexLock lock(mu_);
    prompts.swap(prompts_);
  }
  for (const Prompt& prompt : prompts) reuse_.Record(prompt.pages, prompt.raw_bytes, prompt.time);
}

absl::Status KvOperator::ReportAttention(const Caller& caller, const v1::ReportAttentionRequest& in,
                                         v1::ReportAttentionResponse& out) {
  KVSTOW_ASSIGN_OR_RETURN(const auto space,
                          spaces_.Find(caller, in.space(), in.fingerprint(), SpaceUse::kWrite));
  for (const v1::PageAttention& report : in.pages()) {
    *out.add_results() = reports_.Take(*space, report);
  }
  return absl::OkStatus();
}

absl::Status KvOperator::Release(const Caller& caller, const v1::ReleaseRequest& in,
                                 v1::ReleaseResponse& out) {
  const NamedLease lease(in.lease(), HolderOf(caller));
  out.set_found(in.renew() ? store_.residency().Renew(lease) : store_.residency().Release(lease));
  return absl::OkStatus();
}

absl::Status KvOperator::Pin(const Caller& caller, const v1::PinRequest& in, v1::PinResponse& out) {
  KVSTOW_ASSIGN_OR_RETURN(const auto space,
                          spaces_.Find(caller, in.space(), in.fingerprint(), SpaceUse::kWrite));
  KVSTOW_RETURN_IF_ERROR(CheckKeys(in.keys()));
  for (const std::string& key : in.keys()) {
    const absl::Status s = store_.residency().Pin({.space = space->id, .key = key}, !in.unpin());
    if (!s.ok() && !absl::IsNotFound(s)) return s;
    out.add_status(s.ok() ? v1::HIT : v1::MISS);
  }
  return absl::OkStatus();
}

absl::Status KvOperator::Delete(const Caller& caller, const v1::DeleteRequest& in,
                                v1::DeleteResponse& out) {
  KVSTOW_ASSIGN_OR_RETURN(const auto space,
                          spaces_.Find(caller, in.space(), in.fingerprint(), SpaceUse::kWrite));
  KVSTOW_RETURN_IF_ERROR(CheckKeys(in.keys()));
  for (const std::string& key : in.keys()) {
    const PageName name{.space = space->id, .key = key};
    const auto facts = remote_.on() ? store_.residency().Find(name)
                                    : absl::StatusOr<PageFacts>(absl::NotFoundError(""));
    const absl::Status s = store_.Delete(name, in.force());
    if (!absl::IsFailedPrecondition(s)) {
      remote_.Forget(*space, key, facts.ok() ? facts->segments.size() : 0);
    }
    if (absl::IsFailedPrecondition(s)) {
      out.add_status(v1::REFUSED);
    } else if (absl::IsNotFound(s)) {
      out.add_status(v1::MISS);
    } else {
      out.add_status(s.ok() ? v1::HIT : v1::UNAVAILABLE);
    }
  }
  return absl::OkStatus();
}

absl::Status KvOperator::DropSpace(const Caller& caller, const v1::DropSpaceRequest& in,
                                   v1::DropSpaceResponse& out) {
  KVSTOW_ASSIGN_OR_RETURN(const auto space,
                          spaces_.Find(caller, in.space(), in.fingerprint(), SpaceUse::kWrite));
  if (space->tenant != caller.tenant) {
    return absl::PermissionDeniedError(
        absl::StrCat("space '", space->name, "' is another tenant's, who alone may drop it"));
  }
  out.set_pages(store_.residency().Usage(space->id).pages);
  return Drop(*space);
}

absl::Status KvOperator::Drop(const Space& space) {
  if (!spaces_.Forget(space)) {
    return absl::NotFoundError(absl::StrCat("space '", space.name, "' was just dropped"));
  }
  remote_.Drop(space);
  return store_.DropSpace(space.id);
}

size_t KvOperator::DropIdleSpaces(Duration idle, size_t most, const std::string* tenant) {
  size_t dropped = 0;
  for (const auto& space : spaces_.IdlePrivate(idle, tenant)) {
    if (dropped == most) break;
    if (store_.residency().Usage(space->id).pages > 0) {
      spaces_.Touch(*space);  // the next look comes when it has been idle once more
      continue;
    }
    const absl::Status status = Drop(*space);
    Log().info("the private space '{}' is empty and nobody used it: dropped ({})", space->name,
               status.ok() ? "done" : std::string(status.message()));
    ++dropped;
  }
  return dropped;
}

// Rows of the spaces that the caller meets, and their sum.
void KvOperator::TellSpaces(const Caller& caller, StoreUsage& sum, v1::UsageResponse& out) {
  for (const auto& space : spaces_.All()) {
    if (!IsOperator(caller) && !spaces_.Finds(caller, *space)) continue;
    const StoreUsage part = store_.residency().Usage(space->id);
    Add(part, sum);
    v1::SpaceUsage& row = *out.add_spaces();
    row.set_space(space->name);
    row.set_tenant(space->tenant);
    ToProto(space->spec, *row.mutable_spec());
    row.set_recipe(space->recipe);
    TellFitted(*space, calibrations_, row);
    row.set_fidelity(FidelityToProto(space->promise.fidelity));
    row.set_pages(part.pages);
    row.set_raw_bytes(part.raw_bytes);
    row.set_encoded_bytes(part.encoded_bytes);
    row.set_lookup_keys(space->counters->lookup_keys);
    row.set_lookup_hit_keys(space->counters->lookup_hit_keys);
  }
}

absl::Status KvOperator::Usage(const Caller& caller, const v1::UsageRequest& in,
                               v1::UsageResponse& out) {
  StoreUsage usage;
  if (!in.space().empty()) {
    KVSTOW_ASSIGN_OR_RETURN(const auto space, spaces_.Find(Meant(caller, in.tenant()), in.space()));
    usage = store_.residency().Usage(space->id);
    TellFitted(*space, calibrations_, out);
  } else {
    TellSpaces(caller, usage, out);
  }
  if (IsOperator(caller)) {
    if (in.space().empty()) {
      usage = store_.residency().Usage();
      RecordPrompts();
      ToProto(reuse_.Estimate(), *out.mutable_reuse());
    }
    for (const auto& [name, value] : CounterRows(store_.residency().Counters())) {
      (*out.mutable_counters())[name] = value;
    }
    for (const auto& [name, value] : metrics_.CodecRows()) (*out.mutable_counters())[name] = value;
  }
  ToProto(usage, *out.mutable_tiers());
  out.set_pages(usage.pages);
  out.set_raw_bytes(usage.raw_bytes);
  out.set_encoded_bytes(usage.encoded_bytes);
  out.set_leases(usage.leases);
  out.set_pinned_pages(usage.pinned_pages);
  return absl::OkStatus();
}

}  // namespace kvstow
