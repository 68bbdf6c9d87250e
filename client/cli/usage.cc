#include "client/cli/usage.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "client/cli/text.h"

namespace kvstow::cli {

Json TierJson(const v1::TierUsage& usage) {
  return {{"tier", usage.tier()},
          {"budget_bytes", usage.budget_bytes()},
          {"encoded_bytes", usage.encoded_bytes()},
          {"raw_bytes", usage.raw_bytes()},
          {"pages", usage.pages()},
          {"segments", usage.segments()}};
}

Json TiersJson(const google::protobuf::RepeatedPtrField<v1::TierUsage>& tiers) {
  Json out = Json::array();
  for (const v1::TierUsage& t : tiers) out.push_back(TierJson(t));
  return out;
}

std::string TiersTable(const google::protobuf::RepeatedPtrField<v1::TierUsage>& tiers) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::TierUsage& t : tiers) {
    const std::string full = t.budget_bytes() == 0
                                 ? "-"
                                 : FormatFixed(100.0 * static_cast<double>(t.encoded_bytes()) /
                                                   static_cast<double>(t.budget_bytes()),
                                               1) +
                                       "%";
    rows.push_back({t.tier(), absl::StrCat(t.pages()), absl::StrCat(t.segments()),
                    FormatSize(t.encoded_bytes()), FormatSize(t.budget_bytes()), full,
                    FormatSize(t.raw_bytes()), FormatRatio(t.raw_bytes(), t.encoded_bytes())});
  }
  return FormatTable({"TIER", "PAGES", "SEGMENTS", "HELD", "BUDGET", "FULL", "RAW", "RATIO"}, rows);
}

}  // namespace kvstow::cli
