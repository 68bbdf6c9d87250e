// Shows what a server holds: the same rows in `status`, `stats`, `evict` and `top`.
#ifndef KVSTOW_CLIENT_CLI_USAGE_H_
#define KVSTOW_CLIENT_CLI_USAGE_H_

#include <string>

#include "client/cli/cli.h"
#include "kvstow/v1/admin.pb.h"
#include "kvstow/v1/types.pb.h"

namespace kvstow::cli {

Json TierJson(const v1::TierUsage& usage);
Json TiersJson(const google::protobuf::RepeatedPtrField<v1::TierUsage>& tiers);
std::string TiersTable(const google::protobuf::RepeatedPtrField<v1::TierUsage>& tiers);
Json AgesJson(const v1::AgesResponse& ages);
std::string AgesTable(const v1::AgesResponse& ages);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_USAGE_H_
