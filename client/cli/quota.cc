// kvstow quota: what tenants use and may use, and a change of it.
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/bytes.h"
#include "client/cli/admin.h"
#include "client/cli/cli.h"
#include "client/cli/text.h"
#include "client/cli/usage.h"
#include "kvstow/v1/admin.pb.h"

namespace kvstow::cli {
namespace {

struct Flags {
  OutputFlags output;
  ServerFlags server;
  std::string tenant;
  bool one = false;       // the tenant was named
  v1::TenantLimits want;  // what is to change
};

uint64_t SizeOf(const std::string& text) {
  const absl::StatusOr<uint64_t> bytes = ParseSize(text);
  if (!bytes.ok()) Refuse(std::string(bytes.status().message()));
  return *bytes;
}

// "host=64GiB", or "host=0" for none.
std::pair<std::string, uint64_t> TierAndSize(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  if (parts.second.empty()) Refuse(absl::StrCat("'", text, "': write TIER=SIZE, as host=64GiB"));
  return {parts.first, SizeOf(parts.second)};
}

std::string LimitText(uint64_t bytes) { return bytes == 0 ? "-" : FormatSize(bytes); }
std::string CountText(uint64_t count) { return count == 0 ? "-" : absl::StrCat(count); }
std::string RateText(uint64_t rate) {
  return rate == 0 ? "-" : absl::StrCat(FormatSize(rate), "/s");
}
// The tenant of a server without identities has no name.
std::string NameText(const std::string& tenant) { return tenant.empty() ? "(none)" : tenant; }

Json ToJson(const v1::TenantUsage& tenant) {
  const v1::TenantLimits& limits = tenant.limits();
  Json tiers = Json::array();
  for (int i = 0; i < tenant.tiers_size() && i < limits.tiers_size(); ++i) {
    tiers.push_back({{"tier", tenant.tiers(i).tier()},
                     {"encoded_bytes", tenant.tiers(i).encoded_bytes()},
                     {"limit_bytes", limits.tiers(i).limit_bytes()},
                     {"guarantee_bytes", limits.tiers(i).guarantee_bytes()}});
  }
  return {{"tenant", tenant.tenant()},
          {"weight", limits.weight()},
          {"tiers", tiers},
          {"pages", tenant.pages()},
          {"page_limit", limits.pages()},
          {"space_limit", limits.spaces()},
          {"raw_bytes", tenant.raw_bytes()},
          {"encoded_bytes", tenant.encoded_bytes()},
          {"streams", tenant.streams()},
          {"stream_limit", limits.streams()},
          {"put_bytes", tenant.put_bytes()},
          {"put_bytes_per_second_limit", limits.put_bytes_per_second()},
          {"get_bytes", tenant.get_bytes()},
          {"get_bytes_per_second_limit", limits.get_bytes_per_second()},
          {"remote_bytes_limit", limits.remote_bytes()},
          {"refused", tenant.refused()}};
}

std::string Table(const google::protobuf::RepeatedPtrField<v1::TenantUsage>& tenants) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::TenantUsage& tenant : tenants) {
    const v1::TenantLimits& limits = tenant.limits();
    for (int i = 0; i < tenant.tiers_size() && i < limits.tiers_size(); ++i) {
      const v1::TierQuota& quota = limits.tiers(i);
      const uint64_t held = tenant.tiers(i).encoded_bytes();
      if (held == 0 && quota.limit_bytes() == 0 && quota.guarantee_bytes() == 0) continue;
      rows.push_back({NameText(tenant.tenant()), quota.tier(), FormatSize(held),
                      LimitText(quota.guarantee_bytes()), LimitText(quota.limit_bytes())});
    }
  }
  std::string out;
  if (!rows.empty()) {
    out = FormatTable({"TENANT", "TIER", "HELD", "GUARANTEE", "LIMIT"}, rows) + "\n";
  }
  rows.clear();
  for (const v1::TenantUsage& tenant : tenants) {
    const v1::TenantLimits& limits = tenant.limits();
    rows.push_back({NameText(tenant.tenant()), FormatFixed(limits.weight(), 2),
                    absl::StrCat(tenant.pages()), CountText(limits.pages()),
                    absl::StrCat(tenant.streams()), CountText(limits.streams()),
                    FormatSize(tenant.put_bytes()), RateText(limits.put_bytes_per_second()),
                    FormatSize(tenant.get_bytes()), RateText(limits.get_bytes_per_second()),
                    LimitText(limits.remote_bytes()), CountText(limits.spaces()),
                    absl::StrCat(tenant.refused())});
  }
  return out + FormatTable({"TENANT", "WEIGHT", "PAGES", "LIMIT", "STREAMS", "LIMIT", "PUT",
                            "LIMIT", "GOT", "LIMIT", "REMOTE LIMIT", "SPACE LIMIT", "REFUSED"},
                           rows);
}

