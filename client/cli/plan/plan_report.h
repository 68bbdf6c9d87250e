// Shows a plan as JSON and text.
#ifndef KVSTOW_CLIENT_CLI_PLAN_REPORT_H_
#define KVSTOW_CLIENT_CLI_PLAN_REPORT_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/planner/fleet_plan.h"
#include "client/planner/outcome.h"
#include "client/planner/size_curve.h"

namespace kvstow::cli {

struct PlanReport {
  planner::ModelKv model;
  planner::RankKv rank;
  std::vector<planner::RecipeSize> recipes;  // at least one
  std::string load_name;                     // the trace's path, or the profile
  planner::Origin load_origin = planner::Origin::kMeasured;
  std::optional<planner::Load> load;
  planner::SizeCurves curves;  // of the load
  planner::Hardware hardware;
  std::vector<planner::Outcome> outcomes;  // by recipe; empty without a load and a tier's size
  planner::Goal goal;
  uint32_t prompt_tokens = 0;  // of a prompt whose time to first token was asked for; 0 = none
  bool advised = false;        // a goal and prices were given
  std::optional<planner::Advice> advice;
  planner::Fleet fleet;                               // no nodes: none was asked for
  std::vector<planner::FleetOutcome> fleet_outcomes;  // by recipe, when there are nodes
};

nlohmann::ordered_json PlanJson(const PlanReport& report);
std::string PlanText(const PlanReport& report);

// The parts of the two above that follow from the hardware (plan_outcomes.cc).
void AddOutcomesJson(const PlanReport& report, nlohmann::ordered_json& out);
std::string OutcomesText(const PlanReport& report);

// The parts that are about several nodes (plan_fleet.cc); none without --nodes.
void AddFleetJson(const PlanReport& report, nlohmann::ordered_json& out);
std::string FleetText(const PlanReport& report);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_PLAN_REPORT_H_
