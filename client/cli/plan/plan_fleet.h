// The part of a plan that is about several nodes and the remote store that they share. What is
// shown of it is declared in plan_report.h.
#ifndef KVSTOW_CLIENT_CLI_PLAN_PLAN_FLEET_H_
#define KVSTOW_CLIENT_CLI_PLAN_PLAN_FLEET_H_

#include "client/cli/plan/plan_report.h"
#include "client/cli/verb.h"

namespace kvstow::cli {

// --nodes and the flags that need it; `fleet.nodes` stays 0 without it. `server` excludes it.
void AddFleetFlags(const Verb& verb, planner::Fleet& fleet, const Flag& server);

// Predicts every recipe of the report, when there are nodes to predict. `trace` is null without a
// load.
absl::Status AddFleet(const Trace* trace, PlanReport& report);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_PLAN_PLAN_FLEET_H_
