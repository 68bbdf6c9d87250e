#include "service/operators/quota_operator.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "service/spaces/messages.h"

namespace kvstow {
namespace {

constexpr size_t kMaxTenantBytes = 128;

// The numbers of a tenant's limits, and their fields in the message.
struct Field {
  const char* name;
  uint64_t TenantLimits::*value;
  bool (v1::TenantLimits::*has)() const;
  uint64_t (v1::TenantLimits::*get)() const;
  void (v1::TenantLimits::*set)(uint64_t);
};
constexpr Field kFields[] = {
    {"pages", &TenantLimits::pages, &v1::TenantLimits::has_pages, &v1::TenantLimits::pages,
     &v1::TenantLimits::set_pages},
    {"spaces", &TenantLimits::spaces, &v1::TenantLimits::has_spaces, &v1::TenantLimits::spaces,
     &v1::TenantLimits::set_spaces},
    {"streams", &TenantLimits::streams, &v1::TenantLimits::has_streams, &v1::TenantLimits::streams,
     &v1::TenantLimits::set_streams},
    {"put rate", &TenantLimits::put_bytes_per_second, &v1::TenantLimits::has_put_bytes_per_second,
     &v1::TenantLimits::put_bytes_per_second, &v1::TenantLimits::set_put_bytes_per_second},
    {"get rate", &TenantLimits::get_bytes_per_second, &v1::TenantLimits::has_get_bytes_per_second,
     &v1::TenantLimits::get_bytes_per_second, &v1::TenantLimits::set_get_bytes_per_second},
    {"remote bytes", &TenantLimits::remote_bytes, &v1::TenantLimits::has_remote_bytes,
     &v1::TenantLimits::remote_bytes, &v1::TenantLimits::set_remote_bytes},
};

absl::Status Change(const v1::TenantLimits& in, TenantLimits& limits) {
  for (const v1::TierQuota& quota : in.tiers()) {
    const auto t = std::find_if(std::begin(kAllTiers), std::end(kAllTiers),
                                [&](TierId tier) { return quota.tier() == TierName(tier); });
    if (t == std::end(kAllTiers)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tier '", quota.tier(), "': use gpu, host or disk"));
    }
    const auto at = static_cast<size_t>(*t);
    if (quota.has_limit_bytes()) limits.limit[at] = quota.limit_bytes();
    if (quota.has_guarantee_bytes()) limits.guarantee[at] = quota.guarantee_bytes();
  }
  if (in.has_weight()) limits.weight = in.weight();
  for (const Field& field : kFields) {
    if ((in.*field.has)()) limits.*field.value = (in.*field.get)();
  }
  return CheckLimits(limits);
}

v1::TenantLimits ToProto(const TenantLimits& limits) {
  v1::TenantLimits out;
  for (const TierId t : kAllTiers) {
    v1::TierQuota& quota = *out.add_tiers();
    quota.set_tier(TierName(t));
    quota.set_limit_bytes(limits.limit[static_cast<size_t>(t)]);
    quota.set_guarantee_bytes(limits.guarantee[static_cast<size_t>(t)]);
  }
  out.set_weight(limits.weight);
  for (const Field& field : kFields) (out.*field.set)(limits.*field.value);
  return out;
}

absl::Status NoTenant(const std::string& tenant) {
  return absl::NotFoundError(
      absl::StrCat("there is no tenant '", tenant, "': `kvstow quota` lists them"));
}

v1::TenantUsage ToProto(const TenantTable::Row& row, const StoreUsage& usage) {
  v1::TenantUsage out;
  out.set_tenant(row.tenant);
  *out.mutable_limits() = ToProto(row.limits);
  ToProto(usage, *out.mutable_tiers());
  out.set_pages(usage.pages);
  out.set_raw_bytes(usage.raw_bytes);
  out.set_encoded_bytes(usage.encoded_bytes);
  out.set_streams(row.streams);
  out.set_put_bytes(row.put_bytes);
  out.set_get_bytes(row.get_bytes);
  out.set_refused(row.refused);
  return out;
}

}  // namespace

// Only a guarantee that grows can be one too many.
absl::Status QuotaOperator::CheckGuarantees(const std::string& tenant, const TenantLimits& limits) {
  const TenantLimits had = tenants_.LimitsOf(tenant);
  for (const TierId t : kAllTiers) {
    const auto at = static_cast<size_t>(t);
    if (limits.guarantee[at] <= had.guarantee[at]) continue;
    const uint64_t budget = store_.residency().budget(t);
    if (budget == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("there is no ", TierName(t),
                       " tier to guarantee bytes in: start kvstowd with ", TierName(t), "-bytes"));
    }
    uint64_t others = 0;
    for (const TenantTable::Row& row : tenants_.All()) {
      if (row.tenant != tenant) others += row.limits.guarantee[at];
    }
    const auto most = static_cast<uint64_t>(guaranteed_part_ * static_cast<double>(budget));
    if (limits.guarantee[at] <= most - std::min(most, others)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("all guarantees in ", TierName(t), " may be ", FormatSize(most),
                     " together, its low watermark; others have ", FormatSize(others),
                     ": ask for less, or for a larger budget first"));
  }
  return absl::OkStatus();
}

absl::Status QuotaOperator::SetQuota(const v1::SetQuotaRequest& in, v1::SetQuotaResponse& out) {
  if (in.tenant().size() > kMaxTenantBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("tenant: a name has at most ", kMaxTenantBytes, " bytes"));
  }
  const std::vector<TenantTable::Row> rows = tenants_.All();
  if (std::ranges::find(rows, in.tenant(), &TenantTable::Row::tenant) == rows.end()) {
    return NoTenant(in.tenant());
  }
  TenantLimits limits = tenants_.LimitsOf(in.tenant());
  KVSTOW_RETURN_IF_ERROR(Change(in.limits(), limits));
  KVSTOW_RETURN_IF_ERROR(CheckGuarantees(in.tenant(), limits));
  KVSTOW_RETURN_IF_ERROR(tenants_.SetLimitsOf(in.tenant(), limits));
  Log().info("tenant '{}' has another quota now: {}", in.tenant(), in.limits().ShortDebugString());
  v1::TenantsRequest request;
  request.set_tenant(in.tenant());
  v1::TenantsResponse usage;
  KVSTOW_RETURN_IF_ERROR(Tenants(request, usage));
  *out.mutable_tenant() = std::move(*usage.mutable_tenants(0));
  return absl::OkStatus();
}

absl::Status QuotaOperator::Tenants(const v1::TenantsRequest& in, v1::TenantsResponse& out) {
  std::vector<StoreUsage> usage = store_.residency().UsageByTenant();
  std::vector<TenantTable::Row> rows = tenants_.All();
  usage.resize(std::max(usage.size(), rows.size()));
  std::ranges::stable_sort(rows, std::ranges::greater{}, [&](const TenantTable::Row& row) {
    return usage[row.id].encoded_bytes;
  });
  for (const TenantTable::Row& row : rows) {
    if (in.has_tenant() && in.tenant() != row.tenant) continue;
    *out.add_tenants() = ToProto(row, usage[row.id]);
  }
  if (in.has_tenant() && out.tenants().empty()) {
    return NoTenant(in.tenant());
  }
  return absl::OkStatus();
}

}  // namespace kvstow
