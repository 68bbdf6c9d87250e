#include "service/operators/admin_operator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "service/operators/activity.h"
#include "service/pages/age_table.h"
#include "service/spaces/messages.h"

namespace kvstow {
namespace {

absl::StatusOr<TierId> TierOf(const std::string& name) {
  for (int t = 0; t < kTiers; ++t) {
    if (name == TierName(static_cast<TierId>(t))) return static_cast<TierId>(t);
  }
  return absl::InvalidArgumentError(absl::StrCat("tier '", name, "': use gpu, host or disk"));
}

}  // namespace

absl::Status AdminOperator::Status(const v1::StatusRequest&, v1::StatusResponse& out) {
  out.set_version(facts_.version);
  out.set_device(facts_.device);
  const Duration up = Clock::Real().Now() - facts_.started;
  out.set_uptime_ms(std::chrono::duration_cast<std::chrono::milliseconds>(up).count());
  out.set_ready(ready());
  out.set_ready_ms(ready_ms_);
  out.set_recovered_pages(store_.residency().Counters().recovered_pages);
  out.mutable_libraries()->insert(facts_.libraries.begin(), facts_.libraries.end());
  out.mutable_config()->insert(facts_.config.begin(), facts_.config.end());
  ToProto(store_.residency().Usage(), *out.mutable_tiers());
  return absl::OkStatus();
}

absl::Status AdminOperator::SamplePages(const v1::SamplePagesRequest& in,
                                        v1::SamplePagesResponse& out) {
  if (in.max_pages() < 1 || in.max_pages() > kMaxSampledPages) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_pages is ", in.max_pages(), ": ask for 1 to ", kMaxSampledPages));
  }
  KVSTOW_ASSIGN_OR_RETURN(const auto space,
                          spaces_.Find(Caller{.tenant = in.tenant()}, in.space()));
  std::vector<PageName> pages = store_.residency().Pages(space->id);
  std::ranges::sort(pages, {}, &PageName::key);
  const size_t taken = std::min<size_t>(in.max_pages(), pages.size());
  for (size_t i = 0; i < taken; ++i) out.add_keys(pages[i * pages.size() / taken].key);
  out.set_pages(pages.size());
  return absl::OkStatus();
}

absl::Status AdminOperator::Ages(const v1::AgesRequest& in, v1::AgesResponse& out) {
  SpaceId only = 0;
  if (!in.space().empty()) {
    KVSTOW_ASSIGN_OR_RETURN(const auto space,
                            spaces_.Find(Caller{.tenant = in.tenant()}, in.space()));
    only = space->id;
  }
  const uint64_t pages = store_.residency().Usage(only).pages;
  TellAges(store_.residency().Sample(only, kMaxAgedPages), pages, spaces_, out);
  return absl::OkStatus();
}

absl::Status AdminOperator::Activity(const v1::ActivityRequest&, v1::ActivityResponse& out) {
  TellActivity(metrics_, snapshot_(), Clock::Real().Now(), out);
  return absl::OkStatus();
}

absl::Status AdminOperator::Evict(const v1::EvictRequest& in, v1::EvictResponse& out) {
  KVSTOW_ASSIGN_OR_RETURN(const TierId tier, TierOf(in.tier()));
  KVSTOW_RETURN_IF_ERROR(store_.cooling().Shrink(tier, in.to_bytes()));
  *out.mutable_usage() = UsageOf(tier);
  return absl::OkStatus();
}

absl::Status AdminOperator::SetBudget(const v1::SetBudgetRequest& in, v1::SetBudgetResponse& out) {
  KVSTOW_ASSIGN_OR_RETURN(const TierId tier, TierOf(in.tier()));
  const absl::Status set = store_.cooling().SetBudget(tier, in.bytes());
  if (absl::IsFailedPrecondition(set)) {
    return absl::FailedPreconditionError(
        absl::StrCat(set.message(), ": start kvstowd with ", TierName(tier), "-bytes"));
  }
  KVSTOW_RETURN_IF_ERROR(set);
  Log().info("{} has a budget of {} bytes now", TierName(tier), in.bytes());
  *out.mutable_usage() = UsageOf(tier);
  return absl::OkStatus();
}

v1::TierUsage AdminOperator::UsageOf(TierId tier) {
  return UsageToProto(TierName(tier), store_.residency().Usage().tiers[static_cast<size_t>(tier)]);
}

absl::Status AdminOperator::Flush(const v1::FlushRequest&, v1::FlushResponse&) {
  return store_.Flush();
}

absl::Status AdminOperator::Verify(const v1::VerifyRequest& in,
                                   const std::function<bool(const v1::VerifyProgress&)>& progress) {
  constexpr Duration kTellEvery = std::chrono::milliseconds(500);
  SpaceId only = 0;
  if (!in.space().empty()) {
    KVSTOW_ASSIGN_OR_RETURN(const auto space,
                            spaces_.Find(Caller{.tenant = in.tenant()}, in.space()));
    only = space->id;
  }
  const std::vector<PageName> pages = store_.residency().Pages(only);
  v1::VerifyProgress told;
  told.set_total_pages(pages.size());
  Time last = Clock::Real().Now();
  for (const PageName& page : pages) {
    const auto space = spaces_.Find(page.space);
    if (space != nullptr) {
      v1::GetPage request;
      request.set_key(page.key);
      const v1::PageReply reply = reader_.Check(*space, request);
      told.set_bytes(told.bytes() + reply.stored_bytes());
      if (reply.status() == v1::CORRUPT) told.set_corrupt_pages(told.corrupt_pages() + 1);
    }
    told.set_pages(told.pages() + 1);
    if (const Time now = Clock::Real().Now(); now - last >= kTellEvery) {
      if (!progress(told)) return absl::CancelledError("the caller went away");
      last = now;
    }
  }
  told.set_done(true);
  progress(told);
  return absl::OkStatus();
}

void AdminOperator::SetReady(bool ready, Duration from_start) {
  if (ready) ready_ms_ = std::chrono::duration_cast<std::chrono::milliseconds>(from_start).count();
  ready_ = ready;
}

}  // namespace kvstow
