// kvstow plan --server: the hit rate of a running server with more or less memory.
#ifndef KVSTOW_CLIENT_CLI_PLAN_PLAN_SERVER_H_
#define KVSTOW_CLIENT_CLI_PLAN_PLAN_SERVER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/cli.h"

namespace kvstow::cli {

// Plans for `recipes` (NAME=RATIO) and `roundtrips` (files of measured ones), beside the ratio that
// the server's pages have, and for `sizes`, beside 0.5, 1, 2 and 4 times the bytes that its tiers
// hold now. Returns the exit code.
int PlanServer(const OutputFlags& output, const ServerFlags& server,
               const std::vector<std::string>& recipes, const std::vector<std::string>& roundtrips,
               const std::vector<uint64_t>& sizes);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_PLAN_PLAN_SERVER_H_
