// Makes a trace of a load that a few numbers describe: for users who have no trace yet.
//
//   sessions=200,turns=5,shared=1024,prompt=2000,output=300,rate=0.5,think=30
//
// Sessions arrive at random (Poisson) at `rate` a second. Each has `turns` turns. A turn follows
// the last one after an exponentially distributed time of mean `think` seconds. The prompt of a
// turn is the shared prefix (`shared` tokens, the same for all), the whole history, and a new text
// of exponentially distributed length with mean `prompt`. Answers have mean `output` and join the
// history. As in Mooncake's traces, a request names the blocks of its prompt alone: the blocks of
// its answer first appear in the next turn.
//
// Fields: sessions, turns, prompt and rate are required; shared, output and think default to 0,
// `block` (tokens) to 512 and `seed` to 1. The same text gives the same trace on every machine.
//
// Free function; thread-safe.
#ifndef KVSTOW_CLIENT_PLANNER_PROFILE_H_
#define KVSTOW_CLIENT_PLANNER_PROFILE_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "storage/trace/trace_reader.h"

namespace kvstow::planner {

// Fails with INVALID_ARGUMENT, which names the field, when a field is unknown, missing or out of
// range, or when the load has more than 100 million blocks.
absl::StatusOr<Trace> TraceOfProfile(absl::string_view text);

}  // namespace kvstow::planner

#endif  // KVSTOW_CLIENT_PLANNER_PROFILE_H_
