// Shows what a server holds: the same rows in `status`, `stats`, `evict` and `top`.
#ifndef KVSTOW_CLIENT_CLI_USAGE_H_
#define KVSTOW_CLIENT_CLI_USAGE_H_

#include <string>

#include "client/cli/cli.h"
#include "kvstow/v1/admin.pb.h"
#include "kvstow/v1/kv_cache.pb.h"
#include "kvstow/v1/types.pb.h"

namespace kvstow::cli {

Json TierJson(const v1::TierUsage& usage);
using Tiers = google::protobuf::RepeatedPtrField<v1::TierUsage>;
// Without `budgets`, budgets are left out: what one space or one tenant holds has none.
Json TiersJson(const Tiers& tiers, bool budgets = true);
std::string TiersTable(const Tiers& tiers, bool budgets = true);
Json AgesJson(const v1::AgesResponse& ages);
std::string AgesTable(const v1::AgesResponse& ages);
// Returns a space's name, and whose it is.
std::string SpaceLabel(const v1::SpaceUsage& space);
// The cold form that the server fitted to a space of recipe `auto`.
Json FittedJson(const v1::FittedForm& form);
std::string FittedText(const v1::FittedForm& form);  // some lines

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_USAGE_H_