int Show(const Flags& flags) {
  const auto client = Connect(flags.server);
  v1::TenantsRequest request;
  if (flags.one) request.set_tenant(flags.tenant);
  const auto response =
      CallServer<v1::TenantsResponse>(*client, "/kvstow.v1.Admin/Tenants", request);
  if (!response.ok()) return Fail(flags.output, response.status());
  Json tenants = Json::array();
  for (const v1::TenantUsage& tenant : response->tenants()) tenants.push_back(ToJson(tenant));
  Print(flags.output, {{"tenants", tenants}}, Table(response->tenants()));
  return kDone;
}

int Set(const Flags& flags) {
  const auto client = Connect(flags.server);
  v1::SetQuotaRequest request;
  request.set_tenant(flags.tenant);
  *request.mutable_limits() = flags.want;
  const auto response =
      CallServer<v1::SetQuotaResponse>(*client, "/kvstow.v1.Admin/SetQuota", request);
  if (!response.ok()) return Fail(flags.output, response.status());
  google::protobuf::RepeatedPtrField<v1::TenantUsage> tenants;
  *tenants.Add() = response->tenant();
  Print(flags.output, ToJson(response->tenant()), Table(tenants));
  return kDone;
}

void AddChanges(const Verb& verb, const std::shared_ptr<Flags>& flags) {
  verb.Each(
      "--limit",
      [flags](const std::string& text) {
        const auto [tier, bytes] = TierAndSize(text);
        v1::TierQuota& quota = *flags->want.add_tiers();
        quota.set_tier(tier);
        quota.set_limit_bytes(bytes);
      },
      "TIER=SIZE: hold at most so much in a tier; 0 = no limit");
  verb.Each(
      "--guarantee",
      [flags](const std::string& text) {
        const auto [tier, bytes] = TierAndSize(text);
        v1::TierQuota& quota = *flags->want.add_tiers();
        quota.set_tier(tier);
        quota.set_guarantee_bytes(bytes);
      },
      "TIER=SIZE: others never push it below so much in a tier; 0 = nothing");
  const auto number = [&](const char* name, void (v1::TenantLimits::*set)(uint64_t), bool size,
                          const char* help) {
    verb.Parse(
        name,
        [flags, set, size](const std::string& text) {
          uint64_t value = 0;
          if (size) {
            value = SizeOf(text);
          } else if (!absl::SimpleAtoi(text, &value)) {
            Refuse(absl::StrCat("'", text, "' is no number"));
          }
          (flags->want.*set)(value);
        },
        help);
  };
  verb.Parse(
      "--weight",
      [flags](const std::string& text) {
        double weight = 0;
        if (!absl::SimpleAtod(text, &weight)) Refuse(absl::StrCat("'", text, "' is no number"));
        flags->want.set_weight(weight);
      },
      "its part of what the guarantees leave, beside others' weights");
  number("--pages", &v1::TenantLimits::set_pages, false, "have at most so many pages; 0 = any");
  number("--spaces", &v1::TenantLimits::set_spaces, false, "have at most so many spaces; 0 = any");
  number("--streams", &v1::TenantLimits::set_streams, false,
         "have at most so many streams of Put and Get at once; 0 = any");
  number("--put-rate", &v1::TenantLimits::set_put_bytes_per_second, true,
         "put at most so many bytes of payload a second; 0 = any");
  number("--get-rate", &v1::TenantLimits::set_get_bytes_per_second, true,
         "get at most so many bytes of payload a second; 0 = any");
  number("--remote-bytes", &v1::TenantLimits::set_remote_bytes, true,
         "send at most so many bytes to the remote tier within remote-ttl; 0 = any");
}

}  // namespace

void AddQuota(const Verb& app) {
  const Verb verb = app.Add("quota", "What tenants use and may use; with flags, change it");
  const auto flags = std::make_shared<Flags>();
  AddOneServerFlags(verb, flags->server, /*timeout_s=*/600);
  AddOutputFlags(verb, flags->output);
  verb.Parse(
      "TENANT",
      [flags](const std::string& tenant) {
        flags->tenant = tenant;
        flags->one = true;
      },
      "the tenant; absent: all, and changes are of the one tenant of a server without identities");
  AddChanges(verb, flags);
  verb.Footer(
      "A change holds until the server's next start, or the next reload of its access file.\n"
      "Examples:\n  kvstow quota                        # all tenants, the largest first\n"
      "  kvstow quota search                 # one of them\n"
      "  kvstow quota search --limit host=64GiB --limit disk=500GB --weight 3\n"
      "  kvstow quota search --guarantee host=16GiB --put-rate 500MB --streams 32\n"
      "  kvstow quota search --limit host=0  # no limit any longer");
  verb.Run([flags] { return flags->want.ByteSizeLong() > 0 ? Set(*flags) : Show(*flags); });
}

}  // namespace kvstow::cli
